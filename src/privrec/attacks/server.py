"""A curious server that reads a person's items from one contribution without noise.

The guarantee does not cover this attack. A server without secure sums gets each device's
contribution without noise, and the results show how much it must be trusted.

A reader is a function that guesses items from one kind of sum. It knows what the server knows: the
recipe, what was sent to devices, and the contribution of one device. It never sees a person's data.
Only non-zero rows count. Signs that are lost in the sum are not used, so a server that gets the sum
of a cohort of one person reads the same items.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from privrec.algorithms.factors.fcf import VECTORS
from privrec.algorithms.privrec_plus.rows import BASIS, SCALE
from privrec.algorithms.privrec_plus.scoring import DISLIKES, LIKES
from privrec.algorithms.privrec_plus.sums import SQUARES, TRIANGLE
from privrec.algorithms.recipe import Plan
from privrec.attacks.trial import sender
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import Phase, ServerState, Stage, Told, Unwritten
from privrec.core.round import Surroundings, cohort_draw, fastest, play_round
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients, nobody
from privrec.data.federation import Federation, chunks
from privrec.data.schema import Bag, Bags, Side
from privrec.errors import SettingsError
from privrec.runs.documents import ServerView, Share
from privrec.seeds import rng
from privrec.types import F64, BoolArray, IntArray, Leaf, Params

LooksLiked = Callable[[F64], BoolArray]
"""A function from the updates of k item rows of one person, shape (k, d), to her likely likes,
(k,)."""
_GAP = 1.7
"""Two amounts belong to different groups if their ratio is at least this number. A like has twice
the weight of a dislike. An item both liked and disliked has 1.5 times the weight of a like."""
_RIDGE = 0.01
_ROUNDING = 1e-4
"""Numbers below this share of the largest one count as rounding errors of 32-bit floats."""


class Items(NamedTuple):
    """The items of a person and the items that she likes, either guessed or true."""

    items: IntArray
    likes: IntArray


_NOTHING = Items(np.zeros(0, np.int64), np.zeros(0, np.int64))
_MADE_UP = 24
"""The number of people that the server invents to learn how likes look. Chosen by hand."""
_FEWEST, _MOST = 5, 120
"""The smallest and largest number of items of an invented person; at most a quarter of the
catalogue."""
_LIKED = 2 / 3
"""The share of likes among the items of an invented person."""


def read_off(
    prepared: Plan, params: Params | None = None, people: int = 200, seed: int = 0
) -> list[ServerView]:
    """Return the server's guesses in each phase, for a sample of the phase's people.

    The model has the parameters `params` of a finished run, or is fresh. A fresh model's phases of
    one round are run, with seeded noise, because the next phase needs their result.
    """
    if people < 1:
        raise SettingsError(f"`people` must be >= 1; got {people}")
    views, before, stages = [], params, prepared.stages()
    for stage in stages:
        state = stage.start(before)
        if params is not None:
            known = {name: params.get(name, leaf) for name, leaf in state.params.items()}
            state = replace(state, params=known)
        if isinstance(stage, Phase) and len(stage.population):
            views.append(_view(prepared, stage, state, people=people, seed=seed))
        if params is None and stage is not stages[-1]:
            before = _after(stage, state, prepared.task.federation, seed).params
    return views


def grade(
    phase: str, readings: Sequence[Items], truth: Sequence[Items], popular: IntArray
) -> ServerView:
    """Return the precision and recall of the guessed items, over all people together.

    `popular` has all items, the most liked first. `guessing` is the precision of guessing as many
    likes by naming the most popular items.
    """
    guesses = [popular[: len(reading.likes)] for reading in readings]
    return ServerView(
        phase=phase,
        people=len(readings),
        items=_share([each.items for each in readings], [each.items for each in truth]),
        likes=_share([each.likes for each in readings], [each.likes for each in truth]),
        guessing=Share(precision=_share(guesses, [each.likes for each in truth]).precision),
    )


def _view(
    prepared: Plan, stage: Phase, state: ServerState, *, people: int, seed: int
) -> ServerView:
    federation, n_items = prepared.task.federation, prepared.task.federation.n_items
    told = {name: np.asarray(leaf) for name, leaf in stage.tell(state).items()}
    draw = rng(seed, stage.first, "curious server")
    who = draw.choice(stage.population, min(people, len(stage.population)), replace=False)
    send = sender(stage, told, stage.first, state.clip_norm, nobody(federation.schema, 1))
    looks_liked = _learned(send, federation.catalogue, draw)
    dislikes = federation.catalogue.has_dislikes and (
        getattr(prepared.task.settings, "dislike_input", 0) > 0
    )
    everybody = [federation.take(who[k : k + 1]) for k in range(len(who))]
    readings = [
        read(send(person), told, n_items, dislikes=dislikes, looks_liked=looks_liked)
        for person in everybody
    ]
    truth = [items_of(person) for person in everybody]
    return grade(stage.name, readings, truth, _popular(federation, stage.population))


def items_of(person: Clients) -> Items:
    """Return the items of a person and the items that she likes."""
    owned, liked = person.item, person.item[person.liked]
    return Items(np.unique(owned).astype(np.int64), np.unique(liked).astype(np.int64))


def _after(stage: Stage, state: ServerState, federation: Federation, seed: int) -> ServerState:
    if not isinstance(stage, Phase) or stage.rounds > 1:
        return state
    around = Surroundings(
        take=federation.take,
        run=fastest,
        draw=cohort_draw(seed, secret=False),
        journal=Unwritten(seed),
    )
    return play_round(stage, state, around)[0]


def _learned(
    send: Callable[[Clients], Contribution], catalogue: Catalogue, draw: np.random.Generator
) -> LooksLiked:
    """Return a reader of item rows that the server trains on invented people.

    A device also changes the rows of negatives: items that its person never saw. The server has the
    device's program, so it can learn how the rows of likes differ from other rows.
    """
    updates, liked = [], []
    for _ in range(_MADE_UP):
        person = made_up(catalogue, draw)
        rows = send(person).rows.get(ITEM_TABLE)
        if rows is None:
            break
        updates.append(np.asarray(rows.values, np.float64))
        liked.append(np.isin(rows.ids, person.item[person.liked]))
    return trained_reader(updates, liked) if updates else lambda rows: np.ones(len(rows), np.bool_)


def made_up(catalogue: Catalogue, draw: np.random.Generator) -> Clients:
    """Return an invented person with random items, features and contexts."""
    most = max(min(_MOST, catalogue.n_items // 4), _FEWEST + 1)
    size = min(int(draw.integers(_FEWEST, most)), catalogue.n_items)
    liked = draw.random(size) < _LIKED

    return Clients(
        ids=draw.integers(2**62, size=1),
        offsets=np.array([0, size]),
        item=draw.choice(catalogue.n_items, size, replace=False).astype(np.int32),
        value=liked.astype(np.float32),
        liked=liked,
        time=np.arange(size, dtype=np.float64),
        features=_random_bags(catalogue, "user", 1, draw),
        context=_random_bags(catalogue, "context", size, draw),
    )


def _random_bags(catalogue: Catalogue, side: Side, rows: int, draw: np.random.Generator) -> Bags:
    return {
        feature.table: Bag(
            draw.integers(max(feature.rows, 1), size=(rows, 1)).astype(np.int32),
            np.ones((rows, 1), np.float32),
        )
        for feature in catalogue.schema.of(side)
    }


def _popular(federation: Federation, population: IntArray) -> IntArray:
    counts = np.zeros(federation.n_items, np.int64)
    for part in chunks(population):
        people = federation.take(part)
        counts += np.bincount(people.item[people.liked], minlength=federation.n_items)
    return np.argsort(-counts, kind="stable")


def _share(named: Sequence[IntArray], true: Sequence[IntArray]) -> Share:
    right = sum(len(np.intersect1d(a, b)) for a, b in zip(named, true, strict=True))
    count, wanted = sum(map(len, named)), sum(map(len, true))
    return Share(
        precision=right / count if count else None, recall=right / wanted if wanted else None
    )


def read(
    sent: Contribution, told: Told, n_items: int, *, dislikes: bool, looks_liked: LooksLiked
) -> Items:
    """Return the items in a contribution; `dislikes` tells whether it may contain dislikes."""
    readings = [
        _of_basis(rows, told, n_items, dislikes=dislikes)
        if name == BASIS
        else _of_rows(name, rows, told, n_items, looks_liked=looks_liked)
        for name, rows in sent.rows.items()
    ]
    if VECTORS in sent.dense:
        readings.append(_of_slopes(_doubles(sent.dense[VECTORS]), _doubles(told[VECTORS])))
    if SQUARES in sent.outer:
        kept, row = np.asarray(told["kept"], np.int64), _doubles(sent.outer[SQUARES])
        liked = kept[row[: len(kept)] != 0]
        disliked = kept[row[len(kept) : 2 * len(kept)] != 0] if dislikes else kept[:0]
        readings.append(Items(np.union1d(liked, disliked), liked))
    if TRIANGLE in sent.triangle:
        vector = _doubles(sent.triangle[TRIANGLE])
        readings.append((_of_taste if "common" in told else _of_projection)(vector, told))
    return Items(*(np.unique(np.concatenate(ids)) for ids in zip(*readings, _NOTHING, strict=True)))


def upper_kind(amounts: F64) -> BoolArray:
    """Return which amounts lie above the widest gap; if no gap is wide, return all."""
    if not len(amounts):
        return np.zeros(0, np.bool_)
    ordered = np.sort(np.maximum(amounts, 1e-300))
    steps = ordered[1:] / ordered[:-1]
    if not len(steps) or steps.max() < _GAP:
        return np.ones(len(amounts), np.bool_)
    return np.asarray(amounts >= ordered[1 + steps.argmax()])


def trained_reader(updates: Sequence[F64], liked: Sequence[BoolArray]) -> LooksLiked:
    """Return a linear reader of item rows, fitted to people whose likes are known.

    Each person's rows are divided by their root mean square, because a bound may have shortened
    them. The threshold has the best F1 on these people: 2 · correct / (guessed + liked).
    """
    rows = np.concatenate([_with_one(_usual_size(one)) for one in updates])
    ridge = np.full(rows.shape[1], _RIDGE * len(rows))
    ridge[-1] = 0
    wanted = np.concatenate(liked).astype(np.float64)
    weights = np.linalg.lstsq(rows.T @ rows + np.diag(ridge), rows.T @ wanted, rcond=None)[0]
    order = np.argsort(-(rows @ weights), kind="stable")
    named = np.arange(1, len(order) + 1)
    best = order[np.argmax(np.cumsum(wanted[order]) / (named + wanted.sum()))]
    least = float(rows[best] @ weights)
    return lambda values: np.asarray(_with_one(_usual_size(values)) @ weights >= least)


def _of_rows(
    name: str, rows: TouchedRows, told: Told, n_items: int, *, looks_liked: LooksLiked
) -> Items:
    table = _doubles(rows.values)
    table = table[:, None] if table.ndim == 1 else table
    there = table.any(1)
    ids, values = np.asarray(rows.ids, np.int64)[there], table[there]
    amounts = np.linalg.norm(values, axis=1)
    if name == ITEM_TABLE:
        return Items(ids, ids[looks_liked(values)] if len(ids) else ids)
    if name.startswith("learn/"):  # The rounds of PrivRec+: a table for each block of a row.
        block = name.replace("learn/", "history/", 1)
        owned, liked = block in (LIKES, DISLIKES), block == LIKES
        return Items(ids if owned else ids[:0], ids if liked else ids[:0])
    if "weight" in told and rows.size == len(told["weight"]):
        amounts = amounts / _doubles(told["weight"])[ids]
        ids = np.asarray(told["kept"], np.int64)[ids]
        return Items(ids, ids[upper_kind(amounts)])
    return Items(ids, ids[upper_kind(amounts)]) if rows.size == n_items else _NOTHING


def _of_basis(rows: TouchedRows, told: Told, n_items: int, *, dislikes: bool) -> Items:
    """Return the items whose rows of a basis change, in a round of a subspace iteration.

    Without noise, the rows of likes come first and then the rows of dislikes. With noise, each item
    has one row, and a dislike has a smaller weight than a like.
    """
    amounts = np.linalg.norm(_doubles(rows.values), axis=1)
    ids, amounts = np.asarray(rows.ids, np.int64)[amounts > 0], amounts[amounts > 0]
    if rows.size == n_items:
        return Items(ids, ids[upper_kind(amounts / _doubles(told[SCALE])[ids])])
    liked = ids[ids < n_items]
    disliked = ids[(ids >= n_items) & (ids < 2 * n_items)] - n_items if dislikes else ids[:0]
    return Items(np.union1d(liked, disliked), liked)


def _of_taste(taste: F64, told: Told) -> Items:
    """Return the items of a taste vector: a person's row without its component along popularity.

    The ratio of this vector to `common` is the same for all items that she does not have, and
    smaller than for all others. So the component can be added again. The sum loses the sign of the
    vector, and with the wrong sign this ratio is the largest one. Of the smallest and the largest
    ratio, the one that occurs more often is used.
    """
    kept, power, common = (np.asarray(told[name]) for name in ("kept", "power", "common"))
    ratio = taste / common
    ends = ratio.min(), ratio.max()
    level = max(ends, key=lambda end: int(np.isclose(ratio, end, rtol=_ROUNDING, atol=0).sum()))
    row = np.abs(taste - level * common) / power
    there = row > _ROUNDING * row.max(initial=0)
    ids = np.asarray(kept, np.int64)[there]
    return Items(ids, ids[upper_kind(row[there])])


def _of_projection(inside: F64, told: Told) -> Items:
    """Return the items of a person's row of which only the coordinates in a basis are sent.

    A row has few entries that are not 0, and none is negative. So non-negative least squares finds
    them if there are about as many directions as items. The sum loses the sign, so both signs are
    tried.
    """
    kept, project = np.asarray(told["kept"], np.int64), _doubles(told["project"])
    fits = [nnls(project.T, sign * inside, maxiter=_MOST_STEPS * len(kept)) for sign in (1, -1)]
    row = min(fits, key=lambda fit: fit[1])[0]
    there = row > _ROUNDING * row.max(initial=0)
    return Items(kept[there], kept[there][upper_kind(row[there])])


_MOST_STEPS = 30
"""The most least-squares steps per item."""


def _of_slopes(slopes: F64, vectors: F64) -> Items:
    """Return the items in a gradient of matrix factorisation: row i is e_i x, with the same x.

    If the person does not have item i, then e_i = -xᵀy_i, where y_i is known. So the ratio of the
    two is the same for all such items, and lies where the ratios are densest.
    """
    if not slopes.any():
        return _NOTHING
    direction = np.linalg.svd(slopes, full_matrices=False)[2][0]
    moved, known = slopes @ direction, vectors @ direction
    rest = np.abs(moved - _densest(moved / known) * known)
    ids = np.flatnonzero(rest > _ROUNDING * rest.max())
    return Items(ids, ids[upper_kind(rest[ids])])


def _densest(numbers: F64) -> float:
    """Return the middle of the narrowest interval that contains a tenth of the numbers."""
    ordered, tenth = np.sort(numbers), max(len(numbers) // 10, 1)
    begin = int((ordered[tenth:] - ordered[:-tenth]).argmin()) if len(numbers) > 1 else 0
    return float(ordered[begin + tenth // 2])


def _usual_size(values: F64) -> F64:
    size = float(np.sqrt(np.square(values).mean())) if values.size else 0.0
    return values / size if size > 0 else values


def _with_one(values: F64) -> F64:
    return np.column_stack([values, np.ones(len(values))])


def _doubles(leaf: Leaf) -> F64:
    return np.asarray(leaf, np.float64)
