"""GEMM rates of each precision, and the bytes it costs: casts, weight copies, saved inputs."""

from collections.abc import Mapping

import numpy as np

from scaling.arrays import Flags, Floats, Strings
from scaling.cluster.hardware import Gpu
from scaling.predict.read.stack_facts import Stack

# Precisions of the layers' GEMMs only; attention and head then run in bf16.
LOW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")

# Bytes moved to cast one element: read for its scale (fp8 takes the scale from earlier steps), read
# to be cast, written twice, by rows and by columns.
_CAST_BYTES: Mapping[str, float] = {"fp8": 4.0, "mxfp8": 4.0, "nvfp4": 5.0}
# Bytes of a weight's two copies beside its 16 bits: by rows for forward, by columns for backward.
_COPY_BYTES: Mapping[str, float] = {"fp8": 2.0, "mxfp8": 2.0, "nvfp4": 1.125}
# Bytes of a saved activation element that only a GEMM's backward reads: in the GEMM's precision.
_SAVED_BYTES: Mapping[str, float] = {"fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5625}
# Bytes this project's engines move per element (scaling/train/kernels/fp8.py), eager: 2 read for
# the scale, 2 read and 2 written to apply it, 2 read and 1 written to cast. Backward does the same
# again and transposes (2). Compiled: 2 read for the scale, 2 read and 1 written, both ways.
_OWN_CAST_BYTES, _OWN_CAST_BYTES_COMPILED = 9.0 + 9.0 + 2.0, 5.0 + 5.0


def low_precision_costs(precision: Strings, compiled: Flags, stack: Stack) -> dict[str, Floats]:
    """Bytes per element of casts, weight copies and saved inputs, (n,) each, by Features' names.

    With `low_precision_weights` the 8-bit copies replace the 16-bit weight. A stack that
    `casts_as_read` keeps no copy, and everything in 16 bits. Compiled it keeps nothing that is
    cast: Inductor computes norms and products of gates again.
    """

    def by_precision(table: Mapping[str, float], default: float) -> Floats:
        return np.array([table.get(name, default) for name in precision.tolist()], np.float64)

    if stack.casts_as_read:
        low = np.isin(precision, LOW_PRECISIONS)
        moved = np.where(compiled, _OWN_CAST_BYTES_COMPILED, _OWN_CAST_BYTES)
        return {
            "cast_bytes": np.where(low, moved, 0.0),
            "copy_bytes": np.zeros(len(precision)),
            "saved_bytes": np.where(compiled & low, 0.0, 2.0),
        }
    copies = by_precision(_COPY_BYTES, 0.0)
    replaced = stack.low_precision_weights & np.isin(precision, ["fp8", "mxfp8"])
    return {
        "cast_bytes": by_precision(_CAST_BYTES, 0.0),
        "copy_bytes": np.where(replaced, copies - 2.0, copies),
        "saved_bytes": by_precision(_SAVED_BYTES, 2.0),
    }


def rates(precision: Strings, gpu: Gpu) -> dict[str, Floats]:
    """FLOP/s of each row's precision, (n,) each: sustained outside and inside GEMMs, and stated."""
    by_name = {
        name: (
            gpu.sustained("bf16" if name in LOW_PRECISIONS else name),
            gpu.sustained(name),
            gpu.peaks.get(name),
        )
        for name in set(precision.tolist())
    }
    table = np.array([by_name[name] for name in precision.tolist()], dtype=np.float64).reshape(
        -1, 3
    )
    return {"peak": table[:, 0], "gemm_peak": table[:, 1], "stated_peak": table[:, 2]}
