"""Start ranks on the nodes of a job without srun: one torchrun per node, by a remote shell.

Each torchrun stands alone (its own port on its own node) and starts the ranks of its node, which
find each other through the point's folder. Signal numbers written to the remote shell's standard
input are sent to its ranks; when that input closes, for whatever reason, the ranks are killed.
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
from scaling.launch.start.rank_exits import SHELL_AFTER_RANK, SHELL_BEFORE_RANK, ShellRanks
from scaling.launch.start.starter import Launch, LaunchError, Ranks, all_or_none

REMOTE_SHELL = "ssh -o BatchMode=yes"
_LAUNCH_LIMIT_S = 300.0
# prefixes of variables that a remote shell does not pass on; other launchers have similar lists
_PASSED_ON = (
    "PATH", "LD_LIBRARY_PATH", "PYTHON", "VIRTUAL_ENV", "OMP_", "MKL_", "CUDA_", "NCCL_", "GLOO_",
    "TORCH", "PYTORCH_", "TRITON_", "DS_", "UCX_", "FI_", "HF_", "SCALING_",
)  # fmt: skip

# $1: folder for exit records; $2: for logs; $3: first rank of this node;
# $4: ranks of all nodes; $5: host of rank 0; then the command.
# It exits with 0 whatever the rank did, as torchrun would otherwise kill the other ranks before
# they have recorded what they saw. setsid lets a rank be killed with all its children.
_RANK_SHELL = f"""\
folder=$1 logs=$2
export RANK=$(($3 + LOCAL_RANK)) WORLD_SIZE=$4 MASTER_ADDR=$5
shift 5
[ ! -e "$folder/stop" ] || exit 0
{SHELL_BEFORE_RANK}
setsid "$@" > "$logs/rank$RANK.log" 2>&1 < /dev/null &
rank=$!
trap 'kill -TERM -- "-$rank"' TERM
echo $rank > "$folder/pid.$RANK"
wait $rank
code=$?
while kill -0 $rank 2> /dev/null; do wait $rank; code=$?; done
{SHELL_AFTER_RANK}"""

# $1: folder for exit records; $2, $3: first and last rank of this node; then torchrun.
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
    """The nodes of the job this runs in, as its scheduler lists them; empty if none does.

    `$SCALING_NODES` (names with commas) takes precedence, then PBS's node file, then Slurm's list.
    """
    if named := environment.get("SCALING_NODES"):
        return [name for name in named.replace(",", " ").split() if name]
    if file := environment.get("PBS_NODEFILE"):
        return list(dict.fromkeys(Path(file).read_text().split()))
    return slurm.node_names(environment)


def start_by_torchrun(launch: Launch) -> Ranks:
    """Start a torchrun on each node that the point needs, in the order the nodes are listed.

    `$SCALING_RSH` is the remote shell (default `ssh -o BatchMode=yes`), called with a node's name
    and one line of shell. All nodes must see the checkout and the logs.

    Raises:
        LaunchError: the job has too few nodes, or the remote shell is missing.
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
    """The line of shell that starts the ranks of one node, from rank `first` on.

    The environment is passed in a file, since anybody on both machines can read the line.
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
    """Lines of shell that export the variables which a remote shell does not pass on."""
    return "".join(
        f"export {name}={shlex.quote(value)}\n"
        for name, value in sorted(environment.items())
        if name.startswith(_PASSED_ON) and name.isidentifier()
    )


class NodeRanks(ShellRanks):
    """The ranks of a point, observed through one remote shell per node."""

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
