"""Every way of training learns: on synthetic people with tastes, all beat popularity."""

from pathlib import Path
from typing import Any

import pytest

import privrec
from privrec.runs.ledger import read_ledger
from tiny import own

SMALL: dict[str, Any] = {
    "rounds": 80,
    "cohort": 20,
    "batch_size": 256,  # Few shapes of clients compile in a moment.
    "local_lr": 0.5,
    "adapt_lr": 0.5,
    "validate_every": 0,
    "embedding_size": 16,
    "tower_size": 16,
    "hidden": (16, 16),
    "server_lr": 0.01,
}


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "least"), [("privrec", 1.25), ("privrec-cen", 1.0)])
def test_a_trained_recipe_beats_popularity(recipe: str, least: float, tmp_path: Path) -> None:
    """A model that does not adapt stays at the level of popularity."""
    data = "synthetic:users=500,items=200,longest=60"
    run = privrec.train(recipe, data, out=tmp_path / "run", **own(recipe, SMALL))
    evaluation = run.evaluate()
    popularity = evaluation.references["popularity"].hits[10]
    assert evaluation.hits[10] > least * popularity


@pytest.mark.slow
@pytest.mark.realdata
def test_under_noise_movielens_is_learned_from_three_sums(tmp_path: Path) -> None:
    """At ε = 8, on validation people: above the paper's model without any noise (0.217)."""
    run = privrec.train(
        "dp-privrec-plus",
        "movielens-1m",
        out=tmp_path / "run",
        epsilon=8,
        validation_share=0.1,
        noise="seeded",
    )
    assert [line.stage for line in read_ledger(run.folder)] == [
        "popularity",
        "alignments",
        "moments",
    ]
    assert (run.figures[-1].validation["20"] or 0.0) > 0.315
    assert (run.privacy().epsilon_of_mechanism or 9) <= 8
