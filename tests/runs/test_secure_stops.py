"""Rounds under secure noise that are stopped at any step: each is released and counted once."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from privrec.runs import folder as records
from privrec.runs.ledger import read_ledger
from stops import KEPT, STEPS, UNUSED, stopping
from tiny import DATA, MODEL

ROUNDS, BUDGET, DELTA = 4, 5.0, 1e-3
TINY: dict[str, Any] = {
    **MODEL,
    "rounds": ROUNDS,
    "validate_every": 0,
    "delta": DELTA,
    "epsilon": BUDGET,
    "clip_quantile": 0.5,
    "server_optimizer": "plain",
}


def train(path: Path, **settings: Any) -> privrec.Run:
    return privrec.train("dp-privrec-one", DATA, out=path, **settings)


def stopped(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str, time: int, **settings: Any
) -> records.RunFolder:
    with stopping(monkeypatch, step, time) as on_progress:
        train(path, on_progress=on_progress, **{**TINY, **settings})
    return records.RunFolder(path=path)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("time", [1, 3, ROUNDS])
def test_each_round_is_released_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, time: int
) -> None:
    folder = stopped(tmp_path / "run", monkeypatch, step, time)
    begun, kept = folder.ledger_path.read_bytes(), folder.published_path(time - 1)
    is_kept = kept.exists()
    assert is_kept == (step in KEPT)
    mark = hashlib.sha256(kept.read_bytes()).hexdigest() if is_kept else None
    next_bound = float(records.read_arrays(kept)["clip_norm"]) if is_kept else None
    run = train(folder.path, resume=True)
    # No ledger line is removed.
    assert folder.ledger_path.read_bytes().startswith(begun)
    lines = read_ledger(folder)
    assert [line.round for line in lines] == list(range(ROUNDS))
    assert run.rounds == run.ledger.releases == ROUNDS
    assert len({line.published for line in lines}) == ROUNDS
    assert (run.privacy().epsilon or 0) <= BUDGET
    if is_kept:
        assert lines[time - 1].published == mark
        assert time == ROUNDS or lines[time].clip_norm == next_bound
    assert not list(folder.path.glob("published-*"))


@pytest.mark.parametrize("step", UNUSED)
def test_what_is_on_the_disk_is_used_and_nobody_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Plain steps: the model changes by server_lr · published / cohort."""
    folder = stopped(tmp_path / "run", monkeypatch, step, ROUNDS)
    update = records.read_arrays(folder.published_path(ROUNDS - 1))

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("a cohort was asked, or a sum published, a second time")

    checkpoint = records.read_arrays(folder.checkpoint_path)
    assert checkpoint["round_index"] == ROUNDS - 1
    with monkeypatch.context() as patch:
        patch.setattr("privrec.privacy.release.Sampling.draw", refuse)
        patch.setattr("privrec.privacy.aggregate.Aggregator.publish", refuse)
        run = train(folder.path, resume=True)
    after = records.read_arrays(folder.params_path)
    values = run.config.model_dump()
    rate = values["server_lr"] / values["cohort"]
    before = [checkpoint[name] for name in sorted(checkpoint) if name.isdecimal()]
    assert len(before) == len(after)
    for name, start in zip(sorted(after), before, strict=True):
        wanted = start + rate * update[f"update {name}"]
        np.testing.assert_allclose(after[name], wanted, rtol=1e-5, atol=1e-7)
        # The noise of a single number may be 0: it lies on a grid.
        assert start.size == 1 or np.any(after[name] != start)


def spoil(path: Path) -> None:
    """Replace the published numbers by others."""
    arrays = records.read_arrays(path)
    records.write_arrays(path, {name: array + 1 for name, array in arrays.items()}, {})


@pytest.mark.parametrize("loss", [Path.unlink, spoil])
def test_a_sum_that_was_lost_is_another_release_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: Any
) -> None:
    folder = stopped(tmp_path / "run", monkeypatch, "use", 2)
    loss(folder.published_path(1))
    run = train(folder.path, resume=True)
    assert [line.round for line in read_ledger(folder)] == [0, 1, 1, *range(2, run.rounds)]
    assert run.rounds < ROUNDS  # The budget was for that many releases.
    assert run.ledger.releases == run.rounds + 1
    assert run.ledger.epsilon(DELTA) <= BUDGET


def test_raw_figures_are_written_on_request_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that is read from the disk has no figures: its cohort is not asked again."""
    folder = stopped(tmp_path / "bare", monkeypatch, "use", 2, validate_every=1)
    run = train(folder.path, resume=True)
    assert run.figures == []
    assert sorted(path.name for path in (folder.path / "simulation").iterdir()) == ["data.json"]
    folder = stopped(tmp_path / "told", monkeypatch, "use", 2, validate_every=1, diagnostics=True)
    figures = train(folder.path, resume=True).figures
    assert [line.round for line in figures] == list(range(ROUNDS))
    assert [line.clients is None for line in figures] == [False, True, False, False]
    assert all(line.validation for line in figures)
