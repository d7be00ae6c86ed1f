"""Who trains, who validates, who tests; and which half of a person's data is tested."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from privrec.data.federation import Clients
from privrec.errors import SettingsError
from privrec.seeds import client_words, rng
from privrec.types import IntArray

Halving = Literal["random", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Positions of the people in each role; nobody has two. Spec: 80 % train, 20 % test.

    Validation people are cut out of the training people. Everything that is chosen (settings,
    rounds, curves) looks at them; the test people are looked at by the final report alone.
    """

    train: IntArray
    validation: IntArray
    test: IntArray


def split_clients(
    n_clients: int, *, seed: int, test_share: float = 0.2, validation_share: float = 0.1
) -> Split:
    """Return a random split of the population; the test people depend on `seed` alone.

    >>> split = split_clients(10, seed=0, validation_share=0.25)
    >>> len(split.train), len(split.validation), len(split.test)
    (6, 2, 2)
    """
    order = rng(seed, 0, "split").permutation(n_clients)
    n_test = round(n_clients * test_share)
    n_validation = round((n_clients - n_test) * validation_share)
    split = Split(
        test=np.sort(order[:n_test]),
        validation=np.sort(order[n_test : n_test + n_validation]),
        train=np.sort(order[n_test + n_validation :]),
    )
    if len(split.train) == 0:
        raise SettingsError(
            f"nobody is left to train on: {n_clients} people, test_share {test_share:g},"
            f" validation_share {validation_share:g}"
        )
    return split


def halve(clients: Clients, *, seed: int, halving: Halving = "random") -> tuple[Clients, Clients]:
    """Return each client's first half, which stays on the device, and second half, to be tested.

    Likes and dislikes are halved together (spec section 6); of an odd number the second half gets
    one more. A person's halves do not depend on who else is asked about.
    """
    owner = clients.owner
    place = np.arange(len(owner)) - clients.offsets[owner]
    if halving == "random":
        words = client_words(seed, 0, "halve", clients.ids[owner], place)
        order = np.lexsort((words, owner))
        place = np.empty_like(place)
        place[order] = np.arange(len(owner)) - clients.offsets[owner]
    first = place < (clients.sizes // 2)[owner]
    return clients.keep(first), clients.keep(~first)
