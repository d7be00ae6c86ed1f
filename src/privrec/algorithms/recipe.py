"""What a recipe is: a name for a way of training, with its own settings.

A recipe together with a data set.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from privrec.core.phase import Stage
from privrec.core.scorer import Rankers
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Split
from privrec.data.federation import Federation
from privrec.data.text import short
from privrec.evaluation.protocols import Protocol
from privrec.privacy import statement
from privrec.settings import RunSettings

ServerSees = Literal["updates", "items", "graph", "everything"]
"""What a server learns of one person besides what is published: each single update of hers, the
list of her items, her locally noised updates and what she sends to be matched, or all of her data.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe: its settings, how it trains and how it ranks.

    `settings` has its keys; `values` are its defaults where they differ from those of the keys, and
    `presets` better ones for data sets we know. They were chosen on validation people
    (docs/results.md), never on test people. `stages(settings, federation, split)` returns its
    phases, or one fit in one place. `rankers(settings, catalogue)` returns how it ranks.
    `items_with_vector(settings, n_items)` is how many items it can tell apart by more than their
    popularity, where that depends on the settings.
    """

    summary: str
    settings: type[RunSettings]
    server_sees: ServerSees
    stages: Callable[[Any, Federation, Split], tuple[Stage, ...]]
    rankers: Callable[[Any, Catalogue], Rankers]
    items_with_vector: Callable[[Any, int], int] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedRun:
    """A recipe on a data set: `stages()` finds the noise, `rankers` rank on the device.

    The noise is calibrated at the first call of `stages()`, because it takes time and ranking does
    not need it.
    `federation` is what training sees, `whole` has what is held out too: for evaluation alone.
    """

    config: RunSettings
    protocol: Protocol
    federation: Federation
    whole: Federation
    split: Split
    stages: Callable[[], tuple[Stage, ...]]
    rankers: Rankers

    def __repr__(self) -> str:
        return f"PreparedRun({self.config!r},\n  {self.whole!r},\n  {self.split!r})"
