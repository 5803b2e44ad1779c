"""Which points of a size are measured: chosen by predictions, by who may be the best, by nodes."""

from pathlib import Path

from scaling.errors import InputError
from scaling.record.files import write_table
from scaling.run import contend, elsewhere, guided
from scaling.run.sweep import Sweep
from scaling.study.grid import Plan
from scaling.study.study import Study


def choose(
    study: Study,
    planned: Plan,
    world_size: int,
    study_dir: Path,
    out: Path,
    *,
    repeat: int = 0,
    turn: int = 0,
    on_others: bool = False,
) -> str:
    """Choose points of one size and write them; a sentence about it, and about slow nodes.

    A point that has a row already stays chosen.

    Args:
        study: of the points.
        planned: its points.
        world_size: the size.
        study_dir: its folder.
        out: where the table goes.
        repeat: of contenders, see `contend`; 0: none.
        turn: 0, or the so manieth time that a size is chosen for again, see `guided`.
        on_others: what ran on slow nodes only, see `elsewhere`.

    Raises:
        InputError: the study does not ask for such a choice, or has no point of that size.
    """
    sizes = sorted({point.world_size for point in planned.points})
    if world_size not in sizes:
        has = ", ".join(map(str, sizes))
        raise InputError(f"{study.path}: world_size={world_size}: the study has {has}")
    sweep = Sweep(study, planned.points, study_dir)
    if repeat:
        table, sentence, slow = contend.choose(sweep, world_size, repeat)
    elif on_others:
        table, sentence, slow = elsewhere.choose(sweep, world_size)
    else:
        table, sentence = guided.choose(sweep, world_size, turn)
        slow = sweep.slow_hosts()
    write_table(out, table)
    left_out = "".join(f"; {host} is left out: {reason}" for host, reason in slow.items())
    which = f", repeat {repeat}" if repeat else ""
    return f"world_size={world_size}{which}: {sentence}{left_out}"
