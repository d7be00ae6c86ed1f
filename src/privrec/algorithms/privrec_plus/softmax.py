"""PrivRec+'s last phase: rounds of federated training on top of the closed form."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np
import numpy.typing as npt

from privrec.algorithms.privrec_plus.layout import Layout
from privrec.algorithms.privrec_plus.learn import (
    Bounded,
    Histories,
    bounded_sum,
    fresh,
    hide_half,
    histories,
)
from privrec.algorithms.privrec_plus.scoring import closed_form, learned_of
from privrec.algorithms.two_stage.phases import TRAIN
from privrec.core.optimize import decayed, mean_step, server_optimizer
from privrec.core.phase import Phase, ServerState
from privrec.data.federation import Federation, chunks
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.seeds import key
from privrec.settings import RunConfig
from privrec.simulate.cost import DeviceCost, milliseconds, usual_person
from privrec.simulate.lanes import map_clients
from privrec.types import IntArray, Params

_TOGETHER = 128
"""How many clients are in one compiled call. Chosen by hand; no measurement is on record."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Devices:
    """The device side: hide about half of the own lines, take one step on the hidden likes."""

    config: RunConfig
    federation: Federation
    layout: Layout

    def packed(
        self, params: Params, people: IntArray, round_index: int, size: int
    ) -> Iterator[Histories]:
        """Yield the packed data of some people, `size` people at a time."""
        tower = {name: np.asarray(value) for name, value in params.items()}
        score = closed_form(tower, self.layout)
        for part in chunks(people, size):
            clients = self.federation.take(part)
            shown, hidden = hide_half(
                clients, self.layout, seed=self.config.seed, round_index=round_index
            )
            yield histories(shown, hidden, score(shown), size)


def softmax_phase(
    config: RunConfig,
    federation: Federation,
    population: IntArray,
    aggregator: Aggregator,
    *,
    layout: Layout,
    first: int,
    kept: Callable[[Params | None], dict[str, jax.Array]],
) -> Phase:
    """Return the rounds of training on top of the closed form that `kept(before)` returns.

    A client takes one gradient step on its hidden likes. The server steps along the mean.
    """
    chosen = server_optimizer(config.server_optimizer, config.server_lr)
    optimizer = decayed(chosen, config.weight_decay)
    step = mean_step(optimizer, aggregator.release.sampling.cohort)
    compiled = jax.jit(partial(bounded_sum, layout=layout))
    devices = _Devices(config=config, federation=federation, layout=layout)

    def start(before: Params | None) -> ServerState:
        learned = fresh(
            key(config.seed, 0, "init"), layout, config.embedding_size, config.embedding_scale
        )
        return ServerState(
            round_index=first,
            params={**kept(before), **learned},
            opt_state=jax.jit(optimizer.init)(learned),
            clip_norm=aggregator.clip_norm,
        )

    def add_up(told: Params, cohort: IntArray, round_index: int, clip_norm: float) -> CohortTotal:
        batches = list(devices.packed(told, cohort, round_index, _TOGETHER)) or [_nobody(layout)]
        total = _summed(compiled, learned_of(told), batches, clip_norm)
        return CohortTotal(
            total.update,
            clipped=int(total.clipped),
            dropped=int(total.dropped),
            skipped=len(cohort) - sum(int((batch.target.sum(1) > 0).sum()) for batch in batches),
            loss=float(total.loss),
        )

    def absorb(state: ServerState, published: Published) -> ServerState:
        learned, opt_state = step(learned_of(state.params), state.opt_state, published.update)
        return replace(state, params={**state.params, **learned}, opt_state=opt_state)

    return Phase(
        name=TRAIN,
        rounds=config.rounds,
        first=first,
        population=population,
        aggregator=aggregator,
        start=start,
        tell=lambda state: state.params,
        add_up=add_up,
        absorb=absorb,
        phone=partial(_phone, devices, population, first, compiled),
    )


def _summed(
    compiled: Callable[..., Bounded], learned: Params, batches: list[Histories], clip_norm: float
) -> Bounded:
    """Return the sum over all batches; batches run in parallel on the cores."""
    bound = np.float32(clip_norm)

    def local(params: Params, _: object, batch: Histories) -> Bounded:
        return compiled(params, batch=batch, clip_norm=bound)

    parts = map_clients(local, learned, {}, batches)
    home = jax.local_devices()[0]
    whole: Bounded = jax.tree.map(lambda *leaves: sum(jax.device_put(leaves, home)), *parts)
    return whole


def _phone(
    devices: _Devices,
    population: IntArray,
    first: int,
    compiled: Callable[..., Bounded],
    params: Params,
) -> DeviceCost:
    """Return what one round costs one device."""
    layout, size = devices.layout, devices.config.embedding_size
    (batch,) = devices.packed(params, usual_person(devices.federation, population), first, 1)
    entries, n = int((batch.row > 0).sum()), layout.n_items
    learned, width = learned_of(params), params["history/like"].shape[1]
    bound = np.float32(devices.config.clip_norm)

    def train_once() -> None:
        compiled(learned, batch=batch, clip_norm=bound).loss.block_until_ready()

    return DeviceCost(
        what="train round",
        bytes_down=4 * sum(int(value.size) for value in params.values()),
        # All output vectors change. Of the input vectors, only those of the row's columns change.
        bytes_up=4 * (n * (size + 1) + 1 + entries * (size + 1)),
        multiply_adds=3 * n * size + 2 * entries * size + (n + entries) * width,
        milliseconds=milliseconds(train_once),
    )


def _nobody(layout: Layout) -> Histories:
    """Return an empty cohort. Poisson sampling may draw one; its sum is 0 and still gets noise."""
    none: npt.NDArray[np.float32] = np.zeros((_TOGETHER, layout.n_items), np.float32)
    return Histories(np.zeros((_TOGETHER, layout.size), np.float32), none, none)
