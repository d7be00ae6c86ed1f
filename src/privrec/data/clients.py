"""The data of some people, as it lies on their devices, held as columns."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from privrec.data.schema import Bag, Bags, Schema, Side
from privrec.types import F32, BoolArray, CodeArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clients:
    """The data of some clients, one after another.

    Client k has the interaction rows `offsets[k]:offsets[k + 1]`, in the order of `time`. Time is
    in the data's own unit, or the line number if the data has no times. `ids[k]` is a number
    computed from the person's id alone. The random numbers of a device depend on it and never on
    other people. `features` has one row per client, `context` one row per interaction.
    """

    ids: IntArray
    offsets: IntArray
    item: CodeArray
    value: F32
    liked: BoolArray
    time: npt.NDArray[np.float64]
    features: Bags
    context: Bags

    def __repr__(self) -> str:
        return f"Clients({len(self):,} people, {len(self.item):,} lines)"

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sizes(self) -> IntArray:
        """How many interactions each client has."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> IntArray:
        """For each interaction, the position k of its client."""
        return np.repeat(np.arange(len(self.ids)), self.sizes)

    def keep(self, mask: BoolArray) -> "Clients":
        """Return the same clients with only the interactions that `mask` keeps."""
        counts = np.bincount(self.owner[mask], minlength=len(self.ids))
        return replace(
            self,
            offsets=np.concatenate([[0], np.cumsum(counts)]),
            item=self.item[mask],
            value=self.value[mask],
            liked=self.liked[mask],
            time=self.time[mask],
            context={name: bag.take(mask) for name, bag in self.context.items()},
        )

    def take(self, positions: IntArray) -> "Clients":
        """Return the clients at the given positions, in that order."""
        # Not `self.sizes`: its cost grows with everybody, and this must not.
        starts = self.offsets[positions]
        sizes = self.offsets[positions + 1] - starts
        rows = ranges(starts, sizes)
        return Clients(
            ids=self.ids[positions],
            offsets=np.concatenate([[0], np.cumsum(sizes)]),
            item=self.item[rows],
            value=self.value[rows],
            liked=self.liked[rows],
            time=self.time[rows],
            features={name: bag.take(positions) for name, bag in self.features.items()},
            context={name: bag.take(rows) for name, bag in self.context.items()},
        )


def nobody(schema: Schema, count: int) -> Clients:
    """Return `count` people without any data."""

    def bags(side: Side, rows: int) -> Bags:
        empty = Bag(np.zeros((rows, 1), np.int32), np.zeros((rows, 1), np.float32))
        return {feature.table: empty for feature in schema.of(side)}

    return Clients(
        ids=np.arange(count),
        offsets=np.zeros(count + 1, np.int64),
        item=np.zeros(0, np.int32),
        value=np.zeros(0, np.float32),
        liked=np.zeros(0, np.bool_),
        time=np.zeros(0, np.float64),
        features=bags("user", count),
        context=bags("context", 0),
    )


def ranges(starts: npt.NDArray[np.integer], sizes: npt.NDArray[np.integer]) -> IntArray:
    """Return the concatenation of arange(start, start + size) for each pair.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    shifts: IntArray = np.repeat(starts - (ends - sizes), sizes).astype(np.int64)
    return np.arange(total, dtype=np.int64) + shifts


def cuts(offsets: IntArray, lines: int) -> list[tuple[int, int]]:
    """Return ranges of clients, everybody in one of them, of about `lines` interactions each.

    >>> cuts(np.array([0, 2, 2, 7, 9]), 4)
    [(0, 3), (3, 4)]
    """
    starts = np.searchsorted(offsets, np.arange(0, int(offsets[-1]), lines))
    return list(pairwise(np.unique([0, *starts, len(offsets) - 1]).tolist()))
