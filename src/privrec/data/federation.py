"""A population of clients, stored as columns; only the data of requested clients is read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from privrec.data.catalogue import Catalogue
from privrec.data.schema import Bags, Schema
from privrec.types import BoolArray, CodeArray, FloatArray, IntArray


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
    value: FloatArray
    liked: BoolArray
    time: npt.NDArray[np.float64]
    features: Bags
    context: Bags

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
        rows = ranges(self.offsets[positions], self.sizes[positions])
        return Clients(
            ids=self.ids[positions],
            offsets=np.concatenate([[0], np.cumsum(self.sizes[positions])]),
            item=self.item[rows],
            value=self.value[rows],
            liked=self.liked[rows],
            time=self.time[rows],
            features={name: bag.take(positions) for name, bag in self.features.items()},
            context={name: bag.take(rows) for name, bag in self.context.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Federation:
    """A data set, seen as the devices that hold it.

    `take(positions)` is the only access to people's data: it builds the columns of those clients
    only. `ids(positions)` returns their `Clients.ids`. `largest` is an upper bound on the
    interactions of one client. `repeats` is true if a client may have the same item twice.

    `population` names the people in ledgers, and `people` is their public number. `fingerprint` is
    a hash of the raw data. It binds a run to its data and is never released.
    """

    catalogue: Catalogue
    n_clients: int
    take: Callable[[IntArray], Clients]
    ids: Callable[[IntArray], IntArray]
    largest: int
    repeats: bool
    population: str
    people: int
    fingerprint: str

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.catalogue.name

    @property
    def schema(self) -> Schema:
        """The features."""
        return self.catalogue.schema

    @property
    def items(self) -> Bags:
        """The items' features, one row per item."""
        return self.catalogue.items

    @property
    def n_items(self) -> int:
        """How many items the catalogue has."""
        return self.catalogue.n_items


def ranges(starts: npt.NDArray[np.integer], sizes: npt.NDArray[np.integer]) -> IntArray:
    """Return the concatenation of arange(start, start + size) for each pair.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    shifts: IntArray = np.repeat(starts - (ends - sizes), sizes).astype(np.int64)
    return np.arange(total, dtype=np.int64) + shifts


def chunks(positions: IntArray, size: int = 1024) -> Sequence[IntArray]:
    """Return the positions in chunks of at most `size`, to bound the memory of a full pass."""
    return [positions[start : start + size] for start in range(0, len(positions), size)]
