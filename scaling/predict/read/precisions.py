"""What a precision costs and gives: rates, casts, copies of weights and what is kept of inputs."""

from collections.abc import Mapping

import numpy as np

from scaling.cluster.hardware import Gpu
from scaling.foreign.arrays import Floats, Strings
from scaling.predict.read.stack_facts import Stack

# FLOPs outside the layers' GEMMs (attention, head) run in bf16 where those run in 8 or 4 bits.
LOW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")

# What brings an element to low precision moves: it is read once for its scale (not with fp8's
# scale of the last steps), once more to be cast, and written twice, as rows and as columns.
_CAST_BYTES: Mapping[str, float] = {"fp8": 4.0, "mxfp8": 4.0, "nvfp4": 5.0}
# A weight's two copies beside its 16 bits: by rows for forward, by columns for backward.
_COPY_BYTES: Mapping[str, float] = {"fp8": 2.0, "mxfp8": 2.0, "nvfp4": 1.125}
# An element of an activation that only a GEMM's backward reads is kept in the GEMM's precision.
_SAVED_BYTES: Mapping[str, float] = {"fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5625}
# This project's engine (scaling/train/kernels/fp8.py): 2 bytes are read for the scale, 2
# read and 2 written to apply it, 2 read and 1 written to cast it; for forward, and again for
# backward, which then turns rows into columns.
_CAST_AS_READ = 9.0 + 9.0 + 2.0


def low_precision_costs(precision: Strings, stack: Stack) -> dict[str, Floats]:
    """Bytes of casts, of copies of weights and of saved inputs, (n,) each, by Features' names.

    A stack with `low_precision_weights` holds the copies of fp8 and mxfp8 in the place of 16 bits.
    One that `casts_as_read` keeps 16 bits of everything and no copy.
    """

    def of(table: Mapping[str, float], other: float) -> Floats:
        return np.array([table.get(name, other) for name in precision.tolist()], dtype=np.float64)

    if stack.casts_as_read:
        low = np.isin(precision, LOW_PRECISIONS)
        nothing = np.zeros(len(precision))
        return {
            "cast_bytes": np.where(low, _CAST_AS_READ, 0.0),
            "copy_bytes": nothing,
            "saved_bytes": nothing + 2.0,
        }
    copies = of(_COPY_BYTES, 0.0)
    instead = stack.low_precision_weights & np.isin(precision, ["fp8", "mxfp8"])
    return {
        "cast_bytes": of(_CAST_BYTES, 0.0),
        "copy_bytes": np.where(instead, copies - 2.0, copies),
        "saved_bytes": of(_SAVED_BYTES, 2.0),
    }


def rates(precision: Strings, gpu: Gpu) -> dict[str, Floats]:
    """FLOP/s of the row's precision: sustained outside and inside the layers' GEMMs, and stated."""
    by_name = {
        name: (
            gpu.sustained("bf16" if name in LOW_PRECISIONS else name),
            gpu.sustained(name),
            gpu.peak(name),
        )
        for name in set(precision.tolist())
    }
    table = np.array([by_name[name] for name in precision.tolist()], dtype=np.float64).reshape(
        -1, 3
    )
    return {"peak": table[:, 0], "gemm_peak": table[:, 1], "stated_peak": table[:, 2]}
