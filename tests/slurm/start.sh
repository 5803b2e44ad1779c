#!/usr/bin/env bash
# Start a real Slurm cluster (munge, [mariadb, slurmdbd], slurmctld, N slurmd) on this one machine, as root.
# Needs Debian's slurm-wlm, slurmdbd, mariadb-server and munge (.ci/apt-packages).
# Idempotent: configures, starts what is not running, waits for N idle nodes.
# No systemd, no cgroup. Everything listens on 127.0.0.1 only. Clients need: . $SLURM_LAB/env.sh  (SLURM_CONF)
#
# knobs (environment):
#   SLURM_LAB       directory of the cluster: conf, logs, pids, spool, database (short: it holds unix sockets)
#   NODES=4 CPUS=8 MEM_MB=8000 GPUS=4    the claimed size of the cluster and of each node
#   WITH_DBD=1      0: no mariadb/slurmdbd (then `sacct` is an error)
#   SLURMD_TIMEOUT=10 MESSAGE_TIMEOUT=10 KILL_WAIT=5 CRED_EXPIRE=10 FIRST_JOB_ID=...
#   PORT_BASE=16800 EXTRA_CONF='more lines for slurm.conf, before the PartitionName of main'
set -euo pipefail
: "${SLURM_LAB:?a short path: it holds unix sockets}" "${NODES:=4}" "${CPUS:=8}" "${MEM_MB:=8000}" "${GPUS:=4}" "${WITH_DBD:=1}"
: "${SLURMD_TIMEOUT:=10}" "${MESSAGE_TIMEOUT:=10}" "${KILL_WAIT:=5}" "${CRED_EXPIRE:=10}" "${WAIT_S:=180}"
: "${PORT_BASE:=16800}" "${FIRST_JOB_ID:=$(( EPOCHSECONDS % 600000 * 100 + 1 ))}"
CTL_PORT=$((PORT_BASE+17)) DBD_PORT=$((PORT_BASE+19)) SQL_PORT=$((PORT_BASE+6)) SLURMD_PORT0=$((PORT_BASE+100))
ETC=$SLURM_LAB/etc LOG=$SLURM_LAB/log PID=$SLURM_LAB/pid SPOOL=$SLURM_LAB/spool
T0=$EPOCHREALTIME
say() { printf '[slurm-lab %6.2fs] %s\n' "$(awk -v a="$T0" -v b="$EPOCHREALTIME" 'BEGIN{print b-a}')" "$*" >&2; }
die() { say "FAILED: $*"; for f in "$LOG"/*.log; do echo "== $f" >&2; grep -i error "$f" >&2; tail -n 6 "$f" >&2; done; exit 1; }
# a pid file counts only while the process it names started when we started it (pids are reused)
start_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
state_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f1; }
alive() {
  local p; [[ -s $PID/$1.pid && -s $PID/$1.start ]] || return 1
  p=$(<"$PID/$1.pid"); [[ $(start_of "$p") == "$(<"$PID/$1.start")" && $(state_of "$p") != Z ]]
}
# spawn NAME cmd...: run in its own session; remember its pid (the exec chain keeps it) and its start time
spawn() {
  local name=$1 n=0; shift
  rm -f "$PID/$name.pid" "$PID/$name.start"
  ( # no inherited fds >2: a CI harness that waits for the end of a pipe must not hang on our daemons
    for fd in /proc/self/fd/*; do fd=${fd##*/}; if (( fd > 2 )); then eval "exec $fd>&-" 2>/dev/null || true; fi; done
    exec setsid --fork bash -c 'echo $$ > "$0"; exec "$@"' "$PID/$name.pid" "$@" </dev/null >>"$LOG/$name.out.log" 2>&1 )
  until [[ -s $PID/$name.pid ]]; do sleep 0.02; (( ++n < 50 * WAIT_S )) || die "$name did not start"; done
  start_of "$(<"$PID/$name.pid")" >"$PID/$name.start"
}
until_ok() { # until_ok WHAT SECONDS cmd...
  local what=$1 end=$(( SECONDS + $2 )); shift 2
  while (( SECONDS <= end )); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 0.1; done
  die "$what did not come up"
}
[[ $(id -u) == 0 ]] || { echo "needs root" >&2; exit 1; }
mkdir -p "$ETC" "$LOG" "$PID" "$SPOOL/ctld" "$SLURM_LAB/dev"; chmod 755 "$SLURM_LAB"

