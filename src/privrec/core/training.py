"""The interface and compilation of local training, and the server's optimizer step."""

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
    """The arrays of one client that the loop over a cohort reads."""

    @property
    def rows(self) -> Leaf:
        """The catalogue positions of the client's items, padded."""

    @property
    def size(self) -> Leaf:
        """The number of instances without padding; 0 for a client without training data."""


class LocalResult(NamedTuple):
    """The result of local training.

    `update` is θ_τ - θ_0 by parameter name. For the table `embed/item`, `update` has only the rows
    of `client.rows`. `loss` is the mean loss over the steps; only the simulator uses it.
    """

    update: dict[str, Array]
    loss: Array


LocalTrain = Callable[[Params, Bags, Any], LocalResult]
"""(parameters, item features, one client's data as arrays) -> the result of local training."""


def jit_in_place(function: Callable[..., Any], **options: Any) -> Wrapped:
    """Return `jax.jit(function)` for local training, whose loop changes parameters in place.

    By default, the compiler ignores the order of operations and therefore copies most weights in
    every step. The option "region analysis" avoids these copies.
    """
    return jax.jit(function, compiler_options=_region_analysis(), **options)


@cache
def _region_analysis() -> dict[str, bool]:
    """Return the compiler option, or an empty dict if this compiler version does not have it."""
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
    """Return the server's step (params, opt_state, sum) -> (params, opt_state) (Algorithms 1, 2).

    The mean update is the sum divided by the expected cohort size. The number of replies would be
    published without noise. The optimizer uses -mean(update) as the gradient. "plain" with learning
    rate α_2 computes θ_0 + α_2 · mean(update), as in the paper.
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
    """Return the server's optimizer: momentum 0.9, or Adam with the default settings of optax.

    `item_rate` multiplies the steps on the item vectors; 0 leaves them unchanged.
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
    """Return `optimizer` with the L2 penalty weight_decay/2 · ‖parameters‖² added to the loss."""
    return optax.chain(optax.add_decayed_weights(weight_decay), optimizer)
