"""PrivRec+'s last phase: rounds of federated gradient training after the closed form.

A client hides about half of its lines and takes one gradient step. The loss is the mean of -log
softmax over the hidden likes. The softmax excludes the items in the other half of the lines. The
gradient is written by hand, and every part of it is an outer product. So the norm of a client's
gradient is computed without building the gradient, and a cohort's clipped sum is two matrix
products.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from privrec.algorithms.privrec_plus.opinion import SECOND, SECOND_WEIGHT
from privrec.algorithms.privrec_plus.rows import SparseRows, merged_items, rows_of
from privrec.algorithms.privrec_plus.scoring import (
    LEARNED_BIAS,
    LEARNED_OUT,
    LEARNED_TRUST,
    LIKES,
    Layout,
    closed_form,
    forward,
    learned_names,
    learned_of,
)
from privrec.algorithms.privrec_plus.settings import TOGETHER, SumsSettings
from privrec.core.bound import shrink
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.phase import TRAIN, Cohort, DeviceHalf, Phase, ServerState, Told
from privrec.core.training import decayed, mean_step, server_optimizer
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.seeds import client_words, key
from privrec.simulate.cost import DeviceCost, milliseconds, usual_person
from privrec.simulate.lanes import map_clients
from privrec.types import Array, IntArray, Key, Leaf, Params

_TRUST = 2.0
"""The initial weight of the closed form's log score in the logits, which the rounds then train.
Chosen by hand: a smaller weight made the ranking worse (docs/results.md)."""
_HIDDEN_ITEM = -1e9
"""The logit of an item that the softmax excludes; its softmax is then 0 in float32."""


class Histories(NamedTuple):
    """The data of C clients: `row` (C, columns), `score` (C, n_items), `target` (C, n_items).

    `row` has the kept lines, `score` the closed-form scores, `target` the hidden likes. Each row of
    `target` sums to 1, or to 0 for a client without a hidden like.
    """

    row: Leaf
    score: Leaf
    target: Leaf


def fresh(key: Key, layout: Layout, size: int, scale: float) -> dict[str, Array]:
    """Return the initial values of the parameters that the rounds train."""
    shapes = {
        name: (rows, size) for name, rows in zip(learned_names(layout), layout.sizes, strict=True)
    }
    shapes[LEARNED_OUT] = (layout.n_items, size)
    keys = jax.random.split(key, len(shapes))
    drawn = {
        name: scale * jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return {**drawn, LEARNED_BIAS: jnp.zeros(layout.n_items), LEARNED_TRUST: jnp.asarray(_TRUST)}


def logits_of(params: Mapping[str, Leaf], layout: Layout, row: Leaf, score: Leaf) -> Leaf:
    """Return the logits of all items for C people: (C, columns), (C, n_items) -> (C, n_items)."""
    return forward(params, layout, row, score, jnp).logits


def losses_of(params: Params, layout: Layout, batch: Histories) -> Array:
    """Return each client's loss, shape (C,)."""
    return _losses(
        _visible(logits_of(params, layout, batch.row, batch.score), layout, batch), batch
    )


def bounded_sum(params: Params, layout: Layout, batch: Histories, clip_norm: Leaf) -> CohortTotal:
    """Return the sum over clients of update · min(1, S/‖update‖), where S is `clip_norm`.

    The update is minus the gradient of the client's loss. Let δ = softmax - target, t = tanh(h),
    and g the derivative of the loss with respect to row · vectors. The gradient has the parts δ ⊗
    t, δ, δ · log score and row ⊗ g. So its squared norm is ‖δ‖²(1 + ‖t‖²) + (δ · log score)² +
    ‖row‖²‖g‖².
    """
    log_score, pooled, root, logits = forward(params, layout, batch.row, batch.score, jnp)
    seen = _visible(logits, layout, batch)
    has_target = batch.target.sum(1, keepdims=True)
    slope = jax.nn.softmax(seen) * has_target - batch.target
    trust = (slope * log_score).sum(1)
    inner = slope @ params[LEARNED_OUT] * (1 - pooled**2) / root
    lengths = jnp.sqrt(
        _squares(slope) * (1 + _squares(pooled)) + trust**2 + _squares(batch.row) * _squares(inner)
    )
    weight, was_long, finite = shrink(lengths, clip_norm, jnp)
    safe = jnp.where(finite[:, None], slope, 0.0) * weight[:, None]
    inner = jnp.where(finite[:, None], inner, 0.0) * weight[:, None]
    vectors = batch.row.T @ inner
    ends = np.cumsum(layout.sizes)
    update = {
        name: -vectors[end - size : end]
        for name, end, size in zip(learned_names(layout), ends, layout.sizes, strict=True)
    }
    update[LEARNED_OUT] = -(safe.T @ jnp.where(finite[:, None], pooled, 0.0))
    update[LEARNED_BIAS] = -safe.sum(0)
    update[LEARNED_TRUST] = -jnp.where(finite, weight * trust, 0.0).sum()
    return CohortTotal(
        update=update,
        loss=jnp.where(finite, _losses(seen, batch), 0.0).sum(),
        clipped=was_long.sum(),
        dropped=(~finite).sum(),
    )


def _visible(logits: Array, layout: Layout, batch: Histories) -> Array:
    """Return the logits, with `_HIDDEN_ITEM` for the items in the client's kept lines."""
    n = layout.n_items
    known = batch.row[:, :n]
    if layout.dislikes:
        known = known + batch.row[:, n : 2 * n]
    return jnp.where(known > 0, _HIDDEN_ITEM, logits)


def _losses(seen: Array, batch: Histories) -> Array:
    each: Array = batch.target * jax.nn.log_softmax(seen)
    return -each.sum(1)


