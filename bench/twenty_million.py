"""Makes up ratings at the shape of MovieLens-20M and writes them as a CSV file.

    python bench/twenty_million.py ratings.csv [--people N] [--items N] [--ratings N] [--seed N]
        [--features items.csv]

`--features` writes what is public of each item too: its kind, which says much of who likes it, and
for one item in four a second kind that says nothing; its maker, which says nothing.

Activity and fame have long tails, and tastes are shared: people and items have vectors, which
decide what somebody rates and how. The counts are those of MovieLens-20M (Harper and Konstan 2015)
unless others are given; all other numbers were chosen by hand, near its published figures.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.special import ndtri

from privrec.types import F32

Ints = npt.NDArray[np.int64]

_DIMENSIONS = 12
_GROUPS = 40
_KINDS = 20
_FEWEST, _MEDIAN, _MOST = 20, 68, 9254
_TASTE = 4.0
"""How strongly taste decides what somebody rates, beside fame."""
_FIRST_DAY, _LAST_DAY = 789_652_009, 1_427_784_002


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What all people share. `fame` are weights of sum 1; `names` are the items' ids."""

    items: F32
    kinds: Ints
    fame: npt.NDArray[np.float64]
    quality: F32
    groups: F32
    names: Ints


def world(n_items: int, draw: np.random.Generator) -> World:
    """Return the items and the groups of taste."""
    centres = unit(draw.normal(size=(_KINDS, _DIMENSIONS)))
    kinds = draw.integers(_KINDS, size=n_items)
    vectors = centres[kinds] + 0.5 * unit(draw.normal(size=(n_items, _DIMENSIONS)))
    level = ndtri((draw.permutation(n_items) + 0.5) / n_items)
    fame = np.exp(2.2 * level)
    fame = np.minimum(fame, 0.004 * fame.sum())
    return World(
        items=unit(vectors),
        kinds=kinds,
        fame=fame / fame.sum(),
        quality=(0.25 * level / 2.2 + 0.3 * draw.normal(size=n_items)).astype(np.float32),
        groups=unit(draw.normal(size=(_GROUPS, _DIMENSIONS))),
        names=np.sort(draw.choice(5 * n_items, n_items, replace=False) + 1),
    )


