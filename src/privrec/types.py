"""Names for the arrays and mappings that travel between modules. No logic."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
CodeArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

Array: TypeAlias = jax.Array
Leaf: TypeAlias = Any
"""An array that is numpy's on the host and JAX's inside compiled code."""
Key: TypeAlias = jax.Array
Params: TypeAlias = Mapping[str, jax.Array]
"""Parameters by name. Names that start with `embed/` are tables of one row per value."""
