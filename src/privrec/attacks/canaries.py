"""Canaries: made-up people who take part in a training or not, each by the toss of a coin.

An audit knows the coins and the canaries' data, and looks whether what is published gives the coins
away. A canary is a person like any other to the training: she has lines on her device.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.schema import Bags
from privrec.errors import SettingsError
from privrec.seeds import rng
from privrec.simulate.cost import available_memory
from privrec.types import BoolArray, IntArray, Law

_LINES = 40
"""How many lines a canary has at most. Chosen by hand; not tuned."""
_RARE = 2
"""How many of them are among the least popular items: few others touch what these touch."""
_PAIR_BYTES = 40
"""An audit keeps about five numbers for each pair of canaries."""
_FIRST_ID = 2**40
"""Ids of canaries begin here, above those of any data set."""
_MOST_ITEMS = 5000
"""So many items has a person who likes all. Chosen by hand: more would take long in a network."""
_HUGE = 1e30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Canaries:
    """The canaries' data, and for each whether she takes part: `coins` are independent and fair."""

    people: Clients
    coins: BoolArray

    def __len__(self) -> int:
        return len(self.coins)


def make_canaries(federation: Federation, count: int, *, seed: int) -> Canaries:
    """Return `count` canaries for a data set.

    Each likes random items, a few of them rare. Features, values and contexts are those of real
    people and lines, drawn at random, so that the training accepts them.
    """
    if count < 20:
        raise SettingsError(f"`canaries` must be >= 20; got {count}")
    free = available_memory()
    if free is not None and _PAIR_BYTES * count**2 > free:
        most = math.isqrt(free // _PAIR_BYTES)
        raise SettingsError(
            f"`canaries` must be <= {most:,}, for which the free memory is enough; got {count:,}"
        )
    draw = rng(seed, 0, "canaries")
    models = federation.take(draw.integers(federation.n_clients, size=count))
    liked = np.flatnonzero(models.liked)
    if not len(liked):
        raise SettingsError(f"{federation.name}: nobody likes anything; an audit needs likes")
    n_items = federation.n_items
    lines = min(_LINES, federation.largest, max(n_items // 4, 2), n_items)
    items = _items(federation, count, lines, draw)
    copied = draw.choice(liked, count * lines)
    people = Clients(
        ids=_FIRST_ID + np.arange(count),
        offsets=lines * np.arange(count + 1),
        item=items.ravel().astype(np.int32),
        value=models.value[copied],
        liked=models.liked[copied],
        time=np.sort(models.time[copied].reshape(count, lines), axis=1).ravel(),
        features=models.features,
        context={name: bag.take(copied) for name, bag in models.context.items()},
    )
    return Canaries(people=people, coins=draw.random(count) < 0.5)


def _items(federation: Federation, count: int, lines: int, draw: np.random.Generator) -> IntArray:
    """Return each canary's items, shape (count, lines); the first ones of each are rare."""
    n = federation.n_items
    sample = federation.take(np.unique(draw.integers(federation.n_clients, size=2000)))
    often = np.bincount(sample.item, minlength=n)
    # Equally rare ones in random order.
    rare = np.lexsort((draw.random(n), often))[: max(n // 4, lines)]
    few = min(_RARE, lines - 1)
    items = np.empty((count, lines), np.int64)
    for k in range(count):
        items[k, :few] = rare[(k * few + np.arange(few)) % len(rare)]
        others = draw.permutation(n)
        items[k, few:] = others[~np.isin(others, items[k, :few])][: lines - few]
    return items


def odd_people(person: Clients, items: IntArray) -> dict[str, Clients]:
    """Return people of a kind that a bound may be wrong for, by what they are.

    Their features and contexts are those of `person`. `items` are all items of the catalogue; one
    who has few of them has the first ones.
    """
    made = partial(_with_lines, person)
    lines = np.arange(len(person.item))
    twice, other = np.tile(lines, 2), np.concatenate([lines, np.roll(lines, 1)])
    first, every = items[: len(lines)], items[:_MOST_ITEMS]
    both, same = np.tile(first, 2), np.repeat(first[:1], len(twice))

    return {
        "without lines": made(lines[:0], items[:0]),
        "of one line": made(lines[:1], items[:1]),
        "who dislikes all": made(lines, first, liked=False),
        "of likes and dislikes": made(lines, first, lines % 2 == 0),
        "who likes and dislikes each item": made(twice, both, np.arange(len(twice)) < len(lines)),
        "of each line twice, in other contexts": made(other, both),
        "of one item in all lines": made(other, same),
        "of one item in all lines, liked and disliked": made(other, same, other % 2 == 0),
        "who likes every item": made(np.arange(len(every)) % len(lines), every),
        "of huge numbers": replace(
            made(lines, first),
            value=np.full_like(person.value, _HUGE),
            features=_huge(person.features),
            context=_huge(person.context),
        ),
    }


def _with_lines(
    person: Clients, lines: IntArray, items: IntArray, liked: BoolArray | bool = True
) -> Clients:
    """Return the person with some of her lines, about these items."""
    return replace(
        person,
        offsets=np.array([0, len(lines)]),
        item=items.astype(np.int32),
        value=person.value[lines],
        liked=np.full(len(lines), liked),
        time=np.arange(len(lines), dtype=np.float64),
        context={name: bag.take(lines) for name, bag in person.context.items()},
    )


def _huge(bags: Bags) -> Bags:
    return {
        name: bag._replace(weights=np.full_like(bag.weights, _HUGE)) for name, bag in bags.items()
    }


def with_canaries(federation: Federation, canaries: Canaries, law: Law) -> Federation:
    """Return the data set with the canaries whose coin shows heads, after everybody else.

    The guarantee for cohorts of a fixed size replaces a person by another one. So there the other
    canaries are people without data; under Poisson sampling they are not there.
    """
    people, n = canaries.people, federation.n_clients
    if law == "fixed":
        present = people.keep(canaries.coins[people.owner])
    else:
        present = people.take(np.flatnonzero(canaries.coins))

    def take(positions: IntArray) -> Clients:
        real = positions < n
        if real.all():
            return federation.take(positions)
        joined = join(federation.take(positions[real]), present.take(positions[~real] - n))
        # Back to the order that was asked for.
        place = np.empty(len(positions), np.int64)
        place[np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)])] = np.arange(
            len(positions)
        )
        return joined.take(place)

    def ids(positions: IntArray) -> IntArray:
        all_ids = np.empty(len(positions), np.int64)
        real = positions < n
        all_ids[real] = federation.ids(positions[real])
        all_ids[~real] = present.ids[positions[~real] - n]
        return all_ids

    mark = hashlib.sha256(federation.fingerprint.encode())
    for array in (present.ids, present.offsets, present.item):
        mark.update(np.ascontiguousarray(array).tobytes())
    return replace(
        federation,
        n_clients=n + len(present),
        take=take,
        ids=ids,
        population=f"{federation.population}, audited",
        people=federation.people + (len(present) if law == "fixed" else len(canaries)),
        fingerprint=mark.hexdigest(),
        take_test=None,
    )


def join(first: Clients, other: Clients) -> Clients:
    """Return the clients of both, the first ones first."""
    return Clients(
        ids=np.concatenate([first.ids, other.ids]),
        offsets=np.concatenate([first.offsets, first.offsets[-1] + other.offsets[1:]]),
        item=np.concatenate([first.item, other.item]),
        value=np.concatenate([first.value, other.value]),
        liked=np.concatenate([first.liked, other.liked]),
        time=np.concatenate([first.time, other.time]),
        features={name: bag.join(other.features[name]) for name, bag in first.features.items()},
        context={name: bag.join(other.context[name]) for name, bag in first.context.items()},
    )
