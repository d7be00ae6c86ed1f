"""Ranking on a device with a trained model.

This module runs on phones, so it uses only numpy. It finds the best items without sorting all
scores.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from privrec.data.clients import Clients
from privrec.data.schema import Bag
from privrec.types import IntArray, Params

Scores = npt.NDArray[np.floating]

Scorer = Callable[[Clients, Clients], Iterable[Scores]]
"""(the data on each device, the held-out interactions) -> each client's scores of all items.

A scorer may use only the context of the held-out interactions. Each client's scores have one row,
or one row for each held-out interaction."""

Ranker = Callable[[Params], Scorer]

TABLE_SIZE = 2**22
"""The largest number of scores in memory at a time: 16 MB in 32 bits. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScorer:
    """A scorer that ignores the context, so that it can score many people in one table.

    `table(devices)` returns scores of shape (people, n_items). If `own_first` is true, the
    evaluation ranks the items that a person likes before all other items, whatever their scores.
    """

    table: Callable[[Clients], Scores]
    own_first: bool = False

    def __call__(self, first: Clients, lines: Clients) -> Iterator[Scores]:
        """Yield the scores of each client, shape (1, n_items)."""
        del lines
        yield from self.table(first)[:, None, :]


def people_at_a_time(n_items: int, most: int = 1024) -> int:
    """Return the number of people whose scores fit into one table (`TABLE_SIZE`), at most `most`.

    >>> people_at_a_time(600), people_at_a_time(41_000), people_at_a_time(10**9)
    (1024, 102, 1)
    """
    return max(1, min(most, TABLE_SIZE // n_items))


def moments(people: Clients, context: Mapping[str, Bag]) -> Clients:
    """Return one invented interaction per person, as the moment for which a scorer ranks items.

    All interactions have the same context, the only row of `context`.
    """
    count = len(people)
    return Clients(
        ids=people.ids,
        offsets=np.arange(count + 1),
        item=np.zeros(count, np.int32),
        value=np.zeros(count, np.float32),
        liked=np.ones(count, np.bool_),
        time=np.zeros(count),
        features=people.features,
        context={name: bag.take(np.zeros(count, np.int64)) for name, bag in context.items()},
    )


def top_items(scores: Scores, top: int) -> tuple[IntArray, Scores]:
    """Return the `top` best items of each row, best first, and their scores: (rows, top) each.

    Items with equal scores are in the order of the catalogue. NaN counts as minus infinity. To
    exclude an item, a caller sets its score to minus infinity. If fewer than `top` items are left,
    the rest of the row is -1, with the score minus infinity.

    >>> items, scores = top_items(np.array([[0.5, 0.9, 0.5, -np.inf]]), 2)
    >>> items.tolist(), scores.tolist()
    ([[1, 0]], [[0.9, 0.5]])
    """
    return first_of(at_least(scores, bound(scores, top)), len(scores), min(top, scores.shape[1]))


class Entries(NamedTuple):
    """Some cells of a table of scores: the row, the item and the score of each cell."""

    row: IntArray
    item: IntArray
    score: Scores


_GROUPS, _SHARE = 256, 4
"""`bound` divides the items into at least `_GROUPS` groups, and at least `_SHARE` groups for each
wanted item. Chosen by hand; not tuned."""


def bound(scores: Scores, places: int) -> Scores:
    """Return, for each row, a lower bound that the scores of at least `places` items reach.

    The items are divided into groups. The bound is the `places`-th highest of the groups' highest
    scores. It is close to the `places`-th highest score, and is found much faster. Neighbours in
    the catalogue are in different groups, because a catalogue sorted by popularity has its best
    items side by side. With fewer groups than `places`, the bound is minus infinity. NaN is
    ignored.
    """
    rows, n_items = scores.shape
    groups = min(max(_GROUPS, _SHARE * places), n_items)
    if groups < places:
        return np.full(rows, -np.inf, scores.dtype)
    size = n_items // groups
    highest = np.fmax.reduce(scores[:, : size * groups].reshape(rows, size, groups), axis=1)
    highest[np.isnan(highest)] = -np.inf
    highest.partition(groups - places, axis=1)
    return np.asarray(highest[:, groups - places])


def at_least(scores: Scores, least: Scores) -> Entries:
    """Return the cells of each row whose score is at least `least`, in the order of the items."""
    place = np.flatnonzero(scores >= least[:, None])  # Much faster than `np.nonzero` in 2-D.
    n_items = scores.shape[1]
    return Entries(place // n_items, place % n_items, scores.reshape(-1)[place])


def first_of(entries: Entries, rows: int, places: int) -> tuple[IntArray, Scores]:
    """Return the best items of each row and their scores, best first: (rows, places) each.

    Equal scores and rows with too few items are handled as in `top_items`.
    """
    some = np.flatnonzero(entries.score > -np.inf)
    order = some[np.lexsort((entries.item[some], -entries.score[some], entries.row[some]))]
    row = entries.row[order]
    place = np.arange(len(row)) - np.searchsorted(row, row)
    near = place < places
    at = row[near], place[near]
    items = np.full((rows, places), -1, np.int64)
    values = np.full((rows, places), -np.inf, entries.score.dtype)
    items[at], values[at] = entries.item[order[near]], entries.score[order[near]]
    return items, values
