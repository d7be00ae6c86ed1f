"""Stage one learns on its own: its vectors as neighbours, against popularity and chance."""

from pathlib import Path

import numpy as np
import pytest

import privrec
from privrec.core.model import ITEM_TABLE
from privrec.evaluation.ranking import evaluate
from privrec.evaluation.references import neighbours


@pytest.mark.slow
@pytest.mark.realdata
def test_neighbours_of_stage_one_beat_popularity_and_random_vectors_do_not(tmp_path: Path) -> None:
    """MovieLens-1M, sequences alone: no feature of a person or an item, no noise."""
    run = privrec.train("ssl-items", "movielens-1m", out=tmp_path / "run")
    found = run.evaluate()
    popular = found.references["popularity"].hits[20]
    assert found.hits[20] >= 1.3 * popular
    shape = run.prepared.stages()[0].start(None).params[ITEM_TABLE].shape
    chance = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    drawn = evaluate(
        run.prepared.task.federation,
        run.prepared.task.split.test,
        neighbours(chance),
        seed=0,
        halving="random",
    )
    assert drawn.hits[20] < 0.5 * popular
