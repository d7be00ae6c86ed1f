"""Runs of PrivRec+ that are stopped at any step of any sum, and the cost of resuming."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from privrec.algorithms.privrec_plus import public, recipe
from privrec.algorithms.privrec_plus.public import ALIGNMENTS, Trust
from privrec.algorithms.privrec_plus.recipe import MOMENTS, POPULAR
from privrec.runs import folder as records
from privrec.runs.ledger import read_ledger
from stops import KEPT, STEPS, stopping
from tiny import DATA, trust_nothing, without_features

DELTA, BUDGET = 1e-3, 5.0
TINY: dict[str, Any] = {"delta": DELTA, "epsilon": BUDGET}
SEEDED: dict[str, Any] = {**TINY, "noise": "seeded"}


STAGES = {
    "three": [POPULAR, ALIGNMENTS, MOMENTS],
    "again": [POPULAR, ALIGNMENTS, MOMENTS],
    "no trust": [POPULAR, ALIGNMENTS, MOMENTS],
    "kernel": [POPULAR, ALIGNMENTS],
    "taste": [POPULAR, MOMENTS],
}
"""Items have features, and people are enough for moments, for popularity again, or for neither;
features that do not matter; or items have no features."""
STOPS = [
    pytest.param(way, time, marks=[pytest.mark.slow] * (way not in ("three", "taste")))
    for way in STAGES
    for time in range(1, len(STAGES[way]) + 1)
]


def train(path: Path, way: str, **settings: Any) -> privrec.Run:
    data = privrec.load(DATA)
    with pytest.MonkeyPatch.context() as patch:
        if way == "no trust":
            trust_nothing(patch)
        if len(STAGES[way]) == 3:  # Else this budget would need thousands of people for moments.
            patch.setattr(public, "fewest_per_noise", lambda n_items: (0.0, 0.0))
        if way == "again":
            patch.setattr(public, "fewest_per_noise", lambda n_items: (np.inf, 0.0))
            patch.setattr(recipe, "trust_of", lambda sums, *_: Trust(sums**0 / len(sums), 0.9))
        people = without_features(data) if way == "taste" else data
        return privrec.train("dp-privrec-plus", people, out=path, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, privrec.Run]:
    """Runs without a stop."""
    path = tmp_path_factory.mktemp("plus")
    return {way: train(path / way, way, **SEEDED) for way in STAGES}


@pytest.mark.slow
@pytest.mark.parametrize("way", STAGES)
def test_the_same_seed_gives_the_same_bytes(
    whole: dict[str, privrec.Run], tmp_path: Path, way: str
) -> None:
    wishes: list[dict[str, Any]] = [{}, {"seed": 1}, {"noise": "secure"}, {"noise": "secure"}]
    same, other, secret, again = (
        train(tmp_path / f"{k}", way, **{**SEEDED, **wish}).folder.params_path.read_bytes()
        for k, wish in enumerate(wishes)
    )
    assert same == whole[way].folder.params_path.read_bytes()
    assert len({same, other, secret, again}) == 4


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("way", "time"), STOPS)
def test_stopping_and_going_on_changes_nothing(
    whole: dict[str, privrec.Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    way: str,
    time: int,
) -> None:
    with stopping(monkeypatch, step, time) as on_progress:
        train(tmp_path / "run", way, on_progress=on_progress, **SEEDED)
    folder = train(tmp_path / "run", way, resume=True).folder
    assert folder.params_path.read_bytes() == whole[way].folder.params_path.read_bytes()
    assert folder.ledger_path.read_bytes() == whole[way].folder.ledger_path.read_bytes()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("way", "time"), STOPS)
def test_going_on_with_secure_noise_makes_no_release_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, way: str, time: int
) -> None:
    """The sum on the disk is used: its hash is in the ledger, which only gets longer."""
    folder, stages = records.RunFolder(path=tmp_path / "run"), STAGES[way]
    with stopping(monkeypatch, step, time) as on_progress:
        train(folder.path, way, on_progress=on_progress, **TINY)
    begun = folder.ledger_path.read_bytes()
    kept = {
        index: hashlib.sha256(folder.published_path(index).read_bytes()).hexdigest()
        for index in range(len(stages))
        if folder.published_path(index).exists()
    }
    assert list(kept) == ([time - 1] if step in KEPT else [])
    run = train(folder.path, way, resume=True)
    assert folder.ledger_path.read_bytes().startswith(begun)
    lines = read_ledger(folder)
    assert [line.stage for line in lines] == stages
    assert len({line.published for line in lines}) == len(stages)
    for index, mark in kept.items():
        assert lines[index].published == mark
    assert 0.98 * BUDGET < run.ledger.epsilon(DELTA) <= BUDGET
    assert run.privacy().epsilon == run.ledger.epsilon(DELTA)
    assert not list(folder.path.glob("published-*"))
