"""How a trained model ranks on a device.

The best items of each row of scores, selected and not sorted; numpy alone, as on a phone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privrec.data.clients import Clients
from privrec.data.schema import Bag
from privrec.errors import RunFolderError
from privrec.types import IntArray, Leaf, Params

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


def check_shapes(params: Mapping[str, Leaf], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless all expected parameters exist and have the expected shapes."""
    for name, shape in expected.items():
        found = np.shape(params[name]) if name in params else None
        if found != shape:
            raise RunFolderError(
                f"the parameters do not fit the catalogue: {name!r} must have shape {shape}; "
                + ("it is missing" if found is None else f"got {found}")
            )


def top_items(scores: Scores, top: int) -> tuple[IntArray, Scores]:
    """Return the `top` best items of each row, best first, and their scores: (rows, top) each.

    Items of the same score are in the order of the catalogue. What is not a number counts as minus
    infinity. Whoever leaves items out gives them that score, and ignores it here.

    >>> items, scores = top_items(np.array([[0.5, 0.9, 0.5, -np.inf]]), 2)
    >>> items.tolist(), scores.tolist()
    ([[1, 0]], [[0.9, 0.5]])
    """
    scores = np.where(np.isnan(scores), -np.inf, scores).astype(scores.dtype, copy=False)
    n_items = scores.shape[1]
    top = min(top, n_items)
    chosen = np.argpartition(scores, n_items - top, axis=1)[:, n_items - top :]
    least = np.take_along_axis(scores, chosen, 1).min(axis=1, keepdims=True)
    # Of items that tie for the last place, any may have been selected: take the first ones.
    for row in np.flatnonzero(((scores >= least).sum(1) > top) & (least[:, 0] > -np.inf)):
        above = np.flatnonzero(scores[row] > least[row])
        equal = np.flatnonzero(scores[row] == least[row])
        chosen[row] = np.concatenate([above, equal[: top - len(above)]])
    values = np.take_along_axis(scores, chosen, 1)
    order = np.lexsort((chosen, -values), axis=1)
    return np.take_along_axis(chosen, order, 1), np.take_along_axis(values, order, 1)
