#!/usr/bin/env bash
# Stop what start.sh started, by pid files only (a pid counts only with the start time it had).
# Default: everything is thrown away but the logs (mariadbd and munged are killed, not shut down).
# KEEP=1: clean shutdown; job ids, job history and database are there for the next start.sh.
set -uo pipefail
: "${SLURM_LAB:?the directory given to start.sh}" "${KEEP:=0}"
export SLURM_CONF=$SLURM_LAB/etc/slurm.conf
PID=$SLURM_LAB/pid
[[ -d $PID ]] || { echo "nothing to stop" >&2; exit 0; }
shopt -s nullglob
start_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
state_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f1; }
running() { # running PIDFILE: is it still the process we started, and not a zombie (kill -0 succeeds on one; pid 1 may reap late)
  local p; [[ -s $1 && -s ${1%.pid}.start ]] || return 1
  p=$(<"$1"); [[ $(start_of "$p") == "$(<"${1%.pid}.start")" && $(state_of "$p") != Z ]]
}
halt() { # halt SIGNAL PIDFILE...: signal all, wait up to 10 s for all, KILL the rest
  local sig=$1 f; shift
  for f in "$@"; do running "$f" && kill "-$sig" "$(<"$f")" 2>/dev/null; done
  for f in "$@"; do
    for _ in {1..200}; do running "$f" || break; sleep 0.05; done
    running "$f" && { echo "killing $f" >&2; kill -KILL "$(<"$f")"; }
    rm -f "$f" "${f%.pid}.start"
  done
}
# jobs first: a slurmstepd and its tasks outlive their slurmd
if running "$PID/slurmctld.pid"; then
  jobs=$(timeout 5 squeue -h -o %A 2>/dev/null | sort -u)
  if [[ -n $jobs ]]; then
    timeout 10 scancel $jobs 2>/dev/null; timeout 10 scancel --full --signal=KILL $jobs 2>/dev/null
    for _ in {1..100}; do [[ -z $(timeout 5 squeue -h 2>/dev/null) ]] && break; sleep 0.1; done
  fi
fi
halt TERM "$PID"/slurmd-*.pid "$PID/slurmctld.pid"
# steps left over by a slurmd that was killed: the slurmstepd with files of this cluster open; its tasks, then itself
for d in /proc/[0-9]*; do
  [[ $(readlink "$d/exe" 2>/dev/null) == */slurmstepd* ]] || continue
  readlink "$d"/fd/* 2>/dev/null | grep -qF "$SLURM_LAB/" || continue
  p=${d#/proc/}
  for c in $(cat /proc/"$p"/task/*/children 2>/dev/null); do kill -KILL -- "-$c" 2>/dev/null || kill -KILL "$c" 2>/dev/null; done
  kill -KILL "$p" 2>/dev/null
done
if [[ $KEEP == 1 ]]; then
  halt TERM "$PID/slurmdbd.pid"; halt TERM "$PID/mariadbd.pid" "$PID/munged.pid"
else
  halt KILL "$PID/slurmdbd.pid" "$PID/mariadbd.pid" "$PID/munged.pid"
fi
exec 8>/tmp/slurm-lab.lock; flock 8
hosts=$(grep -vF "# slurm-lab $SLURM_LAB" /etc/hosts) && echo "$hosts" >/etc/hosts
rm -f "$SLURM_LAB"/munge.socket*
[[ $KEEP == 1 ]] || rm -rf "$SLURM_LAB"/{etc,spool,sql,pid,dev,munge.seed,env.sh}
exit 0
