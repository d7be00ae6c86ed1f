"""The class of recipes; a recipe makes a plan from a task (settings and data)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from privrec.core.phase import Stage
from privrec.core.scorer import Ranker
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Split
from privrec.data.federation import Federation
from privrec.data.text import brief, short
from privrec.evaluation.protocols import Protocol
from privrec.privacy import statement
from privrec.settings import RunSettings
from privrec.types import F32, OnProgress, Params

ServerSees = Literal["updates", "items", "graph", "everything"]
"""What the server learns about one person, besides the published sums.

- `updates`: each single update of the person.
- `items`: the list of her items.
- `graph`: her locally noised updates, and what her device sends to match neighbours.
- `everything`: all of her data."""


Settings_co = TypeVar("Settings_co", bound=RunSettings, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task(Generic[Settings_co]):
    """The input of a recipe: its settings, the data, and who trains, validates and tests.

    `federation` is the data for training; on a device, it has a catalogue but no people. `whole`
    also has the data that the `protocol` holds out for the evaluation.
    """

    settings: Settings_co
    federation: Federation
    split: Split
    whole: Federation
    protocol: Protocol

    __repr__ = brief


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What a recipe makes from a task: the stages of the training, and the ranking on a device.

    The first call of `stages()` calibrates the noise, which is slow and not needed for ranking.
    `ranker(params)` returns the scorer of a device. `unadapted(params)` returns a scorer that
    ignores the person's likes and dislikes. `unadapted` is None if both scorers are the same.
    """

    task: Task[RunSettings]
    stages: Callable[[], tuple[Stage, ...]]
    ranker: Ranker
    unadapted: Ranker | None = None

    def __post_init__(self) -> None:
        recipe = self.task.settings.recipe
        object.__setattr__(self, "stages", cache(partial(_in_order, self.stages, recipe)))

    def __repr__(self) -> str:
        task = self.task
        return f"Plan({task.settings!r},\n  {task.whole!r},\n  {task.split!r})"


def _in_order(make: Callable[[], tuple[Stage, ...]], recipe: str) -> tuple[Stage, ...]:
    """Return the stages; raise unless the round numbers continue from each stage to the next.

    The ledger has one line per round number, so two rounds must have different numbers.
    """
    stages = make()
    for before, after in pairwise(stages):
        if after.first != before.last:
            raise ValueError(
                f"{recipe}: {after.name} must begin with round {before.last}; got {after.first}"
            )
    return stages


class Chosen(NamedTuple):
    """Settings that were chosen for a run, and a line of text that reports them."""

    values: Mapping[str, Any]
    line: str


class Candidates(NamedTuple):
    """The work of comparing candidates, from which a forecast estimates time and memory.

    The sums of the rounds in `stages` are computed `sums` times, and the server solves for the
    parameters `solved` times. Candidates are evaluated `looks` times on `people` people;
    `look(params, count)` evaluates parameters on `count` people. If `beside` is true, the best
    candidate so far and its sums stay in memory while the next candidate is made.
    """

    plan: Plan
    stages: Sequence[Stage]
    sums: int
    solved: int
    looks: int
    people: int
    look: Callable[[Params, int], object]
    beside: bool


class Ahead(NamedTuple):
    """The estimated work of a choice, and the settings of the largest run after it."""

    candidates: Sequence[Candidates]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How a recipe chooses missing settings before a simulated training without noise.

    `keys` are the settings that the recipe may choose. It never changes `given`, the settings that
    the user gave. `usual(task, given)` returns the settings that follow from the size and the
    protocol of the data. `find(task, given, on_progress)` compares candidates on the data that
    `evaluation.choosing` holds out; it returns None if there is nothing to choose. `ahead(task,
    given)` returns the work of `find`, for a forecast.
    """

    keys: frozenset[str]
    usual: Callable[[Task[Any], Collection[str]], Mapping[str, Any]]
    find: Callable[[Task[Any], Collection[str], OnProgress], Chosen | None]
    ahead: Callable[[Task[Any], Collection[str]], Ahead | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe: its settings, its training and its ranking.

    - `values`: defaults that replace those of the class `settings`.
    - `presets`: better defaults for known data sets, by name. They were chosen on validation people
      (docs/results.md), never on test people.
    - `items_with_vector(settings, catalogue)`: the number of items that have a vector; the other
      items differ only by popularity. None if the number does not depend on the settings.
    - `choice`: how the recipe chooses missing settings, or None.
    - `public_features(settings, catalogue)`: the names of the item features that a run under noise
      uses as public.
    - `with_items(settings, params, catalogue, known)`: returns the parameters for a larger
      catalogue, whose first `known` items were trained.
    - `path(task, stages)`: sentences that say which variant of the training a run uses, and why.
    """

    summary: str
    settings: type[RunSettings]
    server_sees: ServerSees
    plan: Callable[[Task[Any]], Plan]
    items_with_vector: Callable[[Any, Catalogue], int] | None = None
    public_features: Callable[[Any, Catalogue], Sequence[str]] | None = None
    with_items: Callable[[Any, Params, Catalogue, int], dict[str, F32]] | None = None
    path: Callable[[Task[Any], Sequence[Stage]], Sequence[str]] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    choice: Choice | None = None

    def __repr__(self) -> str:
        return f"Recipe({short(self.summary, 300)!r})"

    @property
    def has_noise(self) -> bool:
        """Whether the recipe adds noise by default."""
        return bool(self.values.get("mechanism", "none") != "none")

    @property
    def without_noise(self) -> str:
        """The privacy statement of a run of this recipe without noise."""
        if self.server_sees == "items":
            return statement.SUMS
        if self.server_sees == "graph":
            return statement.GRAPH
        return statement.FEDERATED if self.server_sees == "updates" else statement.CENTRAL

    @property
    def server(self) -> str:
        """What the server sees in a run with noise; the guarantee does not cover this."""
        return statement.SEES_ITEMS if self.server_sees == "items" else statement.SEES_UPDATES

    @property
    def statement(self) -> str:
        """The privacy statement: who is protected, from whom, how strongly, and the limits."""
        return statement.noised(self.server) if self.has_noise else self.without_noise
