"""A part (`Cell`) of a reproduction, and the scale of a reproduction.

A part is one run or measurement. A `Scale` makes the parts: the paper's full experiments, or small
ones that take a few minutes.
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
"""Settings of a recipe, or options of a part, by name."""
MOVIELENS, FRAPPE = "movielens-1m", "frappe"
_QUICK_MOST = {
    **{"rounds": 4, "cohort": 10, "local_epochs": 1, "stage1_rounds": 2, "stage1_cohort": 10},
    **{"adapt_epochs": 1, "adapt_negatives": 2, "negatives": 2, "group": 5, "validate_every": 0},
}
_QUICK_SET: Settings = {
    **{"batch_size": 256, "embedding_size": 8, "tower_size": 8, "hidden": (8,), "choose": False}
}
"""Compilation takes most of the time, so a person's data is one batch and the network is small."""
_QUICK_PEOPLE, _QUICK_LINES = 300, 60
_QUICK_AXES: Mapping[str, Sequence[Any]] = {
    "rounds": (1, 3),
    "local_epochs": (1, 2),
    "cohort": (2, 6),
    "epsilon": (2, 8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Data to train on: `data` is an input of `load`.

    `people` is the number of people that are drawn at random; 0 is all. If `lines` is not 0, people
    are drawn only from those with at most this many interactions. `of` is the paper's data set
    that this data is or replaces; "" if there is none.
    """

    data: str
    of: str = ""
    people: int = 0
    lines: int = 0

    @property
    def title(self) -> str:
        """The data as a short text."""
        few = f", {self.people:,} people" if self.people else ""
        if self.of in ("", self.data):
            return f"{self.data}{few}"
        return f"{self.data.partition(':')[0]}{few} in place of {self.of}"

    def load(self) -> Federation:
        """Return the data, which a process reads only once."""
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
    """One part of the work: a training with its test, an attack, or a measurement.

    `settings` are the changed settings of its recipe. `asked` are arguments that are not settings,
    such as the `repetitions` of an attack or the `cohort` of a table of ε.
    """

    kind: Kind
    source: Source
    recipe: str = ""
    seed: int = 0
    settings: Settings = field(default_factory=dict)
    asked: Settings = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The part as a short text."""
        given = {**self.settings, **self.asked}
        values = "".join(f" {key}={value}" for key, value in given.items() if key != "noise")
        return f"{self.recipe or self.kind} on {self.source.title}, seed {self.seed}{values}"

    def config(self) -> Any:
        """Return all settings of the recipe."""
        return configure(self.recipe, self.source.load().name, {**self.settings, "seed": self.seed})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The scale of a reproduction: its data by the paper's data set, its seeds, and its limits.

    `most` are upper limits of settings, `others` fixed values of settings, if a recipe has them.
    `axes` are the values of an axis, instead of the paper's values.
    """

    sources: Mapping[str, Source]
    seeds: tuple[int, ...]
    most: Mapping[str, int] = field(default_factory=dict)
    others: Settings = field(default_factory=dict)
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def is_quick(self) -> bool:
        """Whether the experiments are smaller than the paper's."""
        return bool(self.most)

    def axis(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values of an axis; `values` are the paper's."""
        return self.axes.get(name, values)

    def runs(self, recipe: str, data: str, *, axis: str = "", **settings: Any) -> tuple[Cell, ...]:
        """Return a run of a recipe for each seed. Its noise is seeded, so it can be repeated.

        The limits of the scale do not change the setting named by `axis`.
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
    """Return the scale of the paper's full experiments on these data sets.

    The data sets in `read` must have been downloaded. The paper has no figures for other data sets.
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
    """Return a small scale: made-up people, and some people of MovieLens if it was downloaded."""
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
