"""What local training takes and returns, the same for all algorithms."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

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
