"""What a part of a reproduction is, and how much of the paper's experiments is done.

A part has a kind, data, a recipe with its settings, and a seed. A `Scale` makes parts: all that the
paper did, or little of it in a few minutes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import numpy as np

from privrec.algorithms.recipes import configure, recipe_named
from privrec.data.federation import Federation, part_of
from privrec.data.sources import is_here, load
from privrec.errors import DataError
from privrec.seeds import rng

Kind = Literal["run", "attack", "rounds", "epsilons", "activity"]
Settings = Mapping[str, Any]
"""Settings of a recipe, or what else is asked of a part, by name."""
MOVIELENS, FRAPPE = "movielens-1m", "frappe"
_QUICK_MOST = {
    **{"rounds": 4, "cohort": 10, "local_epochs": 1, "stage1_rounds": 2, "stage1_cohort": 10},
    **{"adapt_epochs": 1, "adapt_negatives": 2, "negatives": 2, "group": 5, "validate_every": 0},
}
_QUICK_SET: Settings = {
    **{"batch_size": 256, "embedding_size": 8, "tower_size": 8, "hidden": (8,), "choose": False}
}
"""Compiling takes most of the time: a person's data is one batch, and the network is small."""
_QUICK_PEOPLE, _QUICK_LINES = 300, 60
_QUICK_AXES: Mapping[str, Sequence[Any]] = {
    "rounds": (1, 3),
    "local_epochs": (1, 2),
    "cohort": (2, 6),
    "epsilon": (2, 8),
}


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
    settings: Settings = field(default_factory=dict)
    asked: Settings = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        given = {**self.settings, **self.asked}
        values = "".join(f" {key}={value}" for key, value in given.items() if key != "noise")
        return f"{self.recipe or self.kind} on {self.source.title}, seed {self.seed}{values}"

    def config(self) -> Any:
        """Return all settings of the recipe."""
        return configure(self.recipe, self.source.load().name, {**self.settings, "seed": self.seed})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The data by the paper's data set, the seeds, and what is left out.

    `most` are settings that are made no larger than this, `others` those that are set, where a
    recipe has them; `axes` are the values of an axis in place of the paper's.
    """

    sources: Mapping[str, Source]
    seeds: tuple[int, ...]
    most: Mapping[str, int] = field(default_factory=dict)
    others: Settings = field(default_factory=dict)
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def is_quick(self) -> bool:
        """Whether less is done than the paper did."""
        return bool(self.most)

    def axis(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values of an axis."""
        return self.axes.get(name, values)

    def runs(self, recipe: str, data: str, *, axis: str = "", **settings: Any) -> tuple[Cell, ...]:
        """Return a run of a recipe for each seed. Its noise is seeded, so it can be repeated.

        The setting on the `axis` stays as it is given.
        """
        source = self.sources[data]
        noise = {"noise": "seeded"} if recipe_named(recipe).has_noise else {}
        usual = configure(recipe, source.load().name, settings) if self.most else None
        fewer = {
            key: most
            for key, most in self.most.items()
            if key != axis and getattr(usual, key, most) > most
        }
        has = recipe_named(recipe).settings.model_fields
        others = {key: value for key, value in self.others.items() if key in has}
        given = {**settings, **fewer, **others, **noise}
        return tuple(
            Cell(kind="run", source=source, recipe=recipe, seed=seed, settings=given)
            for seed in self.seeds
        )


def full(data: Sequence[str], seeds: Sequence[int], *, read: Sequence[str] = ()) -> Scale:
    """Return the paper's experiments as they are, on these data sets; those to `read` must be here.

    The paper prints nothing of data of other names.
    """
    if missing := [name for name in read if not is_here(name)]:
        raise DataError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not here: get"
            f" {'it' if len(missing) == 1 else 'them'} with 'privrec data fetch NAME', name other"
            " data with --data, or try --quick"
        )
    known = (MOVIELENS, FRAPPE)
    sources = {name: Source(data=name, of=name if name in known else "") for name in data}
    return Scale(sources=sources, seeds=tuple(seeds))


def quick(seeds: Sequence[int]) -> Scale:
    """Return little of everything: made-up people, and a few of MovieLens where it is here."""
    size = f"synthetic:users={_QUICK_PEOPLE},items=200,longest={_QUICK_LINES}"
    thinned = Source(data=MOVIELENS, of=MOVIELENS, people=_QUICK_PEOPLE, lines=_QUICK_LINES)
    made_up = Source(data=f"{size},seed=1", of=MOVIELENS)
    sources = {
        MOVIELENS: thinned if is_here(MOVIELENS) else made_up,
        FRAPPE: Source(data=size, of=FRAPPE),
    }
    return Scale(
        sources=sources, seeds=tuple(seeds), most=_QUICK_MOST, others=_QUICK_SET, axes=_QUICK_AXES
    )
