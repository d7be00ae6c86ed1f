"""Every way of training learns: on made-up people with tastes, all beat popularity."""

from pathlib import Path
from typing import Any

import pytest

import privrec

SMALL: dict[str, Any] = {
    "rounds": 120,
    "cohort": 40,
    "validate_every": 0,
    "embedding_size": 16,
    "tower_size": 16,
    "hidden": (16, 16),
    "server_lr": 0.01,
}


@pytest.mark.parametrize(("recipe", "least"), [("privrec", 1.25), ("privrec-cen", 1.0)])
def test_a_trained_recipe_beats_popularity(recipe: str, least: float, tmp_path: Path) -> None:
    """A model that does not adapt stays at the level of popularity."""
    run = privrec.train(recipe, "synthetic:users=1000,items=200", out=tmp_path / "run", **SMALL)
    evaluation = run.evaluate()
    popularity = evaluation.references["popularity"].hits[10]
    assert evaluation.hits[10] > least * popularity