def _squares(values: Leaf) -> Array:
    return jnp.sum(jnp.square(values), axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Devices:
    """The device's half: it hides about half of its lines and takes one gradient step."""

    settings: SumsSettings
    layout: Layout

    def packed(
        self, told: Told, cohort: Cohort, round_index: int, size: int
    ) -> Iterator[Histories]:
        score = self._scorer(told)
        for people in cohort.parts(size):
            yield self._halves(people, round_index, score, size)

    def contribute(self, told: Told, person: Clients, round_index: int) -> Contribution:
        batch = self._halves(person, round_index, self._scorer(told), 1)
        step = _compiled(self.layout)(learned_of(told), batch=batch, clip_norm=np.float32(np.inf))
        update = {name: np.asarray(leaf) for name, leaf in step.update.items()}
        ends = np.cumsum(self.layout.sizes)
        rows = {}
        for name, end, size in zip(
            learned_names(self.layout), ends, self.layout.sizes, strict=True
        ):
            ids = np.flatnonzero(batch.row[0, end - size : end])
            rows[name] = TouchedRows(ids, update.pop(name)[ids], size)
        return Contribution(dense=update, rows=rows)

    def kernel(self, told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        """Return the sum of a cohort's clipped updates, `TOGETHER` people in one compiled call."""
        batches = list(self.packed(told, cohort, round_index, TOGETHER)) or [_nobody(self.layout)]
        total = _summed(_compiled(self.layout), learned_of(told), batches, clip_norm)
        answered = sum(int((batch.target.sum(1) > 0).sum()) for batch in batches)
        return total.on_host(skipped=len(cohort.people) - answered)

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
def _compiled(layout: Layout) -> Callable[..., CohortTotal]:
    return jax.jit(partial(bounded_sum, layout=layout))


def softmax_phase(
    settings: SumsSettings,
    federation: Federation,
    population: IntArray,
    aggregator: Aggregator,
    *,
    layout: Layout,
    first: int,
    kept: Callable[[Params | None], dict[str, jax.Array]],
) -> Phase:
    """Return the phase of the training rounds.

    `kept(before)` returns the parameters of the closed form. In a round, each client of the cohort
    takes one gradient step, and the server's optimizer takes a step along the mean update.
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
        return _cost(_told(params), layout, batch, settings)

    return Phase(
        name=TRAIN,
        rounds=settings.rounds,
        first=first,
        population=population,
        aggregator=aggregator,
        device=DeviceHalf(contribute=devices.contribute, kernel=devices.kernel, cost=cost),
        start=start,
        tell=lambda state: _told(state.params),
        absorb=absorb,
    )


def hide_half(
    clients: Clients, layout: Layout, *, seed: int, round_index: int
) -> tuple[SparseRows, SparseRows]:
    """Return the row of each client's kept lines, and its hidden likes (clients, n_items).

    A client hides each line with probability ½, by its own random numbers. A hidden like is left
    out if its item also occurs in a kept line.
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
    """Return the data of clients as dense arrays, padded with empty clients to `size` clients."""
    target = hidden.toarray().astype(np.float32)
    target /= np.maximum(target.sum(1, keepdims=True), 1)
    return Histories(
        row=_padded(shown.toarray(), size),
        score=_padded(score, size),
        target=_padded(target, size),
    )


def _summed(
    compiled: Callable[..., CohortTotal],
    learned: Params,
    batches: list[Histories],
    clip_norm: float,
) -> CohortTotal:
    """Return the sum over all batches, which run in parallel on the processor's cores."""
    bound = np.float32(clip_norm)

    def local(params: Params, _: object, batch: Histories) -> CohortTotal:
        return compiled(params, batch=batch, clip_norm=bound)

    parts = map_clients(local, learned, {}, batches)
    home = jax.local_devices()[0]
    # Each array in the sum costs three JAX calls per round, so only filled arrays are added.
    update, loss, clipped, dropped = jax.tree.map(
        lambda *leaves: sum(jax.device_put(leaves, home)),
        *[(part.update, part.loss, part.clipped, part.dropped) for part in parts],
    )
    return CohortTotal(update, loss=loss, clipped=clipped, dropped=dropped)


def _told(params: Params) -> Params:
    """Return the parameters that a device receives: all except those of the second model."""
    return {name: leaf for name, leaf in params.items() if name not in (SECOND, SECOND_WEIGHT)}


def _cost(params: Params, layout: Layout, batch: Histories, settings: SumsSettings) -> DeviceCost:
    size, n = settings.embedding_size, layout.n_items
    entries = int((batch.row > 0).sum())
    learned, width = learned_of(params), params[LIKES].shape[1]
    bound = np.float32(settings.clip_norm)

    def train_once() -> None:
        _compiled(layout)(learned, batch=batch, clip_norm=bound).loss.block_until_ready()

    return DeviceCost(
        what="train round",
        bytes_down=4 * sum(int(value.size) for value in params.values()),
        # The update has all output vectors, and the input vectors of the row's columns.
        bytes_up=4 * (n * (size + 1) + 1 + entries * (size + 1)),
        multiply_adds=3 * n * size + 2 * entries * size + (n + entries) * width,
        milliseconds=milliseconds(train_once),
    )


def _nobody(layout: Layout) -> Histories:
    """Return the data of an empty cohort, which Poisson sampling may draw.

    Its sum is 0, to which noise is added.
    """
    none: npt.NDArray[np.float32] = np.zeros((TOGETHER, layout.n_items), np.float32)
    return Histories(np.zeros((TOGETHER, layout.size), np.float32), none, none)


def _padded(array: npt.NDArray[np.float32], size: int) -> npt.NDArray[np.float32]:
    out = np.zeros((size, array.shape[1]), np.float32)
    out[: len(array)] = array
    return out
