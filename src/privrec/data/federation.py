"""A population of clients (people), stored as columns. Only requested clients are read."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients, nobody
from privrec.data.schema import SIDES, Bags, Schema
from privrec.data.text import short
from privrec.types import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Federation:
    """A data set, seen as the devices that hold the data.

    `take(positions)` is the only access to people's data. It returns the columns of the clients at
    these positions and of no other client. `ids(positions)` are their `Clients.ids`. `largest` is
    an upper bound of one client's number of interactions. `repeats` tells whether a person has the
    same item twice, and `has_times` whether the order of lines in time is known.

    `take_test(positions)` returns these clients' lines in the data set's own test file, which
    `take` never returns. It is None if there is no such file.

    `population` names the people in privacy ledgers, and `people` is their public number.
    `fingerprint` is a hash of the raw data: it binds a run to its data and is never released.
    `names` are the original ids of all people, or None if they can be read again from a file.
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
    has_times: bool = True
    take_test: Callable[[IntArray], Clients] | None = None
    names: Sequence[str] | None = None

    def __repr__(self) -> str:
        limit = self.catalogue.positive_above
        likes = f"likes above {limit:g}" if self.catalogue.has_dislikes else "every line a like"
        times = "times" if self.has_times else "no times"
        about = [f"{self.n_clients:,} people", f"{self.n_items:,} items", likes, times]
        for side in SIDES:
            named = ", ".join(short(feature.name, 30) for feature in self.schema.of(side))
            about += [f"{side} features {short(named, 200)}"] if named else []
        return f"Federation({short(self.name)!r}, {', '.join(about)})"

    @property
    def name(self) -> str:
        """The name of the data set."""
        return self.catalogue.name

    @property
    def schema(self) -> Schema:
        """The schema of all features."""
        return self.catalogue.schema

    @property
    def items(self) -> Bags:
        """The features of the items, one row per item."""
        return self.catalogue.items

    @property
    def n_items(self) -> int:
        """The number of items in the catalogue."""
        return self.catalogue.n_items


def without_people(catalogue: Catalogue) -> Federation:
    """Return a federation without people: what a single device knows of the data set."""
    return Federation(
        catalogue=catalogue,
        n_clients=0,
        take=lambda positions: nobody(catalogue.schema, len(positions)),
        ids=lambda positions: positions,
        largest=1,
        repeats=True,
        population=catalogue.name,
        people=0,
        fingerprint="",
    )


def part_of(federation: Federation, positions: IntArray) -> Federation:
    """Return a federation of only these people, in this order, with a population of its own."""
    kept = np.asarray(positions, np.int64)
    take_test, names = federation.take_test, federation.names
    mark = hashlib.sha256(federation.fingerprint.encode() + kept.tobytes()).hexdigest()
    return replace(
        federation,
        n_clients=len(kept),
        take=lambda places: federation.take(kept[places]),
        ids=lambda places: federation.ids(kept[places]),
        population=f"{federation.population}, part {mark[:16]}",
        people=len(kept),
        fingerprint=mark,
        take_test=None if take_test is None else lambda places: take_test(kept[places]),
        names=None if names is None else [names[place] for place in kept],
    )


def chunks(positions: IntArray, size: int = 1024) -> Sequence[IntArray]:
    """Return the positions in chunks of at most `size`, which limits memory."""
    return [positions[start : start + size] for start in range(0, len(positions), size)]
