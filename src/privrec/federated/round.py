"""One federated round as the three functions where the network cuts: select, local, absorb."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np
import optax
from jax.sharding import SingleDeviceSharding

from privrec.federated.lanes import RunCohort
from privrec.federated.local import LocalTrain
from privrec.federated.pack import Packed
from privrec.models.api import ITEM_TABLE
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.privacy.release import Release
from privrec.types import Array, IntArray, Params

ServerOptimizer = Literal["plain", "momentum", "adam"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """All that the server carries from one round to the next."""

    round_index: int
    params: dict[str, Array]
    opt_state: optax.OptState
    clip_norm: float


Publish = Callable[[ServerState, Callable[[], CohortTotal]], Published]
"""(state, what adds up the cohort) -> what the round publishes.

It and its line in the ledger are on the disk when this returns. Where a kill came after that, the
resumed run gets the same again, and no cohort is asked a second time.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What one round did. All but `round_index` comes from raw client data: simulation only.

    `clients` is None for a round that was published before a kill and taken from the disk.
    `dropped` clients had an update that is not finite, `skipped` ones too little data to train on.
    """

    round_index: int
    clients: int | None
    loss: float | None
    clipped: int = 0
    dropped: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedAlgorithm:
    """Federated training as pure functions.

    `init(params)` returns the state before the first round, `select(state, population, rng)` the
    cohort, `local(params, catalogue, client)` one client's update, which `aggregator` bounds, and
    `absorb(state, published)` the next state. `aggregator.release` is what a round publishes, known
    before it is played.
    """

    aggregator: Aggregator
    init: Callable[[Params], ServerState]
    select: Callable[[ServerState, IntArray, np.random.Generator], IntArray]
    local: LocalTrain
    absorb: Callable[[ServerState, Published], ServerState]

    @property
    def release(self) -> Release:
        """What one round publishes."""
        return self.aggregator.release


def federated(
    *,
    local: LocalTrain,
    aggregator: Aggregator,
    server_optimizer: optax.GradientTransformation,
) -> FederatedAlgorithm:
    """Return federated Reptile: θ_0 steps along the mean update (Algorithms 1 and 2).

    The mean divides by the expected cohort, never by the number of replies. The server optimizer
    takes -mean(update) for a gradient; plain with rate α_2 is the paper's θ_0 + α_2 · mean(update).
    All that comes after the noise is post-processing.
    """
    sampling = aggregator.release.sampling

    def init(params: Params) -> ServerState:
        return ServerState(
            round_index=0,
            params=dict(params),
            opt_state=jax.jit(server_optimizer.init)(dict(params)),
            clip_norm=aggregator.clip_norm,
        )

    def select(state: ServerState, population: IntArray, rng: np.random.Generator) -> IntArray:
        del state  # A law may depend on the past; this one does not.
        return sampling.draw(population, rng)

    def step(
        params: Params, opt_state: optax.OptState, total: Params
    ) -> tuple[dict[str, Array], optax.OptState]:
        slope = jax.tree.map(lambda update: -update / sampling.cohort, dict(total))
        change, opt_state = server_optimizer.update(slope, opt_state, dict(params))
        return optax.apply_updates(dict(params), change), opt_state

    home = SingleDeviceSharding(jax.local_devices()[0])
    compiled_step = jax.jit(step, in_shardings=home, out_shardings=home)

    def absorb(state: ServerState, published: Published) -> ServerState:
        params, opt_state = compiled_step(state.params, state.opt_state, published.update)
        return ServerState(
            round_index=state.round_index + 1,
            params=params,
            opt_state=opt_state,
            clip_norm=published.clip_norm,
        )

    return FederatedAlgorithm(
        aggregator=aggregator, init=init, select=select, local=local, absorb=absorb
    )


def play_round(
    algorithm: FederatedAlgorithm,
    state: ServerState,
    *,
    population: IntArray,
    pack: Callable[[IntArray, int], Sequence[Packed]],
    run_cohort: RunCohort,
    draw: np.random.Generator,
    publish: Publish,
) -> tuple[ServerState, RoundReport]:
    """Return the state after one more round: select, local over the cohort, publish, absorb.

    `pack(positions, round_index)` builds the drawn clients' data; nobody else's is touched.
    """
    report = RoundReport(round_index=state.round_index, clients=None, loss=None)

    def add_up() -> CohortTotal:
        nonlocal report
        cohort = algorithm.select(state, population, draw)
        clients = pack(cohort, state.round_index)
        total = run_cohort(state.params, clients, state.clip_norm)
        skipped = sum(int(client.size) == 0 for client in clients)
        clipped, dropped = int(total.clipped), int(total.dropped)
        report = RoundReport(
            round_index=state.round_index,
            clients=len(cohort),
            loss=float(total.loss) / max(len(cohort) - dropped - skipped, 1),
            clipped=clipped,
            dropped=dropped,
            skipped=skipped,
        )
        return CohortTotal(total.update, len(cohort), clipped, dropped)

    after = algorithm.absorb(state, publish(state, add_up))
    return after, report


def server_optimizer(
    name: ServerOptimizer, learning_rate: float, item_rate: float = 1.0
) -> optax.GradientTransformation:
    """Return the server's optimizer; `momentum` is 0.9, Adam's settings are optax's own.

    `item_rate` scales its steps on the item vectors: at 0 they stay where they are.
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


def decayed(
    optimizer: optax.GradientTransformation, weight_decay: float
) -> optax.GradientTransformation:
    """Return the optimizer of the loss plus half of `weight_decay` times the squared length."""
    return optax.chain(optax.add_decayed_weights(weight_decay), optimizer)
