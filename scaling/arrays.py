"""Types of arrays with one value per point or row, (n,)."""

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Flags = npt.NDArray[np.bool_]
Strings = npt.NDArray[np.object_]
Column = Floats | Flags | Strings