# ---------------------------------------------------------------- configuration
NODELIST="node[1-$NODES]"
# The names of the controller and of the nodes, all 127.0.0.1 (the ports differ). Not 127.0.0.11..: srun would
# listen on 127.0.0.11 but be called back on 127.0.0.1, the source address of its own connections: every step would fail.
mark="# slurm-lab $SLURM_LAB"
if [[ $(grep -cF "$mark" /etc/hosts) != $((NODES+1)) ]]; then
  exec 8>/tmp/slurm-lab.lock; flock 8 # another cluster of this machine may write it too
  hosts=$(grep -vF "$mark" /etc/hosts)
  { echo "$hosts"; echo "127.0.0.1 slurmctl $mark"; for i in $(seq "$NODES"); do echo "127.0.0.1 node$i $mark"; done; } >/etc/hosts
  exec 8>&-
fi
getent hosts "$(hostname)" | grep -Eq '^(127\.|::1)' || say "warning: $(hostname) is not a loopback name: srun from here would listen on its address"
# GPUs: each needs a character device of its own (regular files and duplicates do not work); these are copies of /dev/null
for g in $(seq 0 $((GPUS-1))); do [[ -e $SLURM_LAB/dev/nvidia$g ]] || mknod -m 666 "$SLURM_LAB/dev/nvidia$g" c 1 3; done
{ cat <<CONF
ClusterName=lab
SlurmctldHost=slurmctl(127.0.0.1)
SlurmctldPort=$CTL_PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# cred_expire also sets how long a requeued job waits (BeginTime = now + cred_expire + 1; default 120)
AuthInfo=socket=$SLURM_LAB/munge.socket,cred_expire=$CRED_EXPIRE
CredType=cred/munge
# bind to the address of one's own host name (loopback) instead of 0.0.0.0
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=$SPOOL/ctld
SlurmdSpoolDir=$SPOOL/%n
SlurmctldPidFile=$PID/slurmctld.self
SlurmdPidFile=$PID/slurmd-%n.self
SlurmctldLogFile=$LOG/slurmctld.log
SlurmdLogFile=$LOG/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
GresTypes=gpu
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=$SLURMD_TIMEOUT
MessageTimeout=$MESSAGE_TIMEOUT
InactiveLimit=0
KillWait=$KILL_WAIT
MinJobAge=300
Waittime=0
CompleteWait=0
MaxArraySize=1001
JobRequeue=1
# a new cluster must not count from 1 again: submitit would find the result files of an older job with the same id
FirstJobId=$FIRST_JOB_ID
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
# the nodes claim more than this machine has
SlurmdParameters=config_overrides
CONF
  if (( WITH_DBD )); then cat <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$DBD_PORT
# not a password: the munge socket towards slurmdbd (AuthInfo is not used there)
AccountingStoragePass=$SLURM_LAB/munge.socket
AccountingStorageTRES=gres/gpu
CONF
  else echo "AccountingStorageType=accounting_storage/none"; fi
  for i in $(seq "$NODES"); do
    echo "NodeName=node$i NodeHostname=node$i NodeAddr=127.0.0.1 Port=$((SLURMD_PORT0+i)) CPUs=$CPUS Boards=1 SocketsPerBoard=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=$MEM_MB $(if (( GPUS )); then echo Gres=gpu:$GPUS; fi) State=UNKNOWN"
  done
  [[ -z ${EXTRA_CONF:-} ]] || printf '%s\n' "$EXTRA_CONF"
  echo "PartitionName=main Nodes=$NODELIST Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO"
} >"$ETC/slurm.conf.new"
# a running cluster keeps its FirstJobId line (all daemons compare a hash of slurm.conf)
if alive slurmctld && diff -q <(grep -v ^FirstJobId "$ETC/slurm.conf") <(grep -v ^FirstJobId "$ETC/slurm.conf.new") >/dev/null 2>&1
then rm "$ETC/slurm.conf.new"; else mv "$ETC/slurm.conf.new" "$ETC/slurm.conf"; fi
if (( GPUS )); then echo "NodeName=$NODELIST Name=gpu File=$SLURM_LAB/dev/nvidia[0-$((GPUS-1))]"; fi >"$ETC/gres.conf"
echo "export SLURM_CONF=$ETC/slurm.conf" >"$SLURM_LAB/env.sh"
export SLURM_CONF=$ETC/slurm.conf

