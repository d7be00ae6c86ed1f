"""A run under differential privacy: its ledger on disk, its budget, and what it refuses."""

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from privrec.algorithms.recipes import configure
from privrec.core.phase import ServerState
from privrec.errors import PrivacyWarning, RunFolderError, SettingsError
from privrec.privacy.aggregate import Published
from privrec.runs import folder as records
from privrec.runs import loop
from privrec.runs.journal import _read_published
from privrec.runs.ledger import LedgerLine, append_release, ledger_of, read_ledger
from privrec.types import OnProgress
from tiny import DATA, MODEL, each_recipe, own
from witness import witness

ROUNDS = 12
TINY = {**MODEL, "rounds": ROUNDS, "validate_every": 0, "delta": 1e-3}


def train(
    path: Path | None = None, recipe: str = "dp-privrec-one", /, **settings: Any
) -> privrec.Run:
    return privrec.train(recipe, DATA, out=path, **{**own(recipe, TINY), **settings})


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]


# --- what a run writes and says --------------------------------------------------------------


@pytest.mark.slow
@each_recipe(["dp-privrec-one", "lm-privrec"])
@pytest.mark.parametrize("sampling", ["poisson", pytest.param("fixed", marks=pytest.mark.slow)])
def test_an_epsilon_is_met_and_written_down(tmp_path: Path, recipe: str, sampling: str) -> None:
    run = train(tmp_path / "run", recipe, epsilon=5, sampling=sampling)
    lines = lines_of(tmp_path / "run")
    assert [line["round"] for line in lines] == list(range(ROUNDS))
    assert {line["sampling"]["law"] for line in lines} == {sampling}
    # Poisson sampling uses the public number of people, fixed-size sampling the true number.
    users = 43 if sampling == "poisson" else 46
    assert {line["sampling"]["users"] for line in lines} == {users}
    assert {line["noise"] for line in lines} == {"secure"}
    reach = 1 if sampling == "poisson" else 2
    for line in lines:
        assert line["noise_scale"] == line["noise_multiplier"] * reach * line["clip_norm"]
    found = run.privacy()
    assert found.epsilon is not None
    assert 4.95 <= found.epsilon <= 5
    assert found.epsilon == found.epsilon_of_mechanism == run.ledger.epsilon(1e-3)
    assert (found.delta, found.rounds, found.sampling) == (1e-3, ROUNDS, sampling)
    assert found.end_to_end
    people = "about 43 people" if sampling == "poisson" else "the 46 people"
    epsilon = f"epsilon {math.ceil(100 * found.epsilon) / 100:.2f}, "  # Never less than it is.
    for words in (f"{people} who train", epsilon, "delta 0.001", "not covered: the server"):
        assert words in found.statement
    assert "seed" not in found.statement
    assert ("with and without" in found.statement) == (sampling == "poisson")
    evaluation = run.evaluate().as_json()
    assert evaluation["privacy"]["epsilon"] == found.epsilon
    assert epsilon in privrec.write_report(run).read_text()


def test_nobody_takes_an_experiment_for_a_promise(tmp_path: Path) -> None:
    secure, run = (train(tmp_path / kind, epsilon=5, noise=kind) for kind in ("secure", "seeded"))
    assert {line["noise"] for line in lines_of(run.folder.path)} == {"seeded"}
    assert run.ledger == secure.ledger
    found = run.privacy()
    assert (found.epsilon, found.epsilon_rdp, found.noise) == (None, None, "seeded")
    assert found.epsilon_of_mechanism == secure.privacy().epsilon
    assert found.statement.startswith("For experiments only: no protection.")
    assert "came from its seed" in found.statement
    assert "is protected" not in found.statement
    assert run.evaluate().as_json()["privacy"]["epsilon"] is None
    assert "For experiments only: no protection." in privrec.write_report(run).read_text()


def test_given_noise_the_run_tells_its_epsilon(tmp_path: Path) -> None:
    run = train(tmp_path / "run", noise_multiplier=2.0)
    assert run.config.budget.epsilon is None
    assert run.rounds == ROUNDS
    assert {line["noise_multiplier"] for line in lines_of(tmp_path / "run")} == {2.0}
    sampling = privrec.Sampling(law="poisson", users=43, cohort=8)
    kind = privrec.Release(mechanism="gaussian", sampling=sampling, noise_multiplier=2.0)
    assert run.ledger == privrec.PrivacyLedger().record(kind, ROUNDS)


