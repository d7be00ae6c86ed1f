"""A run under differential privacy: its ledger on disk, its budget, and what it refuses."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from privrec import experiment, records
from privrec.book import ledger_of
from privrec.errors import PrivacyWarning, RunFolderError, SettingsError
from privrec.privacy.aggregate import Aggregator
from privrec.privacy.noise import NoiseSource
from privrec.recipes import configure
from privrec.types import Params
from tiny import DATA, MODEL

ROUNDS = 12
TINY = {**MODEL, "rounds": ROUNDS, "validate_every": 0, "delta": 1e-3}


def train(
    path: Path | None = None, recipe: str = "dp-privrec-one", /, **settings: Any
) -> privrec.Run:
    return privrec.train(recipe, DATA, out=path, **{**TINY, **settings})


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]


# --- what a run writes and says --------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["dp-privrec-one", "lm-privrec"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_an_epsilon_is_met_and_written_down(tmp_path: Path, recipe: str, sampling: str) -> None:
    run = train(tmp_path / "run", recipe, epsilon=5, sampling=sampling)
    lines = lines_of(tmp_path / "run")
    assert [line["round"] for line in lines] == list(range(ROUNDS))
    assert {line["sampling"]["law"] for line in lines} == {sampling}
    assert {line["sampling"]["users"] for line in lines} == {43}
    reach = 1 if sampling == "poisson" else 2
    for line in lines:
        assert line["noise_scale"] == line["noise_multiplier"] * reach * line["clip_norm"]
    found = run.privacy()
    assert found.epsilon is not None
    assert 4.95 <= found.epsilon <= 5
    assert found.epsilon == run.ledger.epsilon(1e-3)
    assert (found.delta, found.rounds, found.sampling) == (1e-3, ROUNDS, sampling)
    assert found.end_to_end
    for words in ("43 people who train", "epsilon 4.9", "delta 0.001", "not covered: the server"):
        assert words in found.statement
    assert "came from a seed" in found.statement  # Nobody takes an experiment for a promise.
    assert ("with and without" in found.statement) == (sampling == "poisson")
    evaluation = run.evaluate().as_json()
    assert evaluation["privacy"]["epsilon"] == found.epsilon
    assert "epsilon 4.9" in run.folder.report_path.read_text()


def test_given_noise_the_run_tells_its_epsilon(tmp_path: Path) -> None:
    run = train(tmp_path / "run", noise_multiplier=2.0)
    assert run.config.epsilon is None
    assert run.rounds == ROUNDS
    assert {line["noise_multiplier"] for line in lines_of(tmp_path / "run")} == {2.0}
    sampling = privrec.Sampling(law="poisson", users=43, cohort=8)
    kind = privrec.Release(mechanism="gaussian", sampling=sampling, noise_multiplier=2.0)
    assert run.ledger == privrec.PrivacyLedger().record(kind, ROUNDS)


def test_a_run_stops_at_the_last_round_that_it_can_afford(tmp_path: Path) -> None:
    run = train(tmp_path / "run", noise_multiplier=1.0, epsilon=2.0)
    assert 0 < run.rounds < ROUNDS
    assert len(lines_of(tmp_path / "run")) == run.rounds
    assert run.ledger.epsilon(1e-3) <= 2.0
    ((kind, count),) = run.ledger.entries
    assert count == run.rounds
    assert run.ledger.record(kind).epsilon(1e-3) > 2.0
    again = privrec.train("dp-privrec-one", DATA, out=tmp_path / "run", resume=True)
    assert again.rounds == run.rounds


def test_noise_changes_every_parameter_and_a_run_can_be_repeated() -> None:
    plain: dict[str, Any] = {"rounds": 1, "server_optimizer": "plain"}
    quiet, noisy, again, other = (
        records.read_arrays(train(None, **settings).folder.params_path)
        for settings in (
            {"noise_multiplier": 0.0, **plain},
            {"noise_multiplier": 1.0, **plain},
            {"noise_multiplier": 1.0, **plain},
            {"noise_multiplier": 1.0, "noise": "secure", **plain},
        )
    )
    for name, values in quiet.items():
        assert np.mean(values != noisy[name]) > 0.99, name
        assert np.array_equal(noisy[name], again[name]), name
        assert np.mean(other[name] != noisy[name]) > 0.99, name
    # Plain: the noise on the parameters is server_lr · z · S / M, with z = 1.
    config = configure("dp-privrec-one", DATA, {**TINY, **plain})
    moved = np.concatenate([np.ravel(noisy[name] - quiet[name]) for name in quiet])
    wanted = config.server_lr * config.clip_norm / config.cohort
    assert moved.std() == pytest.approx(wanted, rel=0.1)


def test_bounding_without_noise_promises_nothing(tmp_path: Path) -> None:
    found = train(tmp_path / "run", noise_multiplier=0.0).privacy()
    assert found.epsilon is None
    assert found.statement.startswith("No differential privacy guarantee")


def test_the_bound_can_follow_a_quantile_and_is_resumed_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "CHECKPOINT_SECONDS", -1.0)
    wanted: dict[str, Any] = {"epsilon": 5.0, "clip_quantile": 0.5, "clip_norm": 0.5}
    whole = train(tmp_path / "whole", **wanted)
    norms = [line["clip_norm"] for line in lines_of(tmp_path / "whole")]
    assert len(set(norms)) == ROUNDS
    assert 4.95 <= whole.ledger.epsilon(1e-3) <= 5
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", **wanted, on_progress=stop_after(5))
    train(tmp_path / "run", **wanted, resume=True)
    same = (tmp_path / "run" / "params.safetensors").read_bytes()
    assert same == (tmp_path / "whole" / "params.safetensors").read_bytes()
    assert lines_of(tmp_path / "run") == lines_of(tmp_path / "whole")


def test_empty_cohorts_release_noise_and_are_counted(tmp_path: Path) -> None:
    run = train(tmp_path / "run", cohort=1, noise_multiplier=1.0, rounds=20)
    sizes = [line["simulation_only"]["clients"] for line in records.read_rounds(run.folder)]
    assert 0 in sizes
    assert run.ledger.releases == 20


def test_recipes_without_noise_have_a_ledger_that_says_so(tmp_path: Path) -> None:
    for recipe in ("privrec", "privrec-cen", "popularity"):
        run = privrec.train(recipe, DATA, out=tmp_path / recipe, **{**TINY, "rounds": 2})
        assert {line["mechanism"] for line in lines_of(tmp_path / recipe)} == {"none"}
        assert run.ledger.epsilon(1e-6) == math.inf
        assert run.privacy().epsilon is None


# --- wrong wishes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epsilon": 0}, "`epsilon` must be > 0; got 0"),
        ({"epsilon": -1.5}, "`epsilon` must be > 0; got -1.5"),
        ({"epsilon": math.nan}, "`epsilon` must be a finite number; got nan"),
        ({"delta": 0}, "`delta` must be > 0; got 0"),
        ({"delta": 1}, "`delta` must be < 1; got 1"),
        ({"delta": math.nan}, "`delta` must be a finite number; got nan"),
        ({"clip_norm": 0}, "`clip_norm` must be > 0; got 0"),
        ({"clip_norm": math.inf}, "`clip_norm` must be a finite number; got inf"),
        ({"noise_multiplier": -1}, "`noise_multiplier` must be >= 0; got -1"),
        ({"clip_quantile": 1}, "`clip_quantile` must be < 1; got 1"),
        (
            {"mechanism": "gauss"},
            "`mechanism` must be 'none', 'gaussian' or 'laplace'; got 'gauss'",
        ),
        (
            {"noise_multiplier": 0.5, "epsilon": 0.5},
            "epsilon 0.5 affords no round: one round with noise_multiplier 0.5 takes",
        ),
    ],
)
def test_a_wrong_wish_is_one_clear_line(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        train(tmp_path / "run", **settings)
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_budget_that_affords_nothing_says_what_would(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"noise_multiplier ([\d.]+) affords one round") as told:
        train(tmp_path / "run", noise_multiplier=0.5, epsilon=0.5)
    enough = float(str(told.value).split(", ")[-1].split()[0])
    run = train(tmp_path / "run", noise_multiplier=enough, epsilon=0.5)
    assert run.rounds == ROUNDS


def test_noise_needs_a_recipe_that_adds_it() -> None:
    with pytest.raises(SettingsError, match="`epsilon` needs a recipe with noise, such as dp-priv"):
        train(None, "privrec", epsilon=8)
    with pytest.raises(SettingsError, match="which is central"):
        train(None, "privrec-cen", mechanism="gaussian", epsilon=8)
    with pytest.raises(SettingsError, match="`clip_quantile` needs the Gaussian"):
        train(None, "lm-privrec", clip_quantile=0.5)


def test_a_delta_above_one_in_n_is_warned_of() -> None:
    with pytest.warns(PrivacyWarning, match=r"delta 0\.1 is larger than 1/43: .* at random"):
        train(delta=0.1, rounds=1)


@pytest.mark.parametrize("change", [{"epsilon": 4.0}, {"clip_norm": 2.0}, {"noise": "secure"}])
def test_other_privacy_settings_are_refused_on_resume(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", epsilon=5.0, clip_norm=1.0, on_progress=stop_after(3))
    before = lines_of(tmp_path / "run")
    with pytest.raises(RunFolderError, match="was started with"):
        privrec.train("dp-privrec-one", DATA, out=tmp_path / "run", resume=True, **change)
    assert lines_of(tmp_path / "run") == before


# --- a ledger that was tampered with ----------------------------------------------------------


def test_a_ledger_that_lacks_a_release_is_refused(tmp_path: Path) -> None:
    run = train(tmp_path / "run", epsilon=5)
    path = run.folder.ledger_path
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[1:]))
    with pytest.raises(RunFolderError, match="lacks the release of round 0, which was played"):
        run.privacy()
    path.unlink()
    with pytest.raises(RunFolderError, match="lacks the release of round 0"):
        run.evaluate()
    path.write_bytes(whole.replace(b'"round": 4', b'"round" 4'))
    with pytest.raises(RunFolderError, match="damaged at line 5"):
        run.privacy()
    for line in (b"5", b"[]", b"{}", b'{"round": 12}'):
        path.write_bytes(whole + line + b"\n")
        with pytest.raises(RunFolderError, match=f"damaged at line {ROUNDS + 1}: it names no"):
            run.privacy()
    path.write_bytes(whole.replace(b'"mechanism"', b'"mechanics"'))
    with pytest.raises(RunFolderError, match="a line without 'mechanism'"):
        run.privacy()


def test_a_ledger_of_other_noise_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", epsilon=5.0, on_progress=stop_after(3))
    folder = records.RunFolder(path=tmp_path / "run")
    noise = lines_of(folder.path)[0]["noise_multiplier"]
    text = folder.ledger_path.read_text()
    folder.ledger_path.write_text(text.replace(f"{noise}", f"{noise + 1}"))
    with pytest.raises(RunFolderError, match="has releases of other noise or cohorts"):
        privrec.train("dp-privrec-one", DATA, out=tmp_path / "run", resume=True)


def stop_after(rounds: int) -> experiment.OnProgress:
    def on_progress(what: str, done: int, total: int) -> None:
        if what == "rounds" and done == rounds:
            raise KeyboardInterrupt

    return on_progress


def test_no_noise_is_handed_out_before_its_release_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a sum is published, the ledger on disk has the round already, fsync included."""
    path = tmp_path / "run"
    synced: list[int] = []
    real_sync, real_publish = os.fsync, Aggregator.publish

    def fsync(descriptor: int) -> None:
        real_sync(descriptor)
        if (path / "ledger.jsonl").exists():
            synced.append(len((path / "ledger.jsonl").read_bytes().splitlines()))

    published: list[int] = []

    def publish(
        self: Aggregator, total: Params, clip_norm: float, noise: NoiseSource
    ) -> dict[str, Any]:
        published.append(len(published))
        assert synced[-1] == len(published)
        return real_publish(self, total, clip_norm, noise)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Aggregator, "publish", publish)
    monkeypatch.setattr(experiment, "CHECKPOINT_SECONDS", math.inf)
    train(path, epsilon=5)
    assert len(published) == ROUNDS


def test_a_torn_last_line_was_never_used(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", epsilon=5.0, on_progress=stop_after(3))
    folder = records.RunFolder(path=tmp_path / "run")
    with folder.ledger_path.open("a") as file:
        file.write('{"round": 3, "sta')
    assert ledger_of(folder).releases == 3
    privrec.train("dp-privrec-one", DATA, out=tmp_path / "run", resume=True)
    assert [line["round"] for line in lines_of(folder.path)] == list(range(ROUNDS))
