"""Recipes of other packages: found by their entry point, tested like ours, and never in the way."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import privrec
from commands import document, done, invoke
from privrec.algorithms import recipes
from privrec.algorithms.recipes import RECIPES, recipe_named
from privrec.testing import DATA, small
from subspace import SUBSPACE

PACKAGE = {
    "film_recipes.py": "from subspace import SUBSPACE\nNUMBER = 7\n",
    "film_recipes-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: film-recipes\n",
    "film_recipes-1.0.dist-info/entry_points.txt": (
        "[privrec.recipes]\n"
        "film-subspace = film_recipes:SUBSPACE\n"
        "no-module = film_recipez:SUBSPACE\n"
        "no-name = film_recipes:BASIS\n"
        "number = film_recipes:NUMBER\n"
        "ease = film_recipes:SUBSPACE\n"
    ),
}


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with five recipes: one works, and one has a name of ours."""
    for name, text in PACKAGE.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "site")
    recipes._registered.cache_clear()
    yield
    recipes._registered.cache_clear()


def test_it_is_listed_explained_trained_and_evaluated(scratch: Path) -> None:
    listed = {entry["name"]: entry for entry in document("recipes", "--json")}
    assert listed["film-subspace"]["summary"] == SUBSPACE.summary
    assert "Length of an item's vector." in " ".join(done("recipes", "film-subspace").split())
    run = privrec.train("film-subspace", DATA, out="run", **small("film-subspace"))
    assert run.config.recipe == "film-subspace"
    assert document("evaluate", "run", "--json")["recipe"] == "film-subspace"
    with pytest.raises(privrec.PrivrecError, match="did you mean 'film-subspace'"):
        recipe_named("film-subspase")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no-module", "cannot be loaded: ModuleNotFoundError: No module named 'film_recipez'"),
        ("no-name", "cannot be loaded: AttributeError: .*'BASIS'"),
        ("number", "must be a `Recipe`; got 7"),
    ],
)
def test_a_broken_one_is_a_line_that_names_its_package(name: str, why: str) -> None:
    with pytest.raises(
        privrec.PrivrecError, match=f"recipe '{name}' of package film-recipes {why}"
    ):
        privrec.train(name, DATA)
    result = invoke("train", name, "--data", DATA, "--out", "run")
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert "film-recipes" in line


def test_broken_ones_and_names_of_ours_leave_ours_as_they_are() -> None:
    listed = {entry["name"]: entry for entry in document("recipes", "--json")}
    assert list(listed) == [*RECIPES, "film-subspace", "no-module", "no-name", "number"]
    assert "film-recipes" in listed["no-module"]["summary"]
    assert listed["ease"]["summary"] == RECIPES["ease"].summary
    assert recipe_named("ease") is RECIPES["ease"]