@pytest.mark.slow
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
    runs = [
        train(None, **settings)
        for settings in (
            {"noise_multiplier": 0.0, "noise": "seeded", **plain},
            {"noise_multiplier": 1.0, "noise": "seeded", **plain},
            {"noise_multiplier": 1.0, "noise": "seeded", **plain},
            {"noise_multiplier": 1.0, **plain},
        )
    ]
    # A temporary folder goes with its run, so the runs are kept until all is read.
    quiet, noisy, again, other = (records.read_arrays(run.folder.params_path) for run in runs)
    for name, values in quiet.items():
        assert np.mean(values != noisy[name]) > 0.99, name
        assert np.array_equal(noisy[name], again[name]), name
    # Noise is rounded to a grid, so two draws of secure noise may agree in a few entries.
    fresh = np.concatenate([np.ravel(other[name] != noisy[name]) for name in quiet])
    assert np.mean(fresh) > 0.99
    # Plain: the noise on the parameters is server_lr · z · S / M, with z = 1.
    config = configure("dp-privrec-one", DATA, {**TINY, **plain})
    moved = np.concatenate([np.ravel(noisy[name] - quiet[name]) for name in quiet])
    wanted = config.server_lr * config.clip_norm / config.cohort
    assert moved.std() == pytest.approx(wanted, rel=0.1)


def test_bounding_without_noise_promises_nothing(tmp_path: Path) -> None:
    found = train(tmp_path / "run", noise_multiplier=0.0).privacy()
    assert found.epsilon is None
    assert found.statement.startswith("No differential privacy guarantee")


@pytest.mark.slow
def test_the_bound_can_follow_a_quantile_and_is_resumed_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    wanted: dict[str, Any] = {"epsilon": 5.0, "clip_quantile": 0.5, "clip_norm": 0.5}
    wanted["noise"] = "seeded"
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
    run = train(tmp_path / "run", cohort=1, noise_multiplier=1.0, rounds=20, noise="seeded")
    sizes = [line.clients for line in run.figures]
    assert len(sizes) == 20
    assert 0 in sizes
    assert run.ledger.releases == 20


def test_recipes_without_noise_have_a_ledger_that_says_so(tmp_path: Path) -> None:
    for recipe in ("privrec", "privrec-cen", "popularity"):
        settings = own(recipe, {**TINY, "rounds": 2})
        run = privrec.train(recipe, DATA, out=tmp_path / recipe, **settings)
        assert {line["mechanism"] for line in lines_of(tmp_path / recipe)} == {"none"}
        assert run.ledger.epsilon(1e-6) == math.inf
        assert run.privacy().epsilon is None


# --- wrong settings --------------------------------------------------------------------------


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
    with pytest.raises(
        SettingsError, match="and privrec adds none; did you mean dp-privrec, which"
    ):
        train(None, "privrec", epsilon=8)
    with pytest.raises(
        SettingsError, match="unknown key 'mechanism' for privrec-cen; did you mean"
    ):
        privrec.train("privrec-cen", DATA, mechanism="gaussian", epsilon=8)
    with pytest.raises(SettingsError, match="`clip_quantile` needs the Gaussian"):
        train(None, "lm-privrec", clip_quantile=0.5)


@pytest.mark.parametrize("recipe", ["dp-privrec-one", "dp-privrec-plus"])
def test_a_delta_of_one_in_n_is_refused_and_if_forced_warned_of(
    tmp_path: Path, recipe: str
) -> None:
    said = r"`delta` must be < 1/\d\d, .*; got 0\.1: .* at random"
    with pytest.raises(SettingsError, match=said):
        train(tmp_path / "run", recipe, delta=0.1, rounds=1)
    assert not (tmp_path / "run").exists()
    with pytest.warns(PrivacyWarning, match=said) as warned:
        train(tmp_path / "run", recipe, delta=0.1, rounds=1, force_delta=True)
    assert len(warned) == 1


