"""PrivRec+'s last phase: rounds of federated training on top of the closed form."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

import jax
import numpy as np
import numpy.typing as npt

from privrec.algorithms.privrec_plus.layout import LIKES, Layout
from privrec.algorithms.privrec_plus.learn import TOGETHER, Bounded, Histories, bounded_sum, fresh
from privrec.algorithms.privrec_plus.moments import SparseRows
from privrec.algorithms.privrec_plus.rows import merged_items, rows_of
from privrec.algorithms.privrec_plus.scoring import closed_form, learned_names, learned_of
from privrec.algorithms.privrec_plus.settings import PlusSettings
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.optimize import decayed, mean_step, server_optimizer
from privrec.core.phase import TRAIN, Cohort, DeviceHalf, Phase, ServerState, Told
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.seeds import client_words, key
from privrec.simulate.cost import DeviceCost, milliseconds, usual_person
from privrec.simulate.lanes import map_clients
from privrec.types import IntArray, Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Devices:
    """The device side: hide about half of the own lines, take one step on the hidden likes."""

    settings: PlusSettings
    layout: Layout

    def packed(
        self, told: Told, cohort: Cohort, round_index: int, size: int
    ) -> Iterator[Histories]:
        """Yield the packed data of some people, `size` people at a time."""
        score = self._scorer(told)
        for people in cohort.parts(size):
            yield self._halves(people, round_index, score, size)

    def contribute(self, told: Told, person: Clients, round_index: int) -> Contribution:
        """Return one person's update: one step on what her device hid from itself."""
        batch = self._halves(person, round_index, self._scorer(told), 1)
        found = _compiled(self.layout)(learned_of(told), batch=batch, clip_norm=np.float32(np.inf))
        update = {name: np.asarray(leaf) for name, leaf in found.update.items()}
        ends = np.cumsum(self.layout.sizes)
        rows = {}
        for name, end, size in zip(
            learned_names(self.layout), ends, self.layout.sizes, strict=True
        ):
            ids = np.flatnonzero(batch.row[0, end - size : end])
            rows[name] = TouchedRows(ids, update.pop(name)[ids], size)
        return Contribution(dense=update, rows=rows)

    def kernel(self, told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        """Return the bounded sum of a cohort, `TOGETHER` people in one compiled call."""
        batches = list(self.packed(told, cohort, round_index, TOGETHER)) or [_nobody(self.layout)]
        total = _summed(_compiled(self.layout), learned_of(told), batches, clip_norm)
        answered = sum(int((batch.target.sum(1) > 0).sum()) for batch in batches)
        return CohortTotal(
            total.update,
            clipped=int(total.clipped),
            dropped=int(total.dropped),
            skipped=len(cohort.people) - answered,
            loss=float(total.loss),
        )

    def _scorer(self, told: Told) -> Callable[[SparseRows], npt.NDArray[np.float32]]:
        tower = {name: np.asarray(value) for name, value in told.items()}
        return closed_form(tower, self.layout)

    def _halves(
        self,
        clients: Clients,
        round_index: int,
        score: Callable[[SparseRows], npt.NDArray[np.float32]],
        size: int,
    ) -> Histories:
        shown, hidden = hide_half(
            clients, self.layout, seed=self.settings.seed, round_index=round_index
        )
        return histories(shown, hidden, score(shown), size)


@cache
def _compiled(layout: Layout) -> Callable[..., Bounded]:
    return jax.jit(partial(bounded_sum, layout=layout))


def softmax_phase(
    settings: PlusSettings,
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
    chosen = server_optimizer(settings.server_optimizer, settings.server_lr)
    optimizer = decayed(chosen, settings.weight_decay)
    step = mean_step(optimizer, aggregator.release.sampling.cohort)
    devices = _Devices(settings=settings, layout=layout)

    def start(before: Params | None) -> ServerState:
        learned = fresh(
            key(settings.seed, 0, "init"), layout, settings.embedding_size, settings.embedding_scale
        )
        return ServerState(
            round_index=first,
            params={**kept(before), **learned},
            opt_state=jax.jit(optimizer.init)(learned),
            clip_norm=aggregator.clip_norm,
        )

    def absorb(state: ServerState, published: Published) -> ServerState:
        learned, opt_state = step(learned_of(state.params), state.opt_state, published.update)
        return replace(state, params={**state.params, **learned}, opt_state=opt_state)

    def cost(params: Params) -> DeviceCost:
        usual = Cohort(usual_person(federation, population), federation.take)
        (batch,) = devices.packed(params, usual, first, 1)
        return _cost(params, layout, batch, settings)

    return Phase(
        name=TRAIN,
        rounds=settings.rounds,
        first=first,
        population=population,
        aggregator=aggregator,
        device=DeviceHalf(contribute=devices.contribute, kernel=devices.kernel, cost=cost),
        start=start,
        tell=lambda state: state.params,
        absorb=absorb,
    )


def hide_half(
    clients: Clients, layout: Layout, *, seed: int, round_index: int
) -> tuple[SparseRows, SparseRows]:
    """Return each client's row from the lines that it keeps, and its hidden likes.

    The client hides each line with probability ½, by its own random numbers. A hidden like whose
    item also occurs in a kept line is left out.
    """
    place = np.arange(len(clients.owner)) - clients.offsets[clients.owner]
    words = client_words(seed, round_index, "hide", clients.ids[clients.owner], place)
    kept = (words >> np.uint64(63)).astype(np.bool_)
    n = layout.n_items
    shown = rows_of(clients.keep(kept), layout)
    hidden = rows_of(clients.keep(~kept & clients.liked), Layout(n_items=n, dislikes=False))
    known = merged_items(shown, layout, 1.0)
    return shown, SparseRows(hidden - hidden.multiply(known > 0))


def histories(
    shown: SparseRows, hidden: SparseRows, score: npt.NDArray[np.float32], size: int
) -> Histories:
    """Return the clients as dense arrays, padded with empty clients to `size` clients."""
    target = hidden.toarray().astype(np.float32)
    target /= np.maximum(target.sum(1, keepdims=True), 1)
    return Histories(
        row=_padded(shown.toarray(), size),
        score=_padded(score, size),
        target=_padded(target, size),
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


def _cost(params: Params, layout: Layout, batch: Histories, settings: PlusSettings) -> DeviceCost:
    """Return what one round costs one device."""
    size, n = settings.embedding_size, layout.n_items
    entries = int((batch.row > 0).sum())
    learned, width = learned_of(params), params[LIKES].shape[1]
    bound = np.float32(settings.clip_norm)

    def train_once() -> None:
        _compiled(layout)(learned, batch=batch, clip_norm=bound).loss.block_until_ready()

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
    none: npt.NDArray[np.float32] = np.zeros((TOGETHER, layout.n_items), np.float32)
    return Histories(np.zeros((TOGETHER, layout.size), np.float32), none, none)


def _padded(array: npt.NDArray[np.float32], size: int) -> npt.NDArray[np.float32]:
    out = np.zeros((size, array.shape[1]), np.float32)
    out[: len(array)] = array
    return out
