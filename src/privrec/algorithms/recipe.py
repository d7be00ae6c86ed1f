"""What a recipe is, the task that it is planned from, and the plan that it makes."""

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
"""What a server learns of one person besides what is published: each single update of hers, the
list of her items, her locally noised updates and what she sends to be matched, or all of her data.
"""


Settings_co = TypeVar("Settings_co", bound=RunSettings, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task(Generic[Settings_co]):
    """What a recipe is planned from: its settings, and the people of a data set in their roles.

    `federation` is what training sees; on a device it has the catalogue and nobody. `whole` also
    has what the `protocol` holds out: it is for evaluation alone.
    """

    settings: Settings_co
    federation: Federation
    split: Split
    whole: Federation
    protocol: Protocol

    __repr__ = brief


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What follows from a task: the stages of the training, and how a device ranks.

    `stages()` calibrates the noise at its first call, because it takes time and ranking does not
    need it. `ranker(params)` ranks on the device; `unadapted(params)` ranks without the person's
    likes and dislikes, None if that is the same.
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
    """Return the stages; raise unless each begins with the round after the last of the one before.

    Two rounds of one number would be one line of the ledger.
    """
    stages = make()
    for before, after in pairwise(stages):
        if after.first != before.last:
            raise ValueError(
                f"{recipe}: {after.name} must begin with round {before.last}; got {after.first}"
            )
    return stages


class Chosen(NamedTuple):
    """Settings that were chosen for a run, and a line of what was chosen, by how much."""

    values: Mapping[str, Any]
    line: str


class Candidates(NamedTuple):
    """Candidates that a choice makes from some stages of a plan, for a forecast.

    The rounds are added up `sums` times and solved `solved` times, and there are `looks` looks at
    `people` people; `look(params, count)` looks at some of them. If `beside`, the best candidate so
    far is in memory with its sums while another one is made.
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
    """What a choice will about do, and the settings of the largest run that it may lead to."""

    candidates: Sequence[Candidates]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How a recipe chooses settings that nobody gave, before a simulated training without noise.

    `keys` are the settings that it may choose. `usual(task, given)` returns those that follow from
    the size of the data and its protocol. `find(task, given, on_progress)` compares candidates on
    what `evaluation.choosing` holds out, and returns None if nothing is to be chosen; `ahead(task,
    given)` tells what that will take. `given` are the settings that the user gave: they stay.
    """

    keys: frozenset[str]
    usual: Callable[[Task[Any], Collection[str]], Mapping[str, Any]]
    find: Callable[[Task[Any], Collection[str], OnProgress], Chosen | None]
    ahead: Callable[[Task[Any], Collection[str]], Ahead | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe: its settings, how it trains and how it ranks.

    `settings` has its keys; `values` are its defaults where they differ from those of the keys, and
    `presets` better ones for data sets we know. They were chosen on validation people
    (docs/results.md), never on test people. `plan(task)` returns its stages and how it ranks.
    `items_with_vector(settings, catalogue)` is how many items it can tell apart by more than their
    popularity, where that depends on the settings. `choice` is how it chooses settings for itself,
    None if it does not. `public_features(settings, catalogue)` names the features of items that a
    run under noise uses as public. `with_items(settings, params, catalogue, known)` returns the
    parameters for a catalogue with more items than the `known` first ones, which were trained.
    `path(task, stages)` says in sentences which way a run goes, and why.
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
        """Whether its own values have a mechanism that adds noise."""
        return bool(self.values.get("mechanism", "none") != "none")

    @property
    def without_noise(self) -> str:
        """What a run of this recipe promises if its releases have no noise."""
        if self.server_sees == "items":
            return statement.SUMS
        if self.server_sees == "graph":
            return statement.GRAPH
        return statement.FEDERATED if self.server_sees == "updates" else statement.CENTRAL

    @property
    def server(self) -> str:
        """What the server sees in a run with noise; no guarantee covers it."""
        return statement.SEES_ITEMS if self.server_sees == "items" else statement.SEES_UPDATES

    @property
    def statement(self) -> str:
        """Who is protected, from whom, how strongly, and what is not covered."""
        return statement.noised(self.server) if self.has_noise else self.without_noise
