-- Grain: one row per setting, axis on which its layouts differ, and layout.
-- Needs: every_choice
-- axis: as tables name it. level: the choice; place: orders the levels of an axis.
-- words, short: how a text and a chart say the choice; null where it goes without saying.
-- otherwise: what a chart says where the others' choice does not go without saying.
-- degree: on the first of the two lines of a chart's label. axis_order: as people say them.
select * exclude (plain, always, differs)
from every_choice
where differs
