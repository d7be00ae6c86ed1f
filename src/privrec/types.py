"""Type names that several modules use. No logic."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

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
F32: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

Leaf: TypeAlias = Any
"""An array that is numpy's on the host and JAX's inside compiled code."""
Key: TypeAlias = Array
Params: TypeAlias = Mapping[str, Array]
"""Parameters by name. A name that starts with `embed/` is a table: one row per item or value."""

OnProgress: TypeAlias = Callable[[str, int, int], None]
"""A callback for progress; its arguments are (what is being done, units done, units in all)."""

Halving = Literal["random", "time"]
"""How a test person's interactions are halved: at random, or by time (earlier half first)."""
ProtocolName = Literal["halves", "leave-last", "files"]
"""Who trains, what a device keeps and what is tested (docs/protocols.md)."""
Candidates = Literal["unseen", "not-kept"]
"""Which items a tested item is ranked among."""
MechanismName = Literal["none", "gaussian", "laplace"]
"""The distribution of the noise on a sum."""
NoiseKind = Literal["secure", "seeded"]
"""Where noise comes from: the operating system, or the run's seed."""
Law = Literal["poisson", "fixed"]
"""How a cohort is drawn: each person with the same probability, or a fixed number of people."""
ServerOptimizer = Literal["plain", "momentum", "adam"]
"""The server's optimizer, which applies the mean update."""
Activation = Literal["relu", "sigmoid", "tanh"]
Target = Literal["implicit", "rating"]
"""What a model predicts: whether a person likes an item, or the rating itself."""
Norm = Literal["l1", "l2"]
"""The norm in which one client's update is bounded."""
