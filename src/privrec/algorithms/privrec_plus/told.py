"""What the server of PrivRec+ tells every device before it asks for the second sum."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from privrec.algorithms.privrec_plus.layout import Layout
from privrec.core.told import Accepted, positions, weights
from privrec.types import F32, F64, IntArray, Leaf

SUBSPACE = "subspace"
"""The name of the phase of a subspace iteration."""
BASIS, SCALE = "basis", "scale"
"""What it tells: the basis Q (columns, d), and the weight of each column of a row (columns,)."""
_ITEM_POWER = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """Settings of the regression of likes on rows: the weight of each kind of column, the ridge.

    `dislike_target` is the target of a disliked item; a liked item has target 1. It may be above 0
    because the person chose the item before she rated it. A person with n likes has the weight
    n^-`activity`; with 0, people with many likes would dominate.
    """

    dislike: float
    feature: float
    context: float
    dislike_target: float
    l2: float
    dropout: float
    activity: float = 0.5

    def scales(self, layout: Layout) -> F32:
        """Return the weight of each column."""
        kinds = [
            1.0,
            *([self.dislike] if layout.dislikes else []),
            *(self.feature for _ in layout.users),
            *(self.context for _ in layout.contexts),
        ]
        return np.repeat(np.array(kinds, np.float32), layout.sizes)

    def also(self, layout: Layout) -> float:
        """Return the target of a disliked item per unit of its column's weight."""
        return self.dislike_target / self.dislike if layout.dislikes and self.dislike else 0.0


def columns_of(layout: Layout, kept: IntArray, how: Regression) -> IntArray:
    """Return the input columns of the regression: kept items (liked, disliked) and features."""
    disliked = layout.n_items + kept if layout.dislikes and how.dislike else kept[:0]
    return np.concatenate([kept, disliked, np.arange(layout.item_columns, layout.size)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequent:
    """The items in the matrix of co-occurrences, with weights: computed from release one alone.

    `kept` (m,): their positions. `power` (m,): the weight of each item, smaller for popular items.
    `common` (m,): the unit vector in the direction of popularity.
    """

    kept: IntArray
    power: F64
    common: F64

    @classmethod
    def of(cls, popularity: F64, kept: IntArray) -> "Frequent":
        """Return the `Frequent` of these items, given the published popularity."""
        counted = np.maximum(popularity[kept], 1.0)
        power = (counted / counted.mean()) ** -_ITEM_POWER
        common = counted * power / np.linalg.norm(counted * power)
        return cls(kept=kept, power=power, common=common)

    @classmethod
    def of_told(cls, told: Mapping[str, Leaf]) -> "Frequent":
        """Return it from what was told."""
        return cls(**{name: np.asarray(told[name]) for name in ("kept", "power", "common")})

    @staticmethod
    def accepts(n_items: int, most: int) -> dict[str, Accepted]:
        """Return what a device accepts of it: at most `most` items."""
        return {
            "kept": positions(n_items, most),
            "power": weights((None,)),
            "common": Accepted(shape=(None,), least=-1.01, most=1.01),
        }

    def told(self) -> dict[str, Leaf]:
        """Return what is told of it."""
        return {"kept": self.kept, "power": self.power, "common": self.common}
