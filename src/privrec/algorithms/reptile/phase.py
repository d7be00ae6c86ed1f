"""Federated Reptile: devices train from the server's parameters, the server averages updates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import optax

from privrec.core.local import LocalTrain, Packed
from privrec.core.optimize import mean_step
from privrec.core.phase import Phase, ServerState
from privrec.data.schema import Bags
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.simulate.lanes import cohort_runner, warm_up
from privrec.types import IntArray, Params

PackPeople = Callable[[IntArray, int], Sequence[Packed]]
"""(people, round_index) -> what each of their devices trains on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHalf:
    """The device side: `pack` builds training data, `local` trains; `examples`: one per shape."""

    pack: PackPeople
    local: LocalTrain
    catalogue: Bags
    examples: Callable[[], Sequence[Packed]]


def reptile(
    device: DeviceHalf,
    *,
    name: str,
    first: int,
    rounds: int,
    population: IntArray,
    aggregator: Aggregator,
    optimizer: optax.GradientTransformation,
    start: Callable[[Params | None], Params],
) -> Phase:
    """Return the rounds of Algorithms 1 and 2, from the parameters that `start(before)` returns."""
    run_cohort = cohort_runner(device.local, aggregator.clip, device.catalogue)
    step = mean_step(optimizer, aggregator.release.sampling.cohort)

    def begin(before: Params | None) -> ServerState:
        params = dict(start(before))
        return ServerState(
            round_index=first,
            params=params,
            opt_state=jax.jit(optimizer.init)(params),
            clip_norm=aggregator.clip_norm,
        )

    def add_up(told: Params, cohort: IntArray, round_index: int, clip_norm: float) -> CohortTotal:
        clients = device.pack(cohort, round_index)
        total = run_cohort(told, clients, clip_norm)
        return CohortTotal(
            total.update,
            clipped=int(total.clipped),
            dropped=int(total.dropped),
            skipped=sum(int(client.size) == 0 for client in clients),
            loss=float(total.loss),
        )

    def absorb(state: ServerState, published: Published) -> ServerState:
        params, opt_state = step(state.params, state.opt_state, published.update)
        return replace(state, params=params, opt_state=opt_state)

    return Phase(
        name=name,
        rounds=rounds,
        first=first,
        population=population,
        aggregator=aggregator,
        start=begin,
        tell=lambda state: state.params,
        add_up=add_up,
        absorb=absorb,
        prepare=lambda params: warm_up(run_cohort, params, device.examples()),
    )
