"""What local training takes and returns and how it is compiled, the same for all algorithms."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

import jax
from jax.stages import Wrapped

from privrec.data.schema import Bags
from privrec.types import Array, Leaf, Params


class Packed(Protocol):
    """What the loop over a cohort needs to know of a client's data: its item rows and its size."""

    @property
    def rows(self) -> Leaf:
        """The catalogue positions of the rows that the client touches, padded."""

    @property
    def size(self) -> Leaf:
        """How many instances are real; 0 for a client that has nothing to train on."""


class LocalResult(NamedTuple):
    """What local training returns.

    `update` is θ_τ - θ_0 by parameter name, where `embed/item` has only the rows of
    `client.rows`. `loss` is the mean loss over the steps; only the simulator uses it.
    """

    update: dict[str, Array]
    loss: Array


LocalTrain = Callable[[Params, Bags, Any], LocalResult]
"""(parameters, catalogue, one client's packed data)"""


def jit_in_place(function: Callable[..., Any], **options: Any) -> Wrapped:
    """Return `jax.jit(function)` for local training: its loop changes parameters in their place.

    By default the compiler copies most of the weights in every step, because it looks at the data
    flow and not at the order of operations. Its region analysis sees that no copy is needed.
    """
    return jax.jit(function, compiler_options=_region_analysis(), **options)


@cache
def _region_analysis() -> dict[str, bool]:
    """Return the compiler's option, or nothing if this version of the compiler has none."""
    option = {"xla_cpu_copy_insertion_use_region_analysis": True}
    try:
        jax.jit(lambda: 0, compiler_options=option).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return option
