"""A synthetic population, generated client by client and never in memory as a whole.

Each person is drawn from (seed, position) alone, so the cost of a cohort does not depend on the
size of the population. She has demographics, a taste vector that partly depends on them, a
long-tailed number of interactions, items chosen by taste and popularity, ratings and times. All
numbers of the generator were chosen by hand.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.schema import Bag, Feature, Schema, encode
from privrec.errors import SettingsError
from privrec.seeds import client_words, rng
from privrec.types import CodeArray, IntArray

_GENRES = ("crime", "comedy", "space", "history", "nature", "music", "horror", "romance")
_AGES = ("under 18", "18-29", "30-44", "45-59", "60 and over")
_REGIONS = ("north", "south", "east", "west", "islands", "abroad")
_FIRST = (
    "Silent", "Golden", "Broken", "Hidden", "Last", "Burning", "Distant", "Electric", "Winter",
    "Crimson", "Paper", "Wandering", "Hollow", "Velvet", "Northern", "Borrowed",
)  # fmt: skip
_SECOND = (
    "Harbour", "Garden", "Letter", "Mountain", "Orchestra", "Signal", "River", "Lantern", "Island",
    "Clockmaker", "Orbit", "Kitchen", "Forest", "Station", "Mirror", "Parade",
)  # fmt: skip
_TASTE_SIZE = 8
_TASTE = 5.0
"""The weight of taste, relative to popularity, when items are drawn."""
_ALL_LOOKED_AT = 4096
"""In a catalogue of up to this many items, each person considers all items."""
_LOOKED_AT = 1024
"""The number of items that a person considers in a larger catalogue, or four times the longest
history if that is more."""
_START = 1_600_000_000.0
_DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSettings:
    """The sizes of the population and of the catalogue, and the longest history."""

    users: int = 2000
    items: int = 600
    longest: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("users", 2), ("items", 20), ("longest", 10), ("seed", 0)):
            if getattr(self, name) < least:
                raise SettingsError(
                    f"synthetic: `{name}` must be >= {least}; got {getattr(self, name)}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """What all people share: item vectors, popularity, and the tastes of demographic groups."""

    items: npt.NDArray[np.floating]
    appeal: npt.NDArray[np.float64]
    genres: Bag
    groups: "_Groups | None"
    ages: npt.NDArray[np.float64]
    regions: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Groups of items of a large catalogue: similar popularity, about the same total weight.

    Group g has the items `by_fame[starts[g] : starts[g] + sizes[g]]`.
    """

    by_fame: CodeArray
    starts: IntArray
    sizes: IntArray


_GENRE = Feature(name="genres", side="item", kind="multi", values=_GENRES)


def synthetic(settings: SyntheticSettings) -> Federation:
    """Return the population of these settings."""
    world = _world(settings)
    schema = Schema(
        features=(
            Feature(name="age", side="user", kind="categorical", values=_AGES),
            Feature(name="region", side="user", kind="categorical", values=_REGIONS),
            _GENRE,
        )
    )
    name = synthetic_name(settings)
    # Older versions drew other people for large catalogues: each person considered all items.
    law = "" if world.groups is None else " by groups"
    return Federation(
        catalogue=Catalogue(
            name=name,
            schema=schema,
            item_ids=[f"i{k}" for k in range(settings.items)],
            titles=[_title(k) for k in range(settings.items)],
            items={_GENRE.table: world.genres},
            positive_above=3.0,
        ),
        n_clients=settings.users,
        take=lambda positions: _people(settings, world, schema, positions),
        ids=lambda positions: np.asarray(positions, np.int64),
        largest=min(settings.longest, settings.items // 2),
        repeats=False,
        population=name,
        people=settings.users,
        fingerprint=hashlib.sha256(f"{name}{law}".encode()).hexdigest(),
    )


def synthetic_name(settings: SyntheticSettings) -> str:
    """Return the name with which `load` returns the same population.

    >>> synthetic_name(SyntheticSettings(users=60, seed=3))
    'synthetic:users=60,seed=3'
    """
    changed = [
        f"{field.name}={getattr(settings, field.name)}"
        for field in fields(settings)
        if getattr(settings, field.name) != field.default
    ]
    return "synthetic" + (f":{','.join(changed)}" if changed else "")


def _world(settings: SyntheticSettings) -> _World:
    draw = rng(settings.seed, 0, "synthetic world")
    centres = draw.normal(size=(len(_GENRES), _TASTE_SIZE))
    counts = draw.integers(1, 4, settings.items)
    large = settings.items > _ALL_LOOKED_AT
    genres, means = (_drawn_at_once if large else _drawn_one_by_one)(draw, counts, centres)
    vectors = means + 0.7 * draw.normal(size=(settings.items, _TASTE_SIZE))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    # Zipf-like popularity: the k-th item of a random order is drawn with weight 1/k^0.6.
    fame = draw.permutation(settings.items) + 1
    groups, appeal = _grouped(fame, settings.longest) if large else (None, -0.6 * np.log(fame))
    return _World(
        items=vectors.astype(np.float32) if large else vectors,
        appeal=appeal,
        genres=genres,
        groups=groups,
        ages=draw.normal(size=(len(_AGES), _TASTE_SIZE)),
        regions=draw.normal(size=(len(_REGIONS), _TASTE_SIZE)),
    )


def _drawn_one_by_one(
    draw: np.random.Generator, counts: IntArray, centres: npt.NDArray[np.float64]
) -> tuple[Bag, npt.NDArray[np.float64]]:
    """Return the genres of each item, and the mean of their centres."""
    genres = [draw.choice(len(_GENRES), count, replace=False) for count in counts]
    names = [[_GENRES[genre] for genre in chosen] for chosen in genres]
    return encode(_GENRE, names), np.stack([centres[chosen].mean(0) for chosen in genres])


def _drawn_at_once(
    draw: np.random.Generator, counts: IntArray, centres: npt.NDArray[np.float64]
) -> tuple[Bag, npt.NDArray[np.float64]]:
    """Return the same for many items, without a loop: other genres from the same distribution."""
    shuffled = np.argsort(draw.random((len(counts), len(_GENRES)), np.float32), axis=1)
    has = np.arange(3) < counts[:, None]
    codes = np.where(has, shuffled[:, :3], 0).astype(np.int32)
    weights = (has / counts[:, None]).astype(np.float32)
    return Bag(codes=codes, weights=weights), np.einsum("kg,kgd->kd", weights, centres[codes])


def _grouped(fame: npt.NDArray[np.int64], longest: int) -> tuple[_Groups, npt.NDArray[np.float64]]:
    """Return the groups, and the logarithm of each group's weight (the sum of its items' 1/k^0.6).

    Each of the most popular items is a group of its own.
    """
    count = min(max(_LOOKED_AT, 4 * longest), len(fame))
    weight = np.concatenate([[0.0], np.cumsum(np.arange(1.0, len(fame) + 1) ** -0.6)])
    place = np.arange(count + 1)
    bounds = np.searchsorted(weight, weight[-1] * place / count)
    # Each group must have at least one item.
    bounds = np.maximum.accumulate(bounds - place) + place
    bounds = np.minimum(bounds, len(fame) - count + place)
    groups = _Groups(
        by_fame=np.argsort(fame).astype(np.int32), starts=bounds[:-1], sizes=np.diff(bounds)
    )
    return groups, np.log(np.diff(weight[bounds]))


_Uniform = Callable[[str, int], npt.NDArray[np.float64]]
"""A function of a purpose and a count that returns this many uniform numbers for each person."""


def _choices(
    world: _World, taste: npt.NDArray[np.float64], uniform: _Uniform, longest: int
) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.floating]]:
    """Return each person's items, best first, and their affinities (inner products) to her taste.

    The items are the best `longest` by 5 · affinity + appeal + Gumbel noise. In a large catalogue,
    a person considers one random item of each group, with the group's appeal. The distribution is
    about the same.
    """
    groups = world.groups
    if groups is None:
        affinity = taste @ world.items.T
    else:
        within = uniform("look", len(groups.sizes)) * groups.sizes
        seen = groups.by_fame[groups.starts + within.astype(np.int64)]
        affinity = np.einsum("kd,kgd->kg", taste.astype(np.float32), world.items[seen])
    gumbel = -np.log(-np.log(uniform("choice", affinity.shape[1])))
    best = np.argsort(-(_TASTE * affinity + world.appeal + gumbel), axis=1)[:, :longest]
    items = best if groups is None else np.take_along_axis(seen, best, 1)
    return items, np.take_along_axis(affinity, best, 1)


