"""Who trains which model: the two games of membership inference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privrec.errors import SettingsError, check_extra, nearest
from privrec.seeds import rng
from privrec.types import BoolArray, IntArray

MODEL_KINDS = ("paper", "loss", "ratio")
"""The kinds of attack that train models of their own (docs/attacks.md)."""
KINDS = (*MODEL_KINDS, "sums", "twice", "server")
"""All kinds; the others read what is published or sent."""
FEWEST_SHADOWS = 4
"""With fewer, one model with her and one without are no distribution. Chosen by hand."""
EVERYBODY_TRAINS: Mapping[str, Any] = {
    "test_share": 1e-9,
    "validation_share": 0.0,
    "protocol": "halves",
}
"""Settings under which nobody of a part is held out."""
OURS = frozenset(
    ("recipe", "data", "seed", "noise", "train_people", "candidates", "halving", *EVERYBODY_TRAINS)
)
"""Settings that an attack chooses itself."""
SHADOW_PEOPLE = 1000
"""The paper's number of shadow users."""
SHADOW_PARTS = 6
"""In a smaller population a sixth are shadow users, which is about the paper's share."""
USED_SHARE = 0.8
"""The share of the shadow users who train the shadow model, as in the paper."""
MOST_PEOPLE = 1000
"""About so many members of a model, and as many others, the attacker guesses. Chosen by hand."""
FEWEST_PEOPLE = 5 * SHADOW_PARTS
"""With fewer, no shadow user would be left out of the shadow model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked of an attack.

    `repetitions` are targets that are attacked, `shadows` models for kind ratio. The attacker
    guesses about at most `people` members of a model, and as many others.
    """

    kinds: Sequence[str] = MODEL_KINDS
    repetitions: int = 5
    shadows: int = 16
    people: int = MOST_PEOPLE
    seed: int = 0

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                known = f"(there are: {', '.join(KINDS)})"
                raise SettingsError(f"unknown kind {kind!r}{nearest(kind, KINDS)} {known}")
        least = {"repetitions": 1, "shadows": FEWEST_SHADOWS, "seed": 0, "people": 2}
        for name, limit in least.items():
            if getattr(self, name) < limit:
                raise SettingsError(f"`{name}` must be >= {limit}; got {getattr(self, name)}")
        if "paper" in self.kinds:
            check_extra("sklearn", "the paper's attack (kind paper)")
        if "ratio" in self.kinds and self.repetitions > self.shadows:
            raise SettingsError(
                "`repetitions` must be <= `shadows` for kind ratio;"
                f" got {self.repetitions} and {self.shadows}"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """The paper's game, as positions of people; no two parts share anybody.

    `used` train the shadow model and `unused` do not. `members` train the target and nobody else
    does. The attacker guesses about `inside`, a random part of the members, and `outside`, as many
    who are in no other part.
    """

    used: IntArray
    unused: IntArray
    members: IntArray
    inside: IntArray
    outside: IntArray

    @property
    def shadow(self) -> IntArray:
        """Everybody whom the attacker knows, those who trained the shadow model first."""
        return np.concatenate([self.used, self.unused])

    @property
    def private(self) -> IntArray:
        """Everybody about whom the attacker guesses, members first."""
        return np.concatenate([self.inside, self.outside])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Games:
    """Who trains which model, in all games of an attack.

    `parts` has the paper's game of each repetition; it has shadow models only `with_shadows`.
    `member`, shape (models, people), is the game of halves, in which the attacker guesses about the
    people `asked`. What is not played is empty.
    """

    options: Options
    parts: tuple[Parts, ...]
    with_shadows: bool
    member: BoolArray
    asked: IntArray


def games_of(people: int, options: Options) -> Games:
    """Return who of so many people trains which model."""
    kinds, seed = options.kinds, options.seed
    repetitions = options.repetitions if "paper" in kinds or "loss" in kinds else 0
    asked = rng(seed, 0, "attack asked").permutation(people)[: 2 * options.people]
    return Games(
        options=options,
        parts=tuple(
            parts_of(people, seed=seed, repetition=k, most=options.people)
            for k in range(repetitions)
        ),
        with_shadows="paper" in kinds,
        member=coins_of(people, seed=seed, models=options.shadows if "ratio" in kinds else 0),
        asked=np.sort(asked),
    )


def parts_of(people: int, *, seed: int, repetition: int, most: int = MOST_PEOPLE) -> Parts:
    """Return who plays which part in one repetition of the paper's game.

    >>> parts = parts_of(60, seed=0, repetition=0, most=20)
    >>> len(parts.used), len(parts.unused), len(parts.members), len(parts.outside)
    (8, 2, 25, 20)
    """
    check_people(people)
    order = rng(seed, repetition, "attack parts").permutation(people)
    count = min(SHADOW_PEOPLE, people // SHADOW_PARTS)
    used = round(USED_SHARE * count)
    half = (people - count) // 2
    cuts = np.cumsum([used, count - used, half, half])
    used_people, unused, members, others, _ = np.split(order, cuts)
    return Parts(
        used=np.sort(used_people),
        unused=np.sort(unused),
        members=np.sort(members),
        inside=np.sort(members[:most]),
        outside=np.sort(others[:most]),
    )


def coins_of(people: int, *, seed: int, models: int) -> BoolArray:
    """Return who trains which model, shape (models, people): each by her own fair coin."""
    check_people(people)
    coins = [rng(seed, k, "attack coins").random(people) < 0.5 for k in range(models)]
    return np.array(coins, np.bool_).reshape(models, people)


def check_people(people: int) -> None:
    """Raise if there are too few people for a game."""
    if people < FEWEST_PEOPLE:
        raise SettingsError(f"an attack needs at least {FEWEST_PEOPLE} people; got {people}")
