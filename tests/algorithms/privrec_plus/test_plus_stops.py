"""Runs of PrivRec+ that are stopped at any step of either sum, and the cost of resuming."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

import privrec
from privrec.algorithms.privrec_plus.recipe import MOMENTS, POPULAR
from privrec.runs import folder as records
from privrec.runs.ledger import read_ledger
from stops import KEPT, STEPS, stopping
from tiny import DATA

DELTA, BUDGET = 1e-3, 5.0
TINY: dict[str, Any] = {"delta": DELTA, "epsilon": BUDGET}
SEEDED: dict[str, Any] = {**TINY, "noise": "seeded"}


def train(path: Path, **settings: Any) -> privrec.Run:
    return privrec.train("dp-privrec-plus", DATA, out=path, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> privrec.Run:
    """A run without a stop."""
    return train(tmp_path_factory.mktemp("plus") / "run", **SEEDED)


def test_the_same_seed_gives_the_same_bytes(whole: privrec.Run, tmp_path: Path) -> None:
    wishes: list[dict[str, Any]] = [{}, {"seed": 1}, {"noise": "secure"}, {"noise": "secure"}]
    same, other, secret, again = (
        train(tmp_path / f"{k}", **{**SEEDED, **wish}).folder.params_path.read_bytes()
        for k, wish in enumerate(wishes)
    )
    assert same == whole.folder.params_path.read_bytes()
    assert len({same, other, secret, again}) == 4


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("time", [1, 2])
def test_stopping_and_going_on_changes_nothing(
    whole: privrec.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, time: int
) -> None:
    with stopping(monkeypatch, step, time) as on_progress:
        train(tmp_path / "run", on_progress=on_progress, **SEEDED)
    folder = train(tmp_path / "run", resume=True).folder
    assert folder.params_path.read_bytes() == whole.folder.params_path.read_bytes()
    assert folder.ledger_path.read_bytes() == whole.folder.ledger_path.read_bytes()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("time", [1, 2])
def test_going_on_with_secure_noise_makes_no_release_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, time: int
) -> None:
    """The sum on the disk is used: its hash is in the ledger, which only gets longer."""
    folder = records.RunFolder(path=tmp_path / "run")
    with stopping(monkeypatch, step, time) as on_progress:
        train(folder.path, on_progress=on_progress, **TINY)
    begun = folder.ledger_path.read_bytes()
    kept = {
        index: hashlib.sha256(folder.published_path(index).read_bytes()).hexdigest()
        for index in (0, 1)
        if folder.published_path(index).exists()
    }
    assert list(kept) == ([time - 1] if step in KEPT else [])
    run = train(folder.path, resume=True)
    assert folder.ledger_path.read_bytes().startswith(begun)
    lines = read_ledger(folder)
    assert [line.stage for line in lines] == [POPULAR, MOMENTS]
    assert len({line.published for line in lines}) == 2
    for index, mark in kept.items():
        assert lines[index].published == mark
    assert 0.98 * BUDGET < run.ledger.epsilon(DELTA) <= BUDGET
    assert run.privacy().epsilon == run.ledger.epsilon(DELTA)
    assert not list(folder.path.glob("published-*"))
