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
from tiny import PLUS_WAYS, VARIANTS, go_plus_way

PLUS_IN_SUBSPACE = replace(
    RECIPES["dp-privrec-plus"],
    values={**RECIPES["dp-privrec-plus"].values, "history": "subspace"},
)
PLUS_WITH_SECOND = replace(
    RECIPES["privrec-plus"],
    values={**RECIPES["privrec-plus"].values, "second_opinion": 2.0},
)
LEARNING: dict[str, dict[str, Any]] = {"fofl-self": {"batch_size": 8, "adapt_epochs": 10}}
"""A network that knows nobody's side learns it on the device alone, in more and smaller steps."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Test every row of the table; variants in `make test-all`, because each compiles a network."""
    if metafunc.cls is TestOurs:
        params = [
            pytest.param(name, marks=[pytest.mark.slow] * (name in VARIANTS)) for name in RECIPES
        ]
        metafunc.parametrize("_each", params, indirect=True)


class TestOurs(RecipeContract):
    @pytest.fixture(autouse=True)
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.recipe = request.param
        self.learning = LEARNING.get(request.param, {})
        # These recommend the same new items to everybody, and say so in their summary.
        self.same_for_all = request.param in {"popularity", "own-items"}


class TestExample(RecipeContract):
    recipe: Recipe = SUBSPACE


class TestPlusInOtherWays(RecipeContract):
    """As where items have no features, and as where people are too few for moments."""

    recipe = "dp-privrec-plus"

    @pytest.fixture(autouse=True, params=PLUS_WAYS)
    def _way(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        go_plus_way(monkeypatch, request.param)


class TestPlusInSubspace(RecipeContract):
    recipe: Recipe = PLUS_IN_SUBSPACE


class TestPlusWithASecondOpinion(RecipeContract):
    recipe: Recipe = PLUS_WITH_SECOND
