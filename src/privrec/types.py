"""Type names for arrays and mappings that several modules use. No logic."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import jax

    Array: TypeAlias = jax.Array
else:
    # A phone needs only numpy: JAX is not imported at run time.
    Array = Any

IntArray: TypeAlias = npt.NDArray[np.int64]
CodeArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

Leaf: TypeAlias = Any
"""An array that is numpy's on the host and JAX's inside compiled code."""
Key: TypeAlias = Array
Params: TypeAlias = Mapping[str, Array]
"""Parameters by name. Names that start with `embed/` are tables of one row per value."""
