"""The split into training, validation and test people, and the halves of a test person's data."""

from dataclasses import dataclass

import numpy as np

from privrec.data.clients import Clients
from privrec.data.text import brief
from privrec.errors import SettingsError
from privrec.seeds import client_words
from privrec.types import BoolArray, Halving, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Positions of the people in each role. Spec: 80 % train, 20 % test.

    Nobody has two roles where people are split; where their lines are, everybody trains and is
    tested, and some validate. Everything that is chosen (settings, rounds, curves) looks at what
    validation people hold out; what is tested is looked at by the final report alone.
    `public_train` is about how many train, as everybody may know.
    """

    public_train: int
    train: IntArray
    validation: IntArray
    test: IntArray

    __repr__ = brief

    @property
    def fitted(self) -> IntArray:
        """Everybody but those who are only tested: whom a reference is fitted to."""
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

    Each role is a hash of (seed, the person's id), so one person's presence never changes another
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
"""People whose hashes are computed at once. Chosen by hand: they fit into a processor's cache."""


def chosen(ids: IntArray, share: float, *, seed: int, purpose: str) -> BoolArray:
    """Return for each person whether she is chosen: a hash of (seed, her id) decides alone."""
    found = np.empty(len(ids), np.bool_)
    for start in range(0, len(ids), _AT_A_TIME):
        some = ids[start : start + _AT_A_TIME]
        words = client_words(seed, 0, f"choose {purpose}", some, np.zeros(1, np.int64))
        found[start : start + _AT_A_TIME] = words.astype(np.float64) * 2.0**-64 < share
    return found


def halve(clients: Clients, *, seed: int, halving: Halving = "random") -> tuple[Clients, Clients]:
    """Return each client's first half, which stays on the device, and second half, to be tested."""
    first = first_half(clients, seed=seed, halving=halving)
    return clients.keep(first), clients.keep(~first)


def first_half(clients: Clients, *, seed: int, halving: Halving) -> BoolArray:
    """Return for each interaction whether it is in its client's first half.

    Likes and dislikes are halved together (spec section 6). With an odd number, the second half
    has one more. A person's halves do not depend on the other people in `clients`.
    """
    owner = clients.owner
    place = np.arange(len(owner)) - clients.offsets[owner]
    if halving == "random":
        words = client_words(seed, 0, "halve", clients.ids[owner], place)
        order = np.lexsort((words, owner))
        place = np.empty_like(place)
        place[order] = np.arange(len(owner)) - clients.offsets[owner]
    return np.asarray(place < (clients.sizes // 2)[owner])
