"""Ranks on the nodes of a job without srun: one torchrun per node, started by a remote shell.

Each torchrun stands alone (its own port on its own node) and starts the ranks of its node; the
ranks meet by themselves, through the point's folder. What is written to the remote shell's standard
input steers a node: numbers of signals for its ranks, which its end, whatever caused it, kills.
"""

import contextlib
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scaling.launch.fork_server.protocol import write_private
from scaling.launch.start import slurm
from scaling.launch.start.rank_exits import AFTER, BEFORE, ShellRanks
from scaling.launch.start.starter import Launch, LaunchError, Ranks, all_or_none

REMOTE_SHELL = "ssh -o BatchMode=yes"
_LAUNCH_LIMIT_S = 300.0
# what a remote shell does not hand over by itself, as other launchers have it, and ours
_HANDED_OVER = (
    "PATH", "LD_LIBRARY_PATH", "PYTHON", "VIRTUAL_ENV", "OMP_", "MKL_", "CUDA_", "NCCL_", "GLOO_",
    "TORCH", "PYTORCH_", "TRITON_", "DS_", "UCX_", "FI_", "HF_", "SCALING_",
)  # fmt: skip

# $1: folder for what the ranks leave; $2: for logs; $3: first rank of this node;
# $4: ranks of all nodes; $5: where rank 0 is; then the command.
# It ends with 0 whatever the rank did: torchrun would end the others before they have said what
# they saw. setsid: a rank is ended with all it has started.
_RANK_SHELL = f"""\
folder=$1 logs=$2
export RANK=$(($3 + LOCAL_RANK)) WORLD_SIZE=$4 MASTER_ADDR=$5
shift 5
[ ! -e "$folder/stop" ] || exit 0
{BEFORE}
setsid "$@" > "$logs/rank$RANK.log" 2>&1 < /dev/null &
rank=$!
trap 'kill -TERM -- "-$rank"' TERM
echo $rank > "$folder/pid.$RANK"
wait $rank
code=$?
while kill -0 $rank 2> /dev/null; do wait $rank; code=$?; done
{AFTER}"""

# $1: folder for what the ranks leave; $2, $3: first and last rank of this node; then torchrun.
_NODE = """\
folder=$1 first=$2 last=$3
shift 3
. "$folder/environment"
exec 3<&0
tell() {
  for rank in $(seq "$first" "$last"); do
    [ ! -s "$folder/pid.$rank" ] || kill -s "$1" -- "-$(cat "$folder/pid.$rank")"
  done 2> /dev/null
}
"$@" < /dev/null 3<&- &
node=$!
{
  while read -r word <&3; do tell "$word"; done
  touch "$folder/stop"
  tell KILL
  sleep 10
  kill -KILL "$node" 2> /dev/null
} &
reader=$!
wait "$node"
code=$?
tell KILL
kill "$reader" 2> /dev/null
exit $code
"""


def nodes_of(environment: Mapping[str, str]) -> list[str]:
    """The nodes of the job this runs in, as its scheduler tells; empty if nobody does.

    `$SCALING_NODES` (names with commas) comes first, then PBS's node file, then Slurm's list.
    """
    if named := environment.get("SCALING_NODES"):
        return [name for name in named.replace(",", " ").split() if name]
    if file := environment.get("PBS_NODEFILE"):
        return list(dict.fromkeys(Path(file).read_text().split()))
    return slurm.node_names(environment)


def start_by_torchrun(launch: Launch) -> Ranks:
    """Start a torchrun on each node that the point needs, in the order the nodes are listed.

    `$SCALING_RSH` is the remote shell (default `ssh -o BatchMode=yes`); it is called with a node's
    name and one line of shell. The checkout and the logs lie on a file system that all nodes see.

    Raises:
        LaunchError: the job has too few nodes, or there is no remote shell.
    """
    per_node, needed = launch.per_node, launch.world_size // launch.per_node
    nodes = nodes_of(launch.environment)
    if len(nodes) < needed:
        raise LaunchError(
            f"world_size={launch.world_size} needs {needed} nodes of {per_node} ranks, and this "
            f"job has {len(nodes)}: {', '.join(nodes)}"
        )
    shell = shlex.split(launch.environment.get("SCALING_RSH", REMOTE_SHELL))
    folder = Path(tempfile.mkdtemp(prefix=".run-nodes-", dir=launch.logs))
    write_private(folder / "environment", exports(launch.environment))
    ranks = NodeRanks(folder, per_node)
    with all_or_none(ranks):
        for node, name in enumerate(nodes[:needed]):
            line = _node_command(launch, folder, node * per_node, master=nodes[0])
            try:
                ranks.start([*shell, name, line], launch.environment, subprocess.PIPE)
            except OSError as error:
                raise LaunchError(f"{shell[0]} could not be started: {error}") from error
        failed = ranks.wait_for_start(lambda node: f"pid.{node * per_node}", _LAUNCH_LIMIT_S)
        if failed is not None:
            words = ranks.last_words(failed)
            raise LaunchError(f"no rank was started on {nodes[failed]}: {words}")
    return ranks


def _node_command(launch: Launch, folder: Path, first: int, *, master: str) -> str:
    """The line of shell that starts the ranks of one node, from rank `first` on, and steers them.

    The ranks' shells say in the folder how they ended, and read their environment there: the line
    can be read by everybody on both machines, and by whoever keeps their logs.
    """
    last = first + launch.per_node - 1
    return f"cd {shlex.quote(str(Path.cwd()))} && " + shlex.join(
        [
            *("bash", "-c", _NODE, "node", str(folder), str(first), str(last)),
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"),
            *(f"--nproc-per-node={launch.per_node}", "bash", "-c", _RANK_SHELL, "rank"),
            *(str(folder), str(launch.logs), str(first), str(launch.world_size), master),
            *launch.command,
        ]
    )


def exports(environment: Mapping[str, str]) -> str:
    """What a remote shell would lose of the ranks' environment, as lines of shell."""
    return "".join(
        f"export {name}={shlex.quote(value)}\n"
        for name, value in sorted(environment.items())
        if name.startswith(_HANDED_OVER) and name.isidentifier()
    )


class NodeRanks(ShellRanks):
    """The ranks of a point, seen through one remote shell per node."""

    def signal(self, number: int) -> None:
        """See `ShellRanks`."""
        for shell in self._shells:
            assert shell.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the node has ended
                if number == signal.SIGKILL:
                    shell.stdin.close()
                else:
                    shell.stdin.write(b"%d\n" % number)
                    shell.stdin.flush()
