"""Kinds of scaling: what stays fixed while GPUs are added."""

from typing import Literal

# strong: the global batch; weak: the batch of one GPU
StudyKind = Literal["strong", "weak"]
