"""The server's step along the mean of a published sum."""

from collections.abc import Callable
from functools import lru_cache

import jax
import optax
from jax.sharding import SingleDeviceSharding

from privrec.models.api import ITEM_TABLE
from privrec.types import Array, Leaf, Params, ServerOptimizer

Step = Callable[[Params, optax.OptState, dict[str, Leaf]], tuple[dict[str, Array], optax.OptState]]


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
