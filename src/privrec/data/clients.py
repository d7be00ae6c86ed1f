"""The data of some people as columns, the split of people into roles, and of lines into halves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from privrec.data.schema import Bag, Bags, Schema, Side
from privrec.data.text import brief
from privrec.errors import SettingsError
from privrec.seeds import Words, client_words
from privrec.types import F32, BoolArray, CodeArray, Halving, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clients:
    """The data of some clients (people), one after another.

    Client k has the interactions `offsets[k]:offsets[k + 1]`, in the order of `time`. An
    interaction is also called a line. `time` is in the unit of the data set; without times, it is
    the line's number. `ids[k]` is computed from the person's id alone; the random numbers of her
    device depend on it and never on other people. `features` has one row per client, `context` one
    per interaction.
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
        """The number of interactions of each client."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> IntArray:
        """The position k of the client of each interaction."""
        return np.repeat(np.arange(len(self.ids)), self.sizes)

    @property
    def place(self) -> IntArray:
        """The index of each interaction among the interactions of its client, from 0."""
        return np.arange(len(self.item)) - self.offsets[self.owner]

    def contexts_alone(self) -> "Clients":
        """Return the lines as a scorer may see them: without items and values."""
        return replace(
            self,
            item=np.zeros_like(self.item),
            value=np.zeros_like(self.value),
            liked=np.ones_like(self.liked),
        )

    def keep(self, mask: BoolArray) -> "Clients":
        """Return the same clients with only the interactions where `mask` is true."""
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
        # The cost of `self.sizes` would grow with the number of all clients.
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


def joined(parts: Sequence[Clients]) -> Clients:
    """Return the clients of all parts, one after another."""

    def bags(side: Sequence[Bags]) -> Bags:
        return {name: reduce(Bag.join, [bags[name] for bags in side]) for name in side[0]}

    sizes = np.concatenate([part.sizes for part in parts])
    return Clients(
        ids=np.concatenate([part.ids for part in parts]),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        item=np.concatenate([part.item for part in parts]),
        value=np.concatenate([part.value for part in parts]),
        liked=np.concatenate([part.liked for part in parts]),
        time=np.concatenate([part.time for part in parts]),
        features=bags([part.features for part in parts]),
        context=bags([part.context for part in parts]),
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
    """Return ranges of clients with about `lines` interactions each; each client is in one range.

    >>> cuts(np.array([0, 2, 2, 7, 9]), 4)
    [(0, 3), (3, 4)]
    """
    starts = np.searchsorted(offsets, np.arange(0, int(offsets[-1]), lines))
    return list(pairwise(np.unique([0, *starts, len(offsets) - 1]).tolist()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The positions of the people in each role. Spec: 80 % train, 20 % test.

    If people are split, each person has one role. If each person's lines are split, all people
    train and are tested, and some are also validation people. What validation people hold out
    decides settings, numbers of rounds and learning curves; only the final report uses test data.
    `public_train` is the public, approximate number of people who train.
    """

    public_train: int
    train: IntArray
    validation: IntArray
    test: IntArray

    __repr__ = brief

    @property
    def fitted(self) -> IntArray:
        """All people who are not only tested; reference models are fitted to their data."""
        return np.union1d(self.train, self.validation)


def split_clients(
    ids: IntArray,
    *,
    seed: int,
    test_share: float = 0.2,
    validation_share: float = 0.1,
    people: int | None = None,
) -> Split:
    """Return the roles of the people with these `Clients.ids`; `people` is their public number.

    A hash of (seed, the person's id) decides each role, so no person's presence changes another
    person's role. The shares hold on average. The test people depend on `seed` and `test_share`
    alone.

    >>> split = split_clients(np.arange(1000), seed=0)
    >>> len(split.train), len(split.validation), len(split.test)
    (732, 65, 203)
    """
    tests = chosen(ids, test_share, seed=seed, purpose="test")
    validates = ~tests & chosen(ids, validation_share, seed=seed, purpose="validation")
    public = len(ids) if people is None else people
    split = Split(
        public_train=max(1, round(public * (1 - test_share) * (1 - validation_share))),
        test=np.flatnonzero(tests),
        validation=np.flatnonzero(validates),
        train=np.flatnonzero(~tests & ~validates),
    )
    if len(split.train) == 0:
        raise SettingsError(
            f"nobody is left to train on: {len(ids)} people, test_share {test_share:g},"
            f" validation_share {validation_share:g}"
        )
    return split


_AT_A_TIME = 2**15
"""How many people's hashes are computed at once. Chosen by hand: they fit into a processor's
cache."""


def chosen(ids: IntArray, share: float, *, seed: int, purpose: str) -> BoolArray:
    """Return for each person whether she is chosen, by a hash of (seed, her id) alone."""
    is_chosen = np.empty(len(ids), np.bool_)
    for start in range(0, len(ids), _AT_A_TIME):
        some = ids[start : start + _AT_A_TIME]
        words = client_words(seed, 0, f"choose {purpose}", some, np.zeros(1, np.int64))
        is_chosen[start : start + _AT_A_TIME] = words.astype(np.float64) * 2.0**-64 < share
    return is_chosen


def halve(clients: Clients, *, seed: int, halving: Halving = "random") -> tuple[Clients, Clients]:
    """Return each client's first half, which stays on the device, and second half, for testing."""
    first = first_half(clients, seed=seed, halving=halving)
    return clients.keep(first), clients.keep(~first)


def first_half(clients: Clients, *, seed: int, halving: Halving) -> BoolArray:
    """Return for each interaction whether it is in its client's first half.

    Likes and dislikes are halved together (spec section 6). Of an odd number of interactions, the
    second half has one more. A person's halves do not depend on other people.
    """
    if halving == "random":
        place = drawn_places(clients, seed=seed, round_index=0, purpose="halve")
    else:
        place = clients.place
    return np.asarray(place < (clients.sizes // 2)[clients.owner])


def drawn_places(clients: Clients, *, seed: int, round_index: int, purpose: str) -> IntArray:
    """Return the index of each line in a random order of its client's lines, from 0."""
    owner, place = clients.owner, clients.place
    drawn = np.empty_like(place)
    words = client_words(seed, round_index, purpose, clients.ids[owner], place)
    drawn[grouped(owner, words)] = place
    return drawn


def grouped(owner: IntArray, words: Words) -> IntArray:
    """Return the order by owner and then by random word, faster than `np.lexsort`.

    `words` are random 64-bit numbers that differ within an owner, as those of `client_words` do.
    """
    order = np.argsort(words)
    # Numbers of one or two bytes (up to 65,536 owners) are sorted in one pass.
    short = owner.astype(np.min_scalar_type(int(owner.max(initial=0))))
    return order[np.argsort(short[order], kind="stable")]


def is_in(values: IntArray, some: IntArray) -> BoolArray:
    """Return which values are in the sorted array `some`, several times as fast as `np.isin`."""
    if not len(some):
        return np.zeros(len(values), np.bool_)
    place = np.minimum(np.searchsorted(some, values), len(some) - 1)
    return np.asarray(some[place] == values)
