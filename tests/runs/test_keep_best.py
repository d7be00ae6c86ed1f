"""Without noise the best state by validation is kept and training stops; under noise never."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_resume import Stopped

import privrec
from commands import done
from privrec.algorithms.privrec_plus.scoring import learned_of
from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import RECIPES, configure, prepare
from privrec.core.round import play_stage_round
from privrec.data.sources import load
from privrec.runs import folder as records
from privrec.runs import loop
from privrec.runs.ledger import settled_ledger
from privrec.types import Params
from tiny import DATA, MODEL, new_folder, own

EVERY_ROUND: dict[str, Any] = {**MODEL, "rounds": 6, "validate_every": 1, "patience": 2}
# Steps so long that every round on top of the closed form makes it much worse.
HARMFUL = {
    **own("privrec-plus", EVERY_ROUND),
    "server_lr": 10.0,
    "validation_share": 0.3,
}
MORE = "synthetic:users=200,items=150"


def figures_of(path: Path) -> list[dict[str, Any]]:
    text = (path / "simulation" / "rounds.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run whose rounds on top only harm, and what the command says of it."""
    path = tmp_path_factory.mktemp("best") / "run"
    words = [word for key, value in HARMFUL.items() for word in ("--set", f"{key}={value}")]
    return path, done("train", "privrec-plus", "--data", MORE, "--out", path, *words)


@pytest.mark.slow
def test_rounds_that_only_harm_are_dropped(harmed: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = harmed
    lines = figures_of(path)
    hits = [line["validation"]["20"] for line in lines[1:]]
    assert hits[0] > max(hits[1:])
    assert [line["best"] for line in lines[1:]] == [True, False, False]
    assert [line["stopped"] for line in lines[1:]] == [False, False, True]
    sums = privrec.train("privrec-plus", MORE, out=tmp_path / "sums", **{**HARMFUL, "rounds": 0})
    before, after = (
        records.read_arrays(folder / "params.safetensors") for folder in (sums.folder.path, path)
    )
    assert not learned_of(after)
    assert {name: array.tobytes() for name, array in before.items()} == {
        name: array.tobytes() for name, array in after.items()
    }
    # All that was published counts, kept or not.
    assert privrec.open_run(path).ledger.releases == 4


def test_the_terminal_and_the_report_say_which_state_was_kept(harmed: tuple[Path, str]) -> None:
    path, said = harmed
    hits = [f"{line['validation']['20']:.4f}" for line in figures_of(path)[1:]]
    sentence = (
        "The state after round 2 was kept: Hits@20 on the validation people was"
        f" {hits[0]} there and {hits[-1]} after round 4, where training stopped early"
    )
    assert sentence in said
    page = privrec.write_report(path).read_text()
    assert sentence in page


# --- any recipe, with figures that the test makes up ---------------------------------------------

HITS = [0.1, 0.3, 0.3, 0.2, 0.25, 0.9]
"""Of each round: as good is kept too, two worse ones end it, and the last is never seen."""


def scripted(monkeypatch: pytest.MonkeyPatch, hits: Sequence[float]) -> list[Params]:
    """Make up the figures of the looks, by the number of the state; return the states seen."""
    seen: list[Params] = []
    rounds: list[int] = []

    def play(stage: Any, state: Any, around: Any) -> Any:
        after = play_stage_round(stage, state, around)
        rounds[:] = [after[0].round_index - stage.first]
        return after

    def validate(prepared: Plan, params: Params) -> dict[str, Any]:
        seen.append(params)
        return {"validation": {"20": hits[rounds[0] - 1]}}

    monkeypatch.setattr(loop, "play_stage_round", play)
    monkeypatch.setattr(loop, "validate", validate)
    return seen


def prepared_for(recipe: str, **settings: Any) -> Plan:
    given = own(recipe, {**EVERY_ROUND, **settings})
    return prepare(configure(recipe, DATA, given), load(DATA))


def bytes_of(params: Any) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in params.items()}


