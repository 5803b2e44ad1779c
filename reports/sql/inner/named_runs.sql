-- Grain: one row per cell of which a run used a host that is named as slow.
-- slow_hosts: names of these hosts.
select cell_id, list_sort(list(distinct host)) as slow_hosts
from (select cell_id, group_id, unnest(hosts) as host from runs)
semi join hosts using (group_id, host)
group by cell_id
