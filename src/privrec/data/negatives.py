"""Negative sampling: a device draws items that are not in its own data."""

import numpy as np

from privrec.data.federation import Clients
from privrec.seeds import client_words
from privrec.types import BoolArray, IntArray

_TRIES = 24
"""The most draws for one negative. Chosen by hand; not tuned."""


def draw_negatives(
    clients: Clients, *, n_items: int, per_positive: int, seed: int, round_index: int
) -> tuple[IntArray, IntArray]:
    """Return (`line`, `item`): for each liked line of each client, `per_positive` unseen items.

    `line` is the interaction row of the like: the negative has the same owner and context. Unseen
    means unseen *in the data given here*. For a test person that is the first half, so an item of
    the second half is as likely to be drawn as any other; excluding it would leak the test data
    into the model. Draws are uniform. A client who has seen nearly all items may get fewer
    negatives, because a draw is given up after `_TRIES` seen items.
    """
    line = np.repeat(np.flatnonzero(clients.liked), per_positive)
    owner = clients.owner
    known = np.sort(owner * n_items + clients.item)
    drawn = np.zeros(len(line), np.int64)
    open_ = np.arange(len(line))
    number = np.arange(len(line)) - _first_of(owner[line], len(clients))[owner[line]]
    for attempt in range(_TRIES):
        words = client_words(
            seed,
            round_index,
            "negatives",
            clients.ids[owner[line[open_]]],
            number[open_] * _TRIES + attempt,
        )
        drawn[open_] = (words % np.uint64(n_items)).astype(np.int64)
        open_ = open_[_contains(known, owner[line[open_]] * n_items + drawn[open_])]
        if len(open_) == 0:
            break
    kept = np.ones(len(line), np.bool_)
    kept[open_] = False
    return line[kept], drawn[kept]


def _first_of(owner: IntArray, n_clients: int) -> IntArray:
    """Return for each client where its entries start in the sorted `owner`."""
    return np.searchsorted(owner, np.arange(n_clients))


def _contains(known: IntArray, wanted: IntArray) -> BoolArray:
    """Return for each wanted number whether the sorted `known` has it."""
    if len(known) == 0:
        return np.zeros(len(wanted), np.bool_)
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.asarray(known[place] == wanted)