# ---------------------------------------------------------------- munge
if ! alive munged; then
  [[ -s $ETC/munge.key ]] || { head -c 1024 /dev/urandom >"$ETC/munge.key"; chmod 400 "$ETC/munge.key"; }
  rm -f "$SLURM_LAB"/munge.socket*
  # --force: as root, below a world-writable /tmp
  spawn munged /usr/sbin/munged --foreground --force --socket="$SLURM_LAB/munge.socket" --key-file="$ETC/munge.key" \
    --pid-file="$PID/munged.self" --seed-file="$SLURM_LAB/munge.seed" --log-file="$LOG/munged.log" --num-threads=4
  until_ok munged "$WAIT_S" munge -S "$SLURM_LAB/munge.socket" -n
  say "munged up"
fi

# ---------------------------------------------------------------- mariadb + slurmdbd
if (( WITH_DBD )); then
  if ! alive mariadbd; then
    mkdir -p "$SLURM_LAB/sql/tmp"; chown mysql:mysql "$SLURM_LAB/sql" "$SLURM_LAB/sql/tmp"
    # a mariadbd that starts removes all temporary tables of its tmpdir, those of other servers too
    server=(--no-defaults --user=mysql --datadir="$SLURM_LAB/sql/data" --tmpdir="$SLURM_LAB/sql/tmp")
    if [[ ! -d $SLURM_LAB/sql/data/mysql ]]; then
      mariadb-install-db "${server[@]}" --auth-root-authentication-method=socket \
        --skip-test-db --skip-name-resolve >"$LOG/mariadb-install.log" 2>&1 || die mariadb-install-db
      say "mariadb data directory made"
    fi
    spawn mariadbd /usr/sbin/mariadbd "${server[@]}" \
      --socket="$SLURM_LAB/sql/sock" --bind-address=127.0.0.1 --port=$SQL_PORT --pid-file="$SLURM_LAB/sql/pid" \
      --innodb-buffer-pool-size=128M --innodb-log-file-size=64M --innodb-lock-wait-timeout=900 \
      --innodb-flush-log-at-trx-commit=0 --skip-log-bin --performance-schema=OFF --skip-name-resolve
    until_ok mariadbd "$WAIT_S" mariadb --no-defaults -S "$SLURM_LAB/sql/sock" -e 'select 1'
    mariadb --no-defaults -S "$SLURM_LAB/sql/sock" -e "create database if not exists slurm_acct_db;
      create user if not exists 'slurm'@'127.0.0.1' identified by 'slurm'; grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1';"
    say "mariadbd up"
  fi
  if ! alive slurmdbd; then
    cat >"$ETC/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=$SLURM_LAB/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$DBD_PORT
CommunicationParameters=NoInAddrAny
SlurmUser=root
DebugLevel=info
LogFile=$LOG/slurmdbd.log
PidFile=$PID/slurmdbd.self
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$SQL_PORT
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
CONF
    chmod 600 "$ETC/slurmdbd.conf"
    spawn slurmdbd /usr/sbin/slurmdbd -D
    until_ok slurmdbd "$WAIT_S" timeout 20 sacctmgr -n show cluster
    sacctmgr -i -n show cluster lab | grep -q lab || sacctmgr -i add cluster lab >>"$LOG/sacctmgr.log" 2>&1 || true
    say "slurmdbd up"
  fi
fi

# ---------------------------------------------------------------- slurmctld, slurmd
# each in its own UTS namespace: in a job on node1 `hostname` is node1
if ! alive slurmctld; then
  spawn slurmctld unshare --uts sh -c 'hostname slurmctl; exec /usr/sbin/slurmctld -D'
  until_ok slurmctld "$WAIT_S" timeout 20 scontrol ping
  say "slurmctld up"
fi
for i in $(seq "$NODES"); do
  if alive "slurmd-node$i"; then continue; fi
  mkdir -p "$SPOOL/node$i"
  spawn "slurmd-node$i" unshare --uts sh -c "hostname node$i; exec /usr/sbin/slurmd -D -N node$i"
done
usable() { # every node idle or working, none down, drained, invalid or not responding (the flags *, ~ ...)
  [[ $(timeout 20 sinfo -h -N -p main -o '%t' | grep -cxE 'idle|alloc|mix|comp') == "$NODES" ]]; }
until_ok "$NODES usable nodes" "$WAIT_S" usable
say "ready: $(sinfo -h -o '%D nodes %t %G' | paste -sd' '); . $SLURM_LAB/env.sh"
