"""What every recipe of the table must hold: a new row is tested by being there.

The example recipe is tested like any other.
"""

from dataclasses import replace
from typing import Any

import pytest

from privrec.algorithms.recipe import Recipe
from privrec.algorithms.recipes import RECIPES
from privrec.testing import RecipeContract
from subspace import SUBSPACE

PLUS_IN_SUBSPACE = replace(
    RECIPES["dp-privrec-plus"],
    values={**RECIPES["dp-privrec-plus"].values, "history": "subspace"},
)
LEARNING: dict[str, dict[str, Any]] = {"fofl-self": {"batch_size": 8, "adapt_epochs": 10}}
"""A network that knows nobody's side learns it on the device alone, in more and smaller steps."""


class TestOurs(RecipeContract):
    @pytest.fixture(autouse=True, params=RECIPES)
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.recipe = request.param
        self.learning = LEARNING.get(request.param, {})
        # These recommend the same new items to everybody, and say so in their summary.
        self.same_for_all = request.param in {"popularity", "own-items"}


class TestExample(RecipeContract):
    recipe: Recipe = SUBSPACE


class TestPlusInSubspace(RecipeContract):
    recipe: Recipe = PLUS_IN_SUBSPACE
