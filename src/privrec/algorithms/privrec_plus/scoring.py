"""A person's data as one row of numbers, and how the model computes item scores from a row.

The module runs on phones, so it needs only numpy. The history model computes

    h = Σ like_i + Σ dislike_i + Σ feature vectors,   score_v = h · out_v

The parameters `history/…` have a vector for each column of a row, and `items/out` for each item v.
If vectors are as long as the catalogue, `items/out` is absent and h has the scores. If the model
has trained rounds (`softmax.py`), these scores are replaced by

    logit_v = a · log(max(score_v, 0) + floor) + tanh(h') · out'_v + bias'_v,
    h' = Σ row_c · vector_c / √(1 + items in the row)

The model may also have pair scores (`hop.py`) and scores of a second model (`opinion.py`). These
are standardised for each person and added.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from privrec.algorithms.privrec_plus.opinion import (
    MOST_DIMENSIONS,
    SECOND,
    SECOND_WEIGHT,
    second_opinion,
)
from privrec.core.tables import added, check_shapes
from privrec.data.clients import Clients
from privrec.data.schema import Bag, Feature, Schema
from privrec.errors import RunFolderError
from privrec.types import F32, IntArray, Leaf

LIKES, DISLIKES = "history/like", "history/dislike"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of a person's row: likes, dislikes, user features, then shares of contexts.

    Each item has a column for likes and a column for dislikes. It is 1 if the person liked (or
    disliked) the item at least once. The column of a context is the share of the person's lines
    with this context. Data without dislikes has no columns for dislikes.
    """

    n_items: int
    dislikes: bool = True
    users: tuple[Feature, ...] = ()
    contexts: tuple[Feature, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of columns of each block: likes, dislikes, then one block per feature."""
        features = (*self.users, *self.contexts)
        return (*self._item_blocks.values(), *(feature.rows for feature in features))

    @property
    def names(self) -> tuple[str, ...]:
        """The parameter name of each block."""
        return (*self._item_blocks, *map(_block, (*self.users, *self.contexts)))

    @property
    def item_columns(self) -> int:
        """The number of columns for likes and dislikes; these columns come first."""
        return sum(self._item_blocks.values())

    @property
    def size(self) -> int:
        """The number of columns of a row."""
        return sum(self.sizes)

    @property
    def _item_blocks(self) -> dict[str, int]:
        return dict.fromkeys((LIKES, DISLIKES) if self.dislikes else (LIKES,), self.n_items)


def layout_of(schema: Schema, n_items: int, *, dislikes: bool = True) -> Layout:
    """Return the layout of a data set's rows, with all user and context features of its schema."""
    users, contexts = schema.of("user"), schema.of("context")
    return Layout(n_items=n_items, dislikes=dislikes, users=users, contexts=contexts)


def layout_in(schema: Schema, n_items: int, names: set[str]) -> Layout:
    """Return the layout of a model whose parameters have these names."""
    users, contexts = (
        tuple(feature for feature in schema.of(side) if _block(feature) in names)
        for side in ("user", "context")
    )
    dislikes = bool({DISLIKES, learned(DISLIKES)} & names)
    return Layout(n_items=n_items, dislikes=dislikes, users=users, contexts=contexts)


def learned(name: str) -> str:
    """Return the parameter name of a block's vectors that training rounds learn."""
    return name.replace("history/", "learn/", 1)


def _block(feature: Feature) -> str:
    return f"history/{feature.side}.{feature.name}"


Arrays = Mapping[str, F32]

OUT, BIAS, POPULARITY = "items/out", "items/bias", "items/popularity"
LEARNED_OUT, LEARNED_BIAS, LEARNED_TRUST = "learn/out", "learn/bias", "learn/trust"
FREQUENCY = "columns/frequency"
"""The frequency of each column: Σ w·row² over people with weights w. It is published with the
popularity if a subspace iteration follows."""
MEAN_WEIGHT = "columns/mean-weight"
"""The mean over people of the weight w, published in the same phase."""
HOP_ITEMS, HOP_VALUES, HOP_WEIGHT = "hop/items", "hop/values", "hop/weight"
"""The pair scores (`hop.py`): the positions of each item's neighbours, and what a like of the item
adds to the scores of these neighbours, shape (n_items, neighbours) each. `HOP_WEIGHT` is the weight
of the pair scores in the final score."""
_MOST_ITEMS = 2**24
"""Positions of items are stored as float32, which is exact for whole numbers below this limit."""
RECENCY = "device/recency"
"""The extra weight of a person's last like. It halves with every `_HALVED` lines after a like."""
_HALVED = 3.0
FLOOR = 0.01
"""This number is added to closed-form scores so that their logarithm is finite. Chosen by hand; not
tuned."""


class Forward(NamedTuple):
    """The logits of the trained part, and the intermediate values that its gradient needs."""

    log_score: Leaf
    pooled: Leaf
    root: Leaf
    logits: Leaf


def learned_names(layout: Layout) -> list[str]:
    """Return the parameter names of the vectors that training rounds learn, one per block."""
    return [learned(name) for name in layout.names]


def learned_of(params: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Return the parameters that the training rounds change (`softmax.py`)."""
    return {name: value for name, value in params.items() if name.startswith("learn/")}


def forward(
    params: Mapping[str, Leaf], layout: Layout, row: Leaf, score: Leaf, xp: Any = np
) -> Forward:
    """Return the logits for people's rows and closed-form scores; `xp` is numpy or jax.numpy."""
    vectors = xp.concatenate([params[name] for name in learned_names(layout)])
    items = row[:, : layout.item_columns].sum(1)[:, None]
    root = xp.sqrt(1 + items)
    pooled = xp.tanh(row @ vectors / root)
    log_score = xp.log(xp.maximum(score, 0) + FLOOR)
    logits = (
        params[LEARNED_TRUST] * log_score + pooled @ params[LEARNED_OUT].T + params[LEARNED_BIAS]
    )
    return Forward(log_score, pooled, root, logits)


def closed_form(tower: Arrays, layout: Layout) -> Callable[[Leaf], F32]:
    """Return a function that computes the closed-form scores of all items, (people, n_items).

    The function takes rows of shape (people, columns), as a numpy array or a sparse matrix.
    """
    width = tower[LIKES].shape[1]
    inside = np.concatenate(
        [
            tower.get(name, np.zeros((size, width), np.float32))
            for name, size in zip(layout.names, layout.sizes, strict=True)
        ]
    )
    out = tower.get(OUT)

    def score(rows: Leaf) -> F32:
        hidden = rows @ inside
        return np.asarray(hidden if out is None else hidden @ out.T, np.float32)

    return score


def from_neighbours(tower: Arrays) -> Callable[[Leaf], F32]:
    """Return a function that maps rows to the pair scores of all items, (people, n_items)."""
    items, values = np.asarray(tower[HOP_ITEMS], np.int32), tower[HOP_VALUES]
    n_items = len(items)

    def score(rows: Leaf) -> F32:
        scores = np.zeros((rows.shape[0], n_items), np.float32)
        for person in range(len(scores)):
            column, weight = _row(rows, person)
            liked = column < n_items
            column, weight = column[liked], weight[liked]
            shares = values[column] * weight[:, None]
            scores[person] = np.bincount(items[column].ravel(), shares.ravel(), n_items)
        return scores

    return score


def _row(rows: Leaf, person: int) -> tuple[Leaf, Leaf]:
    """Return the columns of a person's nonzero entries, and the values of these entries."""
    if isinstance(rows, np.ndarray):
        columns = np.flatnonzero(rows[person])
        return columns, rows[person, columns]
    start, end = rows.indptr[person : person + 2]
    return rows.indices[start:end], rows.data[start:end]


def check_tower(params: Mapping[str, Leaf], layout: Layout) -> None:
    """Raise an error if an array is missing, does not fit the layout, or names an unknown item."""
    check_shapes(params, tower_shapes(params, layout))
    near = np.asarray(params.get(HOP_ITEMS, np.zeros((1, 1))))
    if not ((near >= 0) & (near < min(layout.n_items, _MOST_ITEMS)) & (near % 1 == 0)).all():
        raise RunFolderError(
            f"the parameters do not fit the catalogue: {HOP_ITEMS!r} must have positions of items"
        )
    width = np.shape(params.get(SECOND, np.zeros((1, 1))))[1]
    if width > MOST_DIMENSIONS:
        raise RunFolderError(f"{SECOND!r} must have <= {MOST_DIMENSIONS:,} columns; got {width:,}")


def tower_shapes(params: Mapping[str, Leaf], layout: Layout) -> dict[str, tuple[int, ...]]:
    """Return the shape that each parameter of the model must have, by name."""
    n, width = layout.n_items, np.shape(params[LIKES])[-1] if np.ndim(params[LIKES]) else 0
    blocks = zip(layout.names, layout.sizes, strict=True)
    shapes: dict[str, tuple[int, ...]] = {
        name: (size, width) for name, size in blocks if name in params or name == LIKES
    }
    shapes[BIAS] = (n,)
    if OUT in params or width != n:
        shapes[OUT] = (n, width)
    if HOP_ITEMS in params or HOP_VALUES in params:
        near = np.shape(params.get(HOP_ITEMS, np.zeros((n, 0))))[-1:]
        shapes |= {HOP_ITEMS: (n, *near), HOP_VALUES: (n, *near), HOP_WEIGHT: ()}
    if RECENCY in params:
        shapes[RECENCY] = ()
    if learned_of(params):
        size = np.shape(params.get(LEARNED_OUT, np.zeros((n, 0))))[-1:]
        named = zip(learned_names(layout), layout.sizes, strict=True)
        shapes |= {name: (rows, *size) for name, rows in named}
        shapes |= {LEARNED_OUT: (n, *size), LEARNED_BIAS: (n,), LEARNED_TRUST: ()}
    if SECOND in params or SECOND_WEIGHT in params:
        size = np.shape(params.get(SECOND, np.zeros((n, 0))))[-1:]
        shapes |= {SECOND: (n, *size), SECOND_WEIGHT: ()}
    return shapes


def input_columns(params: Mapping[str, Leaf], layout: Layout) -> int:
    """Return the number of item columns that the second model reads: the first columns of a row.

    Dislikes are included if the history model has vectors for dislikes.
    """
    return layout.item_columns if DISLIKES in params else layout.n_items


def row_scorer(tower: Arrays, layout: Layout) -> Callable[[Leaf], F32]:
    """Return a function that maps rows to final scores: (people, columns) -> (people, n_items)."""
    simple, on_top = closed_form(tower, layout), learned_of(tower)
    near = from_neighbours(tower) if HOP_VALUES in tower else None
    other = None
    if SECOND in tower:
        other = second_opinion(tower, layout.n_items, input_columns(tower, layout))

    def score(rows: Leaf) -> F32:
        scores = simple(rows)
        # The trained part needs items in the row; people without items keep closed-form scores.
        some = np.flatnonzero(rows[:, : layout.item_columns].sum(1))
        if on_top and len(some):
            scores[some] = forward(on_top, layout, rows[some], scores[some]).logits
        if near is not None:
            scores = added(scores, near(rows), float(tower[HOP_WEIGHT]))
        if other is not None:
            scores = added(scores, other(rows), float(tower[SECOND_WEIGHT]))
        scores += tower[BIAS]
        return scores

    return score


class Entries(NamedTuple):
    """The nonzero entries of people's rows, as three arrays of the same length.

    `person` is the index of the row. Each pair (person, column) occurs once.
    """

    person: IntArray
    column: IntArray
    value: npt.NDArray[np.float64]


def recency_of(params: Mapping[str, Leaf]) -> float:
    """Return the extra weight of a person's last like in this model's ranking (`RECENCY`)."""
    return float(params.get(RECENCY, 0.0))


def entries_of(clients: Clients, layout: Layout, recency: float = 0.0) -> Entries:
    """Return the entries of people's rows; `recency` is the extra weight of the last like."""
    width, people = layout.item_columns, np.arange(len(clients))
    places = clients.owner * width + np.where(clients.liked, 0, layout.n_items) + clients.item
    counted = np.flatnonzero(clients.liked | layout.dislikes)
    if recency:
        # If an item occurs in several lines, its last line determines the weight.
        places, found = np.unique(places[counted][::-1], return_index=True)
        weights = _recent(clients, counted[::-1][found], recency)
    else:
        places = np.unique(places[counted])
        weights = np.ones(len(places))
    persons, columns, values = [places // width], [places % width], [weights]
    shares = 1.0 / np.maximum(clients.sizes, 1)
    start = width
    for feature in (*layout.users, *layout.contexts):
        of_person = feature.side == "user"
        bag = (clients.features if of_person else clients.context)[feature.table]
        owner = people if of_person else clients.owner
        person, column, value = _summed(bag, owner, feature.rows)
        persons.append(person)
        columns.append(start + column)
        values.append(value if of_person else value * shares[person])
        start += feature.rows
    return Entries(np.concatenate(persons), np.concatenate(columns), np.concatenate(values))


def _recent(clients: Clients, lines: IntArray, recency: float) -> npt.NDArray[np.float64]:
    """Return the weight of each line: 1 plus an addition that is larger for later lines."""
    since = clients.offsets[clients.owner[lines] + 1] - 1 - lines
    return np.asarray(1 + recency * 2.0 ** (-since / _HALVED))


def dense_rows(clients: Clients, layout: Layout, recency: float = 0.0) -> F32:
    """Return the people's rows as a dense array, shape (people, layout.size)."""
    rows = np.zeros((len(clients), layout.size), np.float32)
    person, column, value = entries_of(clients, layout, recency)
    rows[person, column] = value
    return rows


def _summed(bag: Bag, owner: IntArray, n_values: int) -> Entries:
    """Return the sums of the bag's weights by owner and value, without sums of 0."""
    width = bag.codes.shape[1]
    places = np.repeat(owner, width) * n_values + np.ravel(bag.codes)
    distinct, inverse = np.unique(places, return_inverse=True)
    sums = np.bincount(np.ravel(inverse), np.ravel(bag.weights), minlength=len(distinct))
    some = sums != 0
    return Entries(distinct[some] // n_values, distinct[some] % n_values, sums[some])
