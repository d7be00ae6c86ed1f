"""What local training takes and returns and how it is compiled, the same for all algorithms.

The server's step along the mean of a published sum.
"""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import optax
from jax.sharding import SingleDeviceSharding
from jax.stages import Wrapped

from privrec.core.model import ITEM_TABLE
from privrec.data.schema import Bags
from privrec.types import Array, Leaf, Params, ServerOptimizer


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


Step = Callable[
    [Params, optax.OptState, Mapping[str, Leaf]], tuple[dict[str, Array], optax.OptState]
]


@lru_cache(maxsize=16)
def mean_step(optimizer: optax.GradientTransformation, cohort: int) -> Step:
    """Return (params, opt_state, sum) -> (params, opt_state) after one step (Algorithms 1, 2).

    The step follows the mean: the sum divided by the expected cohort size, never by the number of
    replies. The optimizer uses -mean(update) as the gradient; "plain" with rate α_2 is the paper's
    θ_0 + α_2 · mean(update). Everything after the noise is post-processing.
    """

    def step(
        params: Params, opt_state: optax.OptState, total: Params
    ) -> tuple[dict[str, Array], optax.OptState]:
        slope = jax.tree.map(lambda update: -update / cohort, dict(total))
        change, opt_state = optimizer.update(slope, opt_state, dict(params))
        return optax.apply_updates(dict(params), change), opt_state

    home = SingleDeviceSharding(jax.local_devices()[0])
    return jax.jit(step, in_shardings=home, out_shardings=home)


@lru_cache(maxsize=16)
def server_optimizer(
    name: ServerOptimizer, learning_rate: float, item_rate: float = 1.0
) -> optax.GradientTransformation:
    """Return the server's optimizer; `momentum` is 0.9, Adam's settings are optax's own.

    `item_rate` multiplies its steps on the item vectors; 0 leaves them unchanged.
    """
    if name == "adam":
        chosen = optax.adam(learning_rate)
    else:
        chosen = optax.sgd(learning_rate, momentum=0.9 if name == "momentum" else None)
    if item_rate == 1:
        return chosen

    def slowed(change: Params, params: Params | None) -> dict[str, Array]:
        return {**change, ITEM_TABLE: item_rate * change[ITEM_TABLE]}

    return optax.chain(chosen, optax.stateless(slowed))


@lru_cache(maxsize=16)
def decayed(
    optimizer: optax.GradientTransformation, weight_decay: float
) -> optax.GradientTransformation:
    """Return the optimizer for the loss plus weight_decay/2 · ‖parameters‖²."""
    return optax.chain(optax.add_decayed_weights(weight_decay), optimizer)
