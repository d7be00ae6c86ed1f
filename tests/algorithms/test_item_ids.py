"""A network that knows items' ids alone: nothing else about people, moments or items reaches it."""

from pathlib import Path
from typing import Any

import pytest

import privrec
from privrec.algorithms.recipes import configure, prepare
from privrec.data.federation import Federation
from privrec.runs.folder import read_arrays
from privrec.testing import checkerboard, small
from tiny import DATA

LEARNING: dict[str, Any] = {
    "rounds": 20,
    "cohort": 30,
    "batch_size": 8,
    "local_lr": 0.5,
    "server_lr": 0.03,
    "negatives": 2,
    "adapt_negatives": 2,
    "adapt_epochs": 10,
    "adapt_lr": 0.5,
    "embedding_size": 8,
    "embedding_scale": 0.3,
    "tower_size": 8,
    "hidden": [8],
    "validation_share": 0.0,
    "validate_every": 0,
}


@pytest.mark.slow
def test_a_feature_that_tells_the_answer_changes_nothing(tmp_path: Path) -> None:
    """With and without it the parameters are the same, and the device learns who is even."""
    runs = [
        privrec.train("fofl-self", checkerboard(side=side), out=tmp_path / f"{side}", **LEARNING)
        for side in (True, False)
    ]
    one, other = (run.folder.params_path.read_bytes() for run in runs)
    assert one == other
    hits = [run.evaluate().hits[10] for run in runs]
    assert hits[0] == hits[1] > 0.9


@pytest.fixture(scope="module")
def data() -> Federation:
    return privrec.load(DATA)


def test_there_is_one_table_and_nothing_of_a_person_is_packed(
    data: Federation, tmp_path: Path
) -> None:
    """The data has features of people and of items."""
    assert len(data.schema.features) > 1
    run = privrec.train("fofl-self", data, out=tmp_path / "run", **small("fofl-self"))
    names = read_arrays(run.folder.params_path).keys()
    assert [name for name in names if name.startswith("embed/")] == ["embed/item"]
    assert not {"user/in", "context/in"} & names
    prepared = prepare(configure("privrec", data.name, small("privrec")), data)
    usual = prepared.stages()[0].start(None).params
    assert {"embed/user.age", "user/in"} <= usual.keys()