@pytest.mark.parametrize("change", [{"epsilon": 4.0}, {"clip_norm": 2.0}, {"noise": "seeded"}])
def test_other_privacy_settings_are_refused_on_resume(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", epsilon=5.0, clip_norm=1.0, on_progress=stop_after(3))
    before = lines_of(tmp_path / "run")
    with pytest.raises(RunFolderError, match="was started with"):
        privrec.train("dp-privrec-one", DATA, out=tmp_path / "run", resume=True, **change)
    assert lines_of(tmp_path / "run") == before


# --- a ledger and the disk --------------------------------------------------------------------


def test_a_ledger_of_other_noise_is_not_gone_on_with(tmp_path: Path) -> None:
    """Even if its lines are consistent, for example from another version of privrec."""
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", epsilon=5.0, on_progress=stop_after(3))
    folder = records.RunFolder(path=tmp_path / "run")
    before = read_ledger(folder)
    folder.ledger_path.unlink()
    made: list[LedgerLine] = []
    for line in before:
        noise = line.noise_multiplier + 1
        scale = noise * (line.clip_norm or 0.0)
        other = line.model_copy(update={"noise_multiplier": noise, "noise_scale": scale})
        made.append(append_release(folder, made, other))
    assert read_ledger(folder) == made
    with pytest.raises(RunFolderError, match="has releases of other noise or cohorts"):
        privrec.train("dp-privrec-one", DATA, out=tmp_path / "run", resume=True)
    assert read_ledger(folder) == made


def test_a_ledger_of_other_people_or_without_its_end_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", epsilon=5.0, on_progress=stop_after(3))
    folder = records.RunFolder(path=tmp_path / "run")
    lines, whole = read_ledger(folder), folder.ledger_path.read_bytes()
    folder.ledger_path.unlink()
    made: list[LedgerLine] = []
    for line in lines:
        other = line.model_copy(update={"population": "others"})
        made.append(append_release(folder, made, other))
    with pytest.raises(RunFolderError, match="has releases of another population"):
        privrec.train("dp-privrec-one", DATA, out=folder.path, resume=True)
    # The checkpoint knows of a round that the two other files have lost.
    folder.ledger_path.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    records.keep_rounds(folder, 2)
    with pytest.raises(RunFolderError, match="lacks the release of round 2, which was played"):
        privrec.train("dp-privrec-one", DATA, out=folder.path, resume=True)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (2**60, "lacks the release of round 0"),
        (math.nan, "checkpoint.safetensors is damaged: it has no number of rounds"),
        ([1, 2], "checkpoint.safetensors is damaged: it has no number of rounds"),
    ],
)
def test_a_checkpoint_of_any_number_of_rounds_is_refused_at_once(
    tmp_path: Path, count: Any, said: str
) -> None:
    folder = records.RunFolder(path=tmp_path)
    arrays = {"round_index": np.asarray(count), "clip_norm": np.asarray([1.0, 2.0])}
    records.write_arrays(folder.checkpoint_path, arrays, {})
    with pytest.raises(RunFolderError, match=said):
        ledger_of(folder)
    with pytest.raises(RunFolderError, match="is not a checkpoint of privrec"):
        loop.restore(folder, [])


def test_a_kept_sum_without_its_bound_is_said_to_be_damaged(tmp_path: Path) -> None:
    records.write_arrays(tmp_path / "published-0.safetensors", {"update x": np.zeros(2)}, {})
    with pytest.raises(RunFolderError, match="is damaged: it has no number as clip_norm"):
        _read_published(tmp_path / "published-0.safetensors")


def stop_after(rounds: int) -> OnProgress:
    def on_progress(what: str, done: int, total: int) -> None:
        if what == "rounds" and done == rounds:
            raise KeyboardInterrupt

    return on_progress


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_no_sum_is_handed_out_before_its_release_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: str
) -> None:
    """When a noised sum is returned, the ledger on disk has the round, after fsync.

    A sum with secure noise, which cannot be drawn again, is on disk before its ledger line.
    """
    folder = records.RunFolder(path=tmp_path / "run")
    synced: list[tuple[int, bool]] = []
    real_sync = os.fsync
    published: list[Published] = []

    def fsync(descriptor: int) -> None:
        real_sync(descriptor)
        if folder.ledger_path.exists():
            lines = len(folder.ledger_path.read_bytes().splitlines())
            synced.append((lines, folder.published_path(lines - 1).exists()))

    def look(state: ServerState, found: Published) -> None:
        assert state.round_index == len(published)
        published.append(found)
        # At the last line's fsync the secure sum had its name, so its content was on the disk.
        assert synced[-1] == (len(published), noise == "secure")
        line = lines_of(folder.path)[-1]
        assert line["round"] == state.round_index
        if noise == "secure":
            kept = folder.published_path(state.round_index)
            assert line["published"] == hashlib.sha256(kept.read_bytes()).hexdigest()
            update = {f"update {name}": value for name, value in found.update.items()}
            arrays = records.read_arrays(kept)
            assert arrays.pop("clip_norm") == found.clip_norm
            assert arrays.keys() == update.keys()
            assert all(np.array_equal(arrays[name], update[name]) for name in update)
        synced.clear()

    monkeypatch.setattr(os, "fsync", fsync)
    witness(look, monkeypatch.setattr)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", math.inf)
    train(folder.path, epsilon=5, noise=noise)
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
