"""What `--dry-run` prints about one phone: bytes against counts by hand; it writes no files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands import SET, document, done, tree
from privrec.data.clients import Clients
from privrec.data.sources import load
from privrec.runs.api import plan
from privrec.simulate.cost import usual_person
from privrec.types import IntArray
from tiny import DATA, MODEL, PLUS_WAYS, go_plus_way


def test_the_usual_person_has_the_median_number_of_interactions() -> None:
    data = load(DATA)
    people = np.arange(7, 50)
    (found,) = usual_person(data, people)
    sizes = data.take(people).sizes
    own = int(data.take(np.array([found])).sizes[0])
    assert found in people
    assert (sizes < own).sum() <= len(people) // 2 <= (sizes <= own).sum()


def test_the_usual_person_of_many_is_that_of_a_few_evenly_spaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("privrec.simulate.cost._PEOPLE", 10)
    data, asked = load(DATA), []

    def take(positions: IntArray) -> Clients:
        asked.extend(positions.tolist())
        return data.take(positions)

    people = np.arange(7, 50)
    (found,) = usual_person(replace(data, take=take), people)
    assert asked == list(range(7, 50, 5))  # 43 people, at most 10 of them, from both ends.
    sizes = data.take(np.array(asked)).sizes
    own = int(data.take(np.array([found])).sizes[0])
    assert found in asked
    assert own == sorted(sizes.tolist())[len(sizes) // 2]


def test_training_sends_the_dense_weights_and_the_rows_that_were_touched() -> None:
    made = plan("privrec", DATA, **MODEL, rounds=3)
    (stage,) = made.stages
    params = stage.start(None).params
    training, ranking = made.devices
    assert training.bytes_down == 4 * sum(value.size for value in params.values())
    dense = sum(value.size for name, value in params.items() if name != "embed/item")
    rows = (training.bytes_up / 4 - dense) / (params["embed/item"].shape[1] + 1)
    assert rows == int(rows)
    assert 0 < rows <= params["embed/item"].shape[0]
    assert ranking.bytes_up == 0
    assert ranking.bytes_down == training.bytes_down
    assert training.milliseconds > 0
    # Forward and backward over a batch: more than one multiplication for each dense weight.
    assert (training.multiply_adds or 0) > dense


@pytest.mark.slow
def test_a_history_is_sent_as_positions_and_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    go_plus_way(monkeypatch, PLUS_WAYS[0])
    data = load(DATA)
    made = plan("dp-privrec-plus", DATA, delta=1e-3)
    train = made.stages[0].release.sampling.users
    assert train == 48  # Nobody is kept for validation.
    popularity, relate, ranking = made.devices
    sizes = set(data.take(np.arange(data.n_clients)).sizes.tolist())
    assert popularity.bytes_up / 8 in sizes  # Each item once, liked or not; nothing else.
    assert relate.bytes_up == popularity.bytes_up
    n = popularity.bytes_up // 8
    assert relate.multiply_adds == n * (n + 1) // 2
    assert relate.bytes_down == 8 * data.n_items
    assert ranking.bytes_up == 0
    assert made.epsilon == pytest.approx(8, rel=0.01)
    assert made.as_json()["privacy"]["epsilon"] == made.epsilon
    told = plan("dp-privrec-plus", DATA, delta=1e-3, noise="seeded").as_json()["privacy"]
    assert told == {"epsilon": None, "epsilon_of_mechanism": made.epsilon, "delta": 1e-3}


@pytest.mark.slow
def test_a_dry_run_writes_nothing_and_says_it_in_json_too(scratch: Path) -> None:
    words = ("train", "dp-privrec-plus", "--data", DATA, "--dry-run", "--set", "delta=1e-3")
    found = document(*words, "--json")
    keys = {"choice", "stages", "privacy", "phone", "path", "items", "warnings"}
    keys |= {"time_seconds", "peak_bytes"}
    assert set(found) == keys
    stages = [stage["stage"] for stage in found["stages"]]
    assert stages == ["popularity", "alignments", "moments"]
    assert {stage["cohort"] for stage in found["stages"]} == {48}
    text = done(*words)
    assert "1 round of 48 of 48 people" in text
    assert "bytes up" in text
    assert "nothing is asked of a phone" in done("train", "ease", "--data", DATA, "--dry-run")
    assert "train: 3 rounds of 8 of 46 people" in done(
        "train", "privrec", "--data", DATA, "--dry-run", *SET
    )
    assert tree(scratch) == {}
