"""How a trained model ranks on a device.

The best items of each row of scores, selected and not sorted; numpy alone, as on a phone.
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
"""(the data on each device, the held-out lines) -> each client's scores of all items.

Of the held-out lines a scorer may use the context and nothing else. Scores have shape
(1, n_items), or one row for each line of the client.
"""

Ranker = Callable[[Params], Scorer]

TABLE_SIZE = 2**22
"""Scores in memory at a time, where people are scored one after another: 16 MB. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScorer:
    """A scorer that needs no context, so that it can score many people in one table.

    `table(devices)` has shape (people, n_items). If `own_first`, the items that a person likes on
    her device rank before all others; their scores do not show it.
    """

    table: Callable[[Clients], Scores]
    own_first: bool = False

    def __call__(self, first: Clients, lines: Clients) -> Iterator[Scores]:
        """Return each client's scores, as every scorer does."""
        del lines
        yield from self.table(first)[:, None, :]


def people_at_a_time(n_items: int, most: int = 1024) -> int:
    """Return for how many people a table of scores may be made at a time.

    >>> people_at_a_time(600), people_at_a_time(41_000), people_at_a_time(10**9)
    (1024, 102, 1)
    """
    return max(1, min(most, TABLE_SIZE // n_items))


def moments(people: Clients, context: Mapping[str, Bag]) -> Clients:
    """Return one line for each person, in which to rank; all have the same context, of one row."""
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

    Items of the same score are in the order of the catalogue. What is not a number counts as minus
    infinity. Whoever leaves items out gives them that score, and ignores it here.

    >>> items, scores = top_items(np.array([[0.5, 0.9, 0.5, -np.inf]]), 2)
    >>> items.tolist(), scores.tolist()
    ([[1, 0]], [[0.9, 0.5]])
    """
    return first_of(at_least(scores, bound(scores, top)), len(scores), min(top, scores.shape[1]))


class Entries(NamedTuple):
    """Some cells of a table of scores: their rows, their items and scores."""

    row: IntArray
    item: IntArray
    score: Scores


_GROUPS, _SHARE = 256, 4
"""Groups of items of which the best are looked at, and how many for each place, at least. Chosen by
hand; not tuned."""


def bound(scores: Scores, places: int) -> Scores:
    """Return for each row a score that at least `places` of its items have or exceed.

    Of the best scores of groups of items it is the one at that place, which is near the one of all
    items and found much faster. Items of a group are not neighbours, because a catalogue may be in
    the order of popularity. For few items it is minus infinity. What is not a number is left out.
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
    """Return the entries of each row that are at least `least`, in the order of the items."""
    place = np.flatnonzero(scores >= least[:, None])  # much faster than with two indices
    n_items = scores.shape[1]
    return Entries(place // n_items, place % n_items, scores.reshape(-1)[place])


def first_of(entries: Entries, rows: int, places: int) -> tuple[IntArray, Scores]:
    """Return the best items of each row and their scores, best first: (rows, places) each.

    Equal ones are in the order of the catalogue. Where there are fewer above minus infinity, the
    rest is -1 and minus infinity.
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