@pytest.mark.parametrize("recipe", ["privrec", "fcf", "privrec-cen", "nn-self"])
def test_the_best_state_is_kept_and_training_stops(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepared_for(recipe)
    seen = scripted(monkeypatch, HITS)
    folder = new_folder(tmp_path / "run", made)
    loop.play_stages(made, folder)
    assert [line["best"] for line in figures_of(folder.path)] == [True, True, True, False, False]
    assert bytes_of(records.read_arrays(folder.params_path)) == bytes_of(seen[2])
    assert records.read_about(folder.params_path)["rounds"] == "5"


@pytest.mark.slow
def test_a_training_that_stops_in_an_early_stage_plays_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepared_for("fedgnn", rounds=12, patience=1)
    seen = scripted(monkeypatch, [0.3, 0.4, 0.1, 0.9, 0.9, 0.9])
    folder = new_folder(tmp_path / "run", made)
    loop.play_stages(made, folder)
    assert [line["stage"] for line in figures_of(folder.path)] == ["warm-up"] * 3
    assert bytes_of(records.read_arrays(folder.params_path)) == bytes_of(seen[1])
    assert len(settled_ledger(folder)) == 3


@pytest.mark.parametrize("recipe", ["privrec", "fcf", "privrec-plus"])
@pytest.mark.parametrize("seconds", [-1.0, 1e9])
def test_stopping_and_going_on_keeps_the_same_state(
    recipe: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a checkpoint after every round, and with one at the end of a stage alone."""
    made = prepared_for(recipe)
    scripted(monkeypatch, HITS)
    whole = new_folder(tmp_path / "whole", made)
    loop.play_stages(made, whole)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", seconds)
    folder = new_folder(tmp_path / "run", made)
    for attempt in range(1, 10):
        left = [attempt if seconds > 0 else 1]

        def stop(what: str, count: int, total: int, left: list[int] = left) -> None:
            left[0] -= what.startswith("rounds")
            if left[0] == 0:
                raise Stopped

        try:
            loop.play_stages(made, folder, resume=attempt > 1, on_progress=stop)
        except Stopped:
            continue
        break
    assert folder.params_path.is_file()
    for name in ("params.safetensors", "checkpoint.safetensors", "ledger.jsonl", "rounds.jsonl"):
        assert (folder.path / name).read_bytes() == (whole.path / name).read_bytes(), name
    one, other = (
        [{**line, "seconds": 0} for line in figures_of(path)] for path in (folder.path, whole.path)
    )
    assert one == other


@pytest.mark.parametrize("settings", [{"patience": 0}, {"validate_every": 0}])
def test_without_patience_or_looks_all_rounds_are_played(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepared_for("fcf", **settings)
    seen = scripted(monkeypatch, HITS)
    folder = new_folder(tmp_path / "run", made)
    loop.play_stages(made, folder)
    lines = figures_of(folder.path)
    assert len(lines) == 6
    assert not any("best" in line for line in lines)
    if seen:
        assert bytes_of(records.read_arrays(folder.params_path)) == bytes_of(seen[-1])


@pytest.mark.slow
def test_under_noise_nothing_is_kept_by_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even under seeded noise, where looks are written."""
    made = prepared_for("dp-privrec-one", noise="seeded", force_delta=True)
    seen = scripted(monkeypatch, HITS)
    folder = new_folder(tmp_path / "run", made)
    loop.play_stages(made, folder)
    assert not any("best" in line for line in figures_of(folder.path))
    assert len(seen) == 6
    assert bytes_of(records.read_arrays(folder.params_path)) == bytes_of(seen[-1])


def test_recipes_as_others_published_them_play_all_rounds() -> None:
    patient = {name for name, one in RECIPES.items() if one.values.get("patience")}
    assert patient == {"privrec-plus", "privrec", "fcf"}