def unit(vectors: npt.NDArray[np.float64]) -> F32:
    """Return the rows at length 1."""
    scaled: F32 = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def activity(people: int, items: int, ratings: int, draw: np.random.Generator) -> Ints:
    """Return how many ratings each person has: log-normal, `ratings` in all."""
    most = min(_MOST, items // 2)
    if not _FEWEST * people <= ratings <= most * people:
        raise SystemExit(f"--ratings must be {_FEWEST} to {most} for each person; got {ratings}")
    spread = np.sqrt(2 * np.log(max(ratings / people / _MEDIAN, 1.1)))
    wanted = np.exp(spread * draw.normal(size=people))
    low, high = 0.0, float(ratings)
    for _ in range(100):
        scale = (low + high) / 2
        total = np.clip(scale * wanted, _FEWEST, most).astype(np.int64).sum()
        low, high = (scale, high) if total < ratings else (low, scale)
    sizes: Ints = np.clip(low * wanted, _FEWEST, most).astype(np.int64)
    while (missing := ratings - int(sizes.sum())) > 0:
        sizes[draw.choice(np.flatnonzero(sizes < most), min(missing, people // 10), True)] += 1
        sizes = np.minimum(sizes, most)
    # Rounding never gives too many: `low` is the scale that gives too few.
    return sizes


def chosen(
    made: World, tastes: F32, sizes: Ints, first: int, draw: np.random.Generator
) -> tuple[Ints, Ints]:
    """Return the owners (positions in the chunk) and items of a chunk's ratings, by owner and item.

    Each person looks at more items than she rates, drawn by fame, and takes those that suit her
    taste best, up to Gumbel noise. Person k also takes item k, so that every item occurs.
    """
    n_items, count = len(made.fame), len(sizes)
    looks = 4 * sizes + 60
    owner = np.repeat(np.arange(count), looks)
    seen = np.searchsorted(np.cumsum(made.fame), draw.random(len(owner))).clip(0, n_items - 1)
    certain = np.arange(first, min(first + count, n_items))
    sure = np.arange(len(certain)) * n_items + certain
    # Whoever rates much looks at everything: draws by fame alone would repeat themselves.
    busy = sizes > n_items // 25
    everything = (np.flatnonzero(busy)[:, None] * n_items + np.arange(n_items)).ravel()
    rest = (owner * n_items + seen)[~busy[owner]]
    pairs = np.unique(np.concatenate([sure, everything, rest]))
    owner, seen = np.divmod(pairs, n_items)
    suits = np.einsum("kd,kd->k", tastes[owner], made.items[seen])
    score = _TASTE * suits + draw.gumbel(size=len(pairs)).astype(np.float32)
    weigh = busy[owner]
    score[weigh] += np.log(made.fame[seen[weigh]])
    score[np.searchsorted(pairs, sure)] = np.inf
    order = np.lexsort((-score, owner))
    starts = np.searchsorted(owner, np.arange(count))
    place = np.arange(len(pairs)) - starts[owner]
    kept = np.sort(order[place < sizes[owner]])
    if len(kept) < sizes.sum():
        raise SystemExit("somebody looks at fewer items than she should rate: give more --items")
    return owner[kept], seen[kept]


def rated(
    made: World, sizes: Ints, draw: np.random.Generator, size: int = 2000
) -> Iterator[pl.DataFrame]:
    """Yield the ratings of `size` people at a time, in the order of people and items."""
    for first in range(0, len(sizes), size):
        some = sizes[first : first + size]
        group = made.groups[draw.integers(_GROUPS, size=len(some))]
        tastes = unit(group + 0.7 * unit(draw.normal(size=(len(some), _DIMENSIONS))))
        owner, item = chosen(made, tastes, some, first, draw)
        suits = np.einsum("kd,kd->k", tastes[owner], made.items[item])
        mild = 0.4 * draw.normal(size=len(some))
        stars = 3.0 + mild[owner] + made.quality[item] + 1.1 * suits
        stars += 0.7 * draw.normal(size=len(owner))
        start = draw.integers(_FIRST_DAY, _LAST_DAY, len(some))
        pauses = draw.exponential(40_000, len(owner))
        yield pl.DataFrame(
            {
                "userId": first + 1 + owner,
                "movieId": made.names[item],
                "rating": np.clip(np.rint(2 * stars) / 2, 0.5, 5.0),
                # Items are rated in a random order, not in that of the file.
                "timestamp": start[owner] + (pauses * some[owner] ** 0.5).astype(np.int64),
            }
        )


def described(made: World, draw: np.random.Generator) -> pl.DataFrame:
    """Return what is public of each item: its kind or kinds, and its maker."""
    count = len(made.names)
    others = np.where(draw.random(count) < 0.25, draw.integers(_KINDS, size=count), made.kinds)
    return pl.DataFrame(
        {
            "movieId": made.names,
            "kinds": [
                "|".join(f"k{kind}" for kind in dict.fromkeys(both))
                for both in zip(made.kinds.tolist(), others.tolist(), strict=True)
            ],
            "maker": [f"m{maker}" for maker in draw.integers(50, size=count)],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Make up ratings at MovieLens-20M's shape.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--features", type=Path)
    for name, count in (
        ("people", 138_493),
        ("items", 26_744),
        ("ratings", 20_000_263),
        ("seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=count)
    given = parser.parse_args()
    draw = np.random.default_rng(given.seed)
    made = world(given.items, draw)
    sizes = activity(given.people, given.items, given.ratings, draw)
    written = 0
    with given.out.open("wb") as file:
        for frame in rated(made, sizes, draw):
            frame.write_csv(file, include_header=written == 0)
            written += frame.height
    print(f"{given.out}: {written:,} ratings of {given.people:,} people")
    if given.features:
        described(made, np.random.default_rng((given.seed, 1))).write_csv(given.features)


if __name__ == "__main__":
    main()
