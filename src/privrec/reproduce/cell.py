"""What a part of a reproduction is: a kind, data, a recipe with its settings, and a seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import numpy as np

from privrec.algorithms.recipes import configure
from privrec.data.federation import Federation, part_of
from privrec.data.sources import load
from privrec.seeds import rng

Kind = Literal["run", "attack", "rounds", "epsilons", "activity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Data to train on: what `load` takes, and how many of its people, drawn at random; 0 is all.

    Of few people, only those with at most so many `lines` are taken, where that is not 0.

    `of` is the paper's data set that it is, or stands for; "" if it is neither.
    """

    data: str
    of: str = ""
    people: int = 0
    lines: int = 0

    @property
    def title(self) -> str:
        """The data in a few words."""
        few = f", {self.people:,} people" if self.people else ""
        if self.of in ("", self.data):
            return f"{self.data}{few}"
        return f"{self.data.partition(':')[0]}{few} in place of {self.of}"

    def load(self) -> Federation:
        """Return the data, which is read once."""
        return _load(self.data, self.people, self.lines)


@cache
def _load(data: str, people: int, lines: int) -> Federation:
    whole = load(data)
    if not 0 < people < whole.n_clients:
        return whole
    order = rng(0, 0, "thinned").permutation(whole.n_clients)
    few = order[whole.take(order).sizes <= lines] if lines else order
    part = part_of(whole, np.sort(few[:people]))
    return replace(part, largest=min(part.largest, lines or part.largest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One part. `settings` are those of the recipe, `asked` what else is asked of it."""

    kind: Kind
    source: Source
    recipe: str = ""
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        given = {**self.settings, **self.asked}
        values = "".join(f" {key}={value}" for key, value in given.items() if key != "noise")
        return f"{self.recipe or self.kind} on {self.source.title}, seed {self.seed}{values}"

    def config(self) -> Any:
        """Return all settings of the recipe."""
        return configure(self.recipe, self.source.load().name, {**self.settings, "seed": self.seed})
