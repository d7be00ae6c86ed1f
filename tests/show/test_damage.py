"""A run folder that is damaged or hostile: the page says so in one line, and goes on looking."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import privrec
from privrec.core.round import play_stage_round
from privrec.runs import loop
from privrec.show import status
from privrec.show.status import Watched
from tiny import DATA, MODEL

CONFIG = 'recipe = "privrec"\ndata = "synthetic"\nseed = 0\nformat = 4\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run of two rounds that was stopped."""
    found = tmp_path / "run"
    (found / "simulation").mkdir(parents=True)
    (found / "config.toml").write_text(CONFIG)
    (found / "rounds.jsonl").write_text(
        '{"round": 0, "stage": "train"}\n{"round": 1, "stage": "train"}\n'
    )
    return found


def figures(path: Path, *losses: object) -> None:
    lines = [
        {"round": n, "stage": "train", "seconds": 1.0, "loss": loss}
        for n, loss in enumerate(losses)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "simulation" / "rounds.jsonl").write_text(text)


def test_a_training_that_diverged_is_shown(path: Path) -> None:
    figures(path, 3.0, 2.0, math.nan, math.inf, -math.inf, 1e308, -1e308)
    found = json.loads(Watched(path).text())
    assert found["state"] == "stopped"
    assert "Loss on the devices" in found["charts"]


def test_an_unexpected_fault_is_said_and_the_next_look_mends_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(path)

    def fault(*_: object) -> str:
        raise ZeroDivisionError("two\nlines")

    figures(path, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(status, "run_charts", fault)
        found = json.loads(watched.text())
        assert (found["state"], found["problem"]) == ("damaged", "ZeroDivisionError: two lines")
    assert json.loads(watched.text())["state"] == "stopped"


def test_a_loss_that_is_not_finite_is_written_as_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play_stage_round

    def diverged(*given: Any) -> Any:
        state, report = played(*given)
        return state, replace(report, loss=math.nan)

    monkeypatch.setattr(loop, "play_stage_round", diverged)
    privrec.train("privrec", DATA, out=tmp_path / "run", rounds=1, **MODEL)
    text = (tmp_path / "run" / "simulation" / "rounds.jsonl").read_text()
    assert "NaN" not in text
    assert json.loads(text)["loss"] is None


DEEP = 100_000 * "["
MANY_DIGITS = 5_000 * "9"


@pytest.mark.parametrize(
    "name",
    ["rounds.jsonl", "ledger.jsonl", "simulation/rounds.jsonl", "simulation/progress.json"],
)
def test_a_pipe_or_a_device_in_place_of_a_file_is_not_read(path: Path, name: str) -> None:
    place = path / name
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    assert Watched(path).look().as_json()["state"] == "stopped"
    place.unlink()
    place.symlink_to("/dev/zero")
    assert Watched(path).look().as_json()["state"] == "stopped"


@pytest.mark.parametrize(
    "name",
    [
        "config.toml",
        "rounds.jsonl",
        "ledger.jsonl",
        "simulation/rounds.jsonl",
        "simulation/progress.json",
    ],
)
def test_a_huge_file_is_not_read(path: Path, name: str) -> None:
    with (path / name).open("ab") as out:
        out.truncate(3 * 2**30)  # It takes no room on the disk.
    found = Watched(path).look().as_json()
    if name.endswith("progress.json"):
        assert found["state"] == "stopped"
    else:
        assert (found["state"], "too large" in found["problem"]) == ("damaged", True)


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        f'{{"round": {MANY_DIGITS}}}',
        '{"round": "x"}',
        '{"round": null}',
        '{"round": [1]}',
        '{"round": 1e999}',
        '{"round": 1, "validation": [1], "loss": {}}',
        '{"round": 1, "validation": {"20": "x", "x": 1, "' + MANY_DIGITS + '": 1}, "loss": "x"}',
        '{"round": 1' + 4000 * "0" + ', "stage": "train", "loss": 1}',
    ],
)
@pytest.mark.parametrize(
    "name", ["rounds.jsonl", "simulation/rounds.jsonl", "simulation/progress.json"]
)
def test_a_line_of_another_kind_never_ends_the_page(path: Path, name: str, line: str) -> None:
    (path / name).write_text(line + "\n")
    found = json.loads(Watched(path).text())
    assert found["state"] in ("stopped", "damaged")
    assert "\n" not in (found["problem"] or "")


@pytest.mark.parametrize(
    ("told", "key"),
    [
        ({"round": "x"}, "round"),
        ({"step": 3}, "step"),
        ({"step": {"what": "x", "done": 1, "of": "2"}}, "step.of"),
        ({"stages": "ab"}, "stages"),
        ({"memory": {"now": 1}}, "memory.peak"),
        ({"seconds_per_round": []}, "seconds_per_round"),
    ],
)
def test_progress_of_another_shape_is_named(path: Path, told: dict[str, Any], key: str) -> None:
    (path / "simulation" / "progress.json").write_text(json.dumps({"doing": "training", **told}))
    found = Watched(path).look().as_json()
    assert (found["state"], repr(key) in found["problem"]) == ("damaged", True)


@pytest.mark.parametrize(
    "line",
    [
        "seed = nan",
        "seed = 2020-01-01",
        "seed = 0\nepsilon = 12:00:00",
        f"seed = {MANY_DIGITS}",
        f"seed = 0x{MANY_DIGITS}",
        f"seed = {DEEP}",
        "seed = 0\nepsilon = nan",
        "seed = 0\nepsilon = inf",
    ],
)
def test_settings_of_another_kind_are_said(path: Path, line: str) -> None:
    (path / "config.toml").write_text(CONFIG.replace("seed = 0", line))
    found = json.loads(Watched(path).text())
    assert found["state"] == "damaged"
    assert "config.toml" in found["problem"]
    assert "\n" not in found["says"]["state"]


@pytest.mark.parametrize("line", [DEEP, f'{{"round": {MANY_DIGITS}}}', '{"round": 1}', "[]"])
def test_a_ledger_of_another_kind_is_said(path: Path, line: str) -> None:
    (path / "ledger.jsonl").write_text(line + "\n")
    found = Watched(path).look().as_json()
    assert (found["state"], "damaged at line 1" in found["problem"]) == ("damaged", True)
