"""Training NeuMF: one round is one pass of Adam over everybody's lines."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from privrec.algorithms.ncf.model import Person, fresh, items_of, scores
from privrec.algorithms.ncf.settings import NcfSettings
from privrec.core.phase import TRAIN, Advance, CentralFit, RoundReport, ServerState, silent
from privrec.data.federation import Federation, chunks
from privrec.data.splits import Split
from privrec.models.api import implicit_loss
from privrec.privacy.aggregate import plain
from privrec.privacy.release import Sampling
from privrec.seeds import key, rng
from privrec.types import F32, Array, IntArray, Leaf, Params


class Lines(NamedTuple):
    """Everybody's lines: whose, which item, and its target; shape (lines,) each."""

    owner: IntArray
    item: IntArray
    target: F32


class Batches(NamedTuple):
    """The lines of a round in one random order, cut into steps; a pytree.

    `owner` (steps, B); `item` and `target` (steps, B, 1 + negatives): the line's own item, then
    unseen ones; `weight`, of the same shape, is 0 for padding and for a drawn item that its person
    has, else 1.
    """

    owner: Leaf
    item: Leaf
    target: Leaf
    weight: Leaf


class Memory(NamedTuple):
    """What is kept and never released: the vectors of the people who train, and Adam's state."""

    people: Person
    adam: optax.OptState


Pass = Callable[[Params, Memory, Batches], tuple[dict[str, Array], Memory, Array]]
"""(params, memory, batches) -> the first two after a step for each batch; mean loss."""


def ncf_stages(
    settings: NcfSettings, federation: Federation, split: Split
) -> tuple[CentralFit, ...]:
    """Return the training of NeuMF on the people who train."""
    people, size = split.train, settings.embedding_size
    sampling = Sampling(law="fixed", users=len(people), cohort=len(people))
    one_pass, optimizer = _compiled_pass(settings.learning_rate, settings.weight_decay)
    lines = cache(lambda: lines_of(federation, people, settings.dislike_target))

    def start(before: Params | None) -> ServerState:
        hidden, scale = settings.hidden, settings.embedding_scale
        params = fresh(key(settings.seed, 0, "init"), federation.n_items, size, hidden, scale)
        halves = jax.random.split(key(settings.seed, 0, "people"))
        drawn = Person(*(scale * jax.random.normal(k, (len(people), size)) for k in halves))
        memory = Memory(drawn, optimizer.init((params, drawn)))
        return ServerState(round_index=0, params=params, opt_state=memory, clip_norm=np.inf)

    def play(state: ServerState, advance: Advance = silent) -> tuple[ServerState, RoundReport]:
        draw = rng(settings.seed, state.round_index, "ncf")
        batches = batches_of(
            lines(), draw, federation.n_items, settings.negatives, settings.batch_size
        )
        params, memory, loss = one_pass(state.params, state.opt_state, batches)
        after = replace(state, round_index=state.round_index + 1, params=params, opt_state=memory)
        return after, RoundReport(
            round_index=state.round_index, clients=len(people), loss=float(loss)
        )

    return (
        CentralFit(
            name=TRAIN, rounds=settings.rounds, aggregator=plain(sampling), start=start, play=play
        ),
    )


def lines_of(federation: Federation, people: IntArray, dislike_target: float) -> Lines:
    """Return the lines of these people; `owner` counts from 0 in their order."""
    owner, item, target, done = [], [], [], 0
    for part in chunks(people):
        found = federation.take(part)
        owner.append(found.owner + done)
        item.append(found.item.astype(np.int64))
        target.append(np.where(found.liked, 1.0, dislike_target).astype(np.float32))
        done += len(part)
    return Lines(np.concatenate(owner), np.concatenate(item), np.concatenate(target))


def batches_of(
    lines: Lines, draw: np.random.Generator, n_items: int, negatives: int, batch_size: int
) -> Batches:
    """Return a round's batches: each line once, with `negatives` items drawn uniformly.

    A drawn item that the person has gets the weight 0.
    """
    count = len(lines.owner)
    steps = max(1, -(-count // batch_size))
    padded = steps * batch_size
    order = np.resize(draw.permutation(count), padded) if count else np.zeros(0, np.int64)
    drawn = draw.integers(n_items, size=(padded, negatives))
    owner = lines.owner[order]
    known = lines.owner * n_items + lines.item
    unseen = ~np.isin(owner[:, None] * n_items + drawn, known)
    real = (np.arange(padded) < count)[:, None]
    item = np.concatenate([lines.item[order][:, None], drawn], 1)
    target = np.zeros(item.shape, np.float32)
    target[:, 0] = lines.target[order]
    weight = np.concatenate([real, real & unseen], 1)

    def cut(column: Any, kind: Any) -> Leaf:
        return column.reshape(steps, batch_size, *column.shape[1:]).astype(kind)

    return Batches(
        owner=cut(owner, np.int32),
        item=cut(item, np.int32),
        target=cut(target, np.float32),
        weight=cut(weight, np.float32),
    )


@lru_cache(maxsize=16)
def _compiled_pass(learning_rate: float, weight_decay: float) -> tuple[Pass, Any]:
    """Return the compiled pass over a round's batches, and its optimizer."""
    optimizer = optax.adam(learning_rate)

    def mean_loss(trained: tuple[Params, Person], batch: Batches) -> Array:
        params, people = trained
        person = Person(*(table[batch.owner][:, None, :] for table in people))
        score = scores(params, person, items_of(params, batch.item))
        loss: Array = (batch.weight * implicit_loss(score, batch.target)).sum() / batch.weight.sum()
        if weight_decay:
            own = batch.item[:, 0]
            vectors = (*person, params["ncf/gmf/item"][own], params["ncf/mlp/item"][own])
            squares = sum((vector**2).sum() for vector in vectors)
            loss = loss + weight_decay / 2 * squares / len(own)
        return loss

    def step(
        carry: tuple[tuple[dict[str, Array], Person], optax.OptState], batch: Batches
    ) -> tuple[Any, Array]:
        trained, adam = carry
        loss, slope = jax.value_and_grad(mean_loss)(trained, batch)
        change, adam = optimizer.update(slope, adam, trained)
        return (optax.apply_updates(trained, change), adam), loss

    def one_pass(
        params: Params, memory: Memory, batches: Batches
    ) -> tuple[dict[str, Array], Memory, Array]:
        begin = ((dict(params), memory.people), memory.adam)
        ((after, people), adam), losses = jax.lax.scan(step, begin, batches)
        means = {f"ncf/start/{k}": table.mean(0) for k, table in people._asdict().items()}
        return {**after, **means}, Memory(people, adam), losses.mean()

    return jax.jit(one_pass), optimizer
