"""A run folder that is damaged or hostile: the page says so in one line, and goes on looking."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import privrec
from privrec.core.round import play_stage_round
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import Sampling
from privrec.runs import loop
from privrec.runs.folder import RunFolder, settings_in
from privrec.runs.ledger import LedgerLine, append_release, read_ledger
from privrec.show import status
from privrec.show.status import Watched
from tiny import DATA, MODEL

CONFIG = 'recipe = "privrec"\ndata = "synthetic"\nseed = 0\nformat = 4\n'


def release(path: Path, *rounds: int, noises: Sequence[float] = ()) -> None:
    """Write releases to the ledger: without noise, or one for each given noise."""
    folder = RunFolder(path=path)
    for number, noise in zip_longest(rounds, noises, fillvalue=0.0):
        line = LedgerLine(
            round=int(number),
            stage="train",
            people="everybody",
            population="people",
            noise="secure" if noise else "none",
            mechanism="gaussian" if noise else "none",
            sampling=Sampling(law="poisson", users=40, cohort=8),
            noise_multiplier=noise,
            quantile_multiplier=None,
            adjacency="add or remove one person",
            clip_norm=1.0 if noise else None,
            noise_scale=noise or None,
        )
        append_release(folder, read_ledger(folder), line)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run of two rounds that was stopped."""
    found = tmp_path / "run"
    (found / "simulation").mkdir(parents=True)
    release(found, 0, 1)
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


def test_an_unexpected_fault_is_said_until_the_files_change(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are not read again before: what made the fault may take long."""
    watched, faults = Watched(path), []

    def fault(*_: object) -> str:
        faults.append(1)
        raise ZeroDivisionError("two\nlines")

    figures(path, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(status, "run_charts", fault)
        for _ in range(2):
            found = json.loads(watched.text())
            assert (found["state"], found["problem"]) == ("damaged", "ZeroDivisionError: two lines")
    assert len(faults) == 1
    figures(path, 1.0, 2.0)
    assert json.loads(watched.text())["state"] == "stopped"


@pytest.mark.slow
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
    [
        "config.toml",
        "rounds.jsonl",
        "ledger.jsonl",
        "simulation/rounds.jsonl",
        "simulation/progress.json",
    ],
)
def test_a_pipe_or_a_device_in_place_of_a_file_is_not_read(path: Path, name: str) -> None:
    place = path / name
    for put in (os.mkfifo, lambda place: place.symlink_to("/dev/zero"), os.mkdir):
        place.unlink(missing_ok=True)
        put(place)
        found = Watched(path).look().as_json()
        said = f"{place} is damaged: it is not a usual file"
        assert (found["state"], found["problem"]) == ("damaged", said)


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
    assert (found["state"], "too large" in found["problem"]) == ("damaged", True)


def test_settings_are_short_and_read_when_they_change(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of many parts takes long, the longer the more for each."""
    watched, reads, real = Watched(path), [], settings_in

    def counted(folder: RunFolder, content: bytes) -> dict[str, Any]:
        reads.append(content)
        return real(folder, content)

    monkeypatch.setattr(status, "settings_in", counted)
    for key in ("", "a.b = 1\n"):
        (path / "config.toml").write_text(key + CONFIG)
        assert [watched.look().state for _ in range(2)] == ["stopped"] * 2
    assert len(reads) == 2
    (path / "config.toml").write_text("a." * 2**13 + "b = 1\n" + CONFIG)
    assert "too large" in (watched.look().problem or "")
    assert len(reads) == 2


def test_a_ledger_that_was_cut_at_its_end_is_said(path: Path) -> None:
    """Its epsilon would be too small."""
    with (path / "rounds.jsonl").open("a") as out:
        out.writelines(f'{{"round": {number}, "stage": "train"}}\n' for number in range(2, 50))
    found = Watched(path).look()
    assert found.state == "damaged"
    assert "ledger.jsonl lacks the release of round 2, which was played" in (found.problem or "")


def test_a_release_of_the_round_that_is_played_now_is_no_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training writes the release and then the round, also while the page reads."""
    real = status._content

    def content(place: Path, most: int) -> bytes:
        found = real(place, most)
        if place in (path / "ledger.jsonl", path / "rounds.jsonl"):
            at = len(read_ledger(RunFolder(path=path)))
            release(path, at)
            with (path / "rounds.jsonl").open("a") as out:
                out.write(f'{{"round": {at}, "stage": "train"}}\n')
        return found

    monkeypatch.setattr(status, "_content", content)
    watched = Watched(path)
    assert [watched.look().state for _ in range(3)] == ["stopped"] * 3


def test_of_too_many_kinds_of_releases_no_epsilon_is_computed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrivacyLedger, "epsilon", lambda *_: pytest.fail("it was computed"))
    release(path, *range(2, 35), noises=[1 + number / 100 for number in range(33)])
    found = Watched(path).look()
    assert found.privacy is not None
    assert found.privacy.problem == "too many kinds of releases"
    assert found.privacy.epsilon is None


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
