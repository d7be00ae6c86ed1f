"""One federated round as the three functions where the network cuts: select, local, absorb."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np
import optax
from jax.sharding import SingleDeviceSharding

from privrec.federated.cohort import CohortSampler
from privrec.federated.lanes import CohortSum, RunCohort
from privrec.federated.local import LocalTrain
from privrec.federated.pack import PackedClient
from privrec.models.api import Recommender
from privrec.seeds import rng
from privrec.types import Array, IntArray, Key, Params

ServerOptimizer = Literal["plain", "momentum", "adam"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """All that the server carries from one round to the next."""

    round_index: int
    params: dict[str, Array]
    opt_state: optax.OptState


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What one round did. `loss` comes from raw client data: simulation only."""

    round_index: int
    clients: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedAlgorithm:
    """Federated training as pure functions.

    `select(state, population, rng)` returns the cohort, `local(params, catalogue, client)` one
    client's update, `absorb(state, sum)` the next state from the sum of the cohort's updates.
    """

    init: Callable[[Key], ServerState]
    select: Callable[[ServerState, IntArray, np.random.Generator], IntArray]
    local: LocalTrain
    absorb: Callable[[ServerState, CohortSum], ServerState]


def federated(
    *,
    recommender: Recommender,
    local: LocalTrain,
    sampler: CohortSampler,
    server_optimizer: optax.GradientTransformation,
) -> FederatedAlgorithm:
    """Return federated Reptile: θ_0 steps along the mean update (Algorithm 1, lines 2–8).

    The mean divides by the expected cohort, never by the number of replies. The server optimizer
    takes -mean(update) for a gradient; plain with rate α_2 is the paper's θ_0 + α_2 · mean(update).
    """

    def init(key: Key) -> ServerState:
        params = jax.jit(recommender.init)(key)
        opt_state = jax.jit(server_optimizer.init)(params)
        return ServerState(round_index=0, params=params, opt_state=opt_state)

    def select(state: ServerState, population: IntArray, rng: np.random.Generator) -> IntArray:
        del state  # A law may depend on the past; this one does not.
        return sampler.sample(population, rng)

    def step(
        params: Params, opt_state: optax.OptState, total: Params
    ) -> tuple[dict[str, Array], optax.OptState]:
        slope = jax.tree.map(lambda update: -update / sampler.expected_cohort, dict(total))
        change, opt_state = server_optimizer.update(slope, opt_state, dict(params))
        return optax.apply_updates(dict(params), change), opt_state

    home = SingleDeviceSharding(jax.local_devices()[0])
    compiled_step = jax.jit(step, in_shardings=home, out_shardings=home)

    def absorb(state: ServerState, total: CohortSum) -> ServerState:
        params, opt_state = compiled_step(state.params, state.opt_state, total.update)
        return ServerState(round_index=state.round_index + 1, params=params, opt_state=opt_state)

    return FederatedAlgorithm(init=init, select=select, local=local, absorb=absorb)


def play_round(
    algorithm: FederatedAlgorithm,
    state: ServerState,
    *,
    population: IntArray,
    pack: Callable[[IntArray, int], list[PackedClient]],
    run_cohort: RunCohort,
    seed: int,
) -> tuple[ServerState, RoundReport]:
    """Return the state after one more round: select, local over the cohort, absorb.

    `pack(positions, round_index)` builds the drawn clients' data; nobody else's is touched.
    """
    cohort = algorithm.select(state, population, rng(seed, state.round_index, "cohort"))
    total = run_cohort(state.params, pack(cohort, state.round_index))
    after = algorithm.absorb(state, total)
    report = RoundReport(
        round_index=state.round_index,
        clients=len(cohort),
        loss=float(total.loss) / max(len(cohort), 1),
    )
    return after, report


def server_optimizer(name: ServerOptimizer, learning_rate: float) -> optax.GradientTransformation:
    """Return the server's optimizer; `momentum` is 0.9, Adam's settings are optax's own."""
    if name == "adam":
        return optax.adam(learning_rate)
    return optax.sgd(learning_rate, momentum=0.9 if name == "momentum" else None)