def _people(
    settings: SyntheticSettings, world: _World, schema: Schema, positions: IntArray
) -> Clients:
    positions = np.asarray(positions, np.int64)

    def uniform(purpose: str, count: int) -> npt.NDArray[np.float64]:
        words = client_words(
            settings.seed, 0, f"synthetic {purpose}", positions[:, None], np.arange(count)[None, :]
        )
        # With 53 bits, the largest number would round to 1, whose normal quantile is infinite.
        return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    age = (uniform("age", 1)[:, 0] * len(_AGES)).astype(np.int32)
    region = (uniform("region", 1)[:, 0] * len(_REGIONS)).astype(np.int32)
    taste = world.ages[age] + world.regions[region] + 1.2 * ndtri(uniform("taste", _TASTE_SIZE))
    taste /= np.linalg.norm(taste, axis=1, keepdims=True)
    longest = min(settings.longest, settings.items // 2)
    spread = np.exp(3.2 + 0.8 * ndtri(uniform("activity", 1)[:, 0]))
    sizes = np.clip(spread, min(6, longest), longest).astype(np.int64)
    ranked, suits = _choices(world, taste, uniform, longest)
    mood = ndtri(uniform("mood", longest))
    stars = np.clip(np.rint(3.3 + 2.0 * suits + 0.6 * mood), 1, 5)
    # `ranked` has the best items first; interactions come in a random order.
    order = np.argsort(uniform("order", longest), axis=1)
    chosen = np.arange(longest)[None, :] < sizes[:, None]
    rows, places = np.nonzero(np.take_along_axis(chosen, order, 1))
    kept = order[rows, places]
    value = stars[rows, kept].astype(np.float32)
    # Each person starts on a random day of a year; the pauses between interactions are random.
    days = 365 * uniform("start", 1) + np.cumsum(-np.log(uniform("pauses", longest)), axis=1)
    ones = np.ones((len(positions), 1), np.float32)
    return Clients(
        ids=positions,
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        item=ranked[rows, kept].astype(np.int32),
        value=value,
        liked=value > 3.0,
        time=np.rint(_START + _DAY * days[rows, places]),
        features={
            schema.named("age", "user").table: Bag(codes=age[:, None], weights=ones),
            schema.named("region", "user").table: Bag(codes=region[:, None], weights=ones),
        },
        context={},
    )


def _title(k: int) -> str:
    """Return a title that no other item has.

    >>> _title(0), _title(256)
    ('The Silent Harbour', 'The Silent Harbour 2')
    """
    first, second = _FIRST[k % 16], _SECOND[(k // 16) % 16]
    volume = k // 256 + 1
    return f"The {first} {second}" + (f" {volume}" if volume > 1 else "")
