"""The two files with a line per round, and the published sums, agree with the checkpoint."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from privrec.errors import RunFolderError
from privrec.runs import folder as records
from privrec.runs.documents import RoundFigures, RoundLine

NAMED: list[dict[str, Any]] = [{"round": k, "stage": "train"} for k in range(5)]
LINES: list[dict[str, Any]] = [
    {**line, "seconds": 0.25, "clients": 8, "loss": 0.5 / (k + 1)}
    for k, line in enumerate(NAMED[:4])
]


def new_folder(path: Path) -> records.RunFolder:
    (path / "simulation").mkdir()
    return records.RunFolder(path=path)


def rounds_in(folder: records.RunFolder) -> list[dict[str, Any]]:
    return [line.as_json() for line in records.read_rounds(folder.rounds_path, RoundLine)]


def figures_in(folder: records.RunFolder) -> list[dict[str, Any]]:
    return [line.as_json() for line in records.read_rounds(folder.figures_path, RoundFigures)]


def text_of(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def folder_with_rounds(path: Path, rounds: str, figures: str | None = None) -> records.RunFolder:
    folder = records.RunFolder(path=path)
    folder.rounds_path.write_text(rounds)
    if figures is not None:
        folder.figures_path.parent.mkdir(exist_ok=True)
        folder.figures_path.write_text(figures)
    return folder


@pytest.mark.parametrize("figures", [True, False])
def test_rounds_are_read_as_they_were_appended(tmp_path: Path, figures: bool) -> None:
    """Figures from raw data go to `simulation/`, and only if `figures` is true."""
    folder = new_folder(tmp_path)
    assert rounds_in(folder) == figures_in(folder) == []
    for line in LINES:
        records.append_round(folder, RoundFigures(**line), figures=figures)
    assert rounds_in(folder) == NAMED[:4]
    assert figures_in(folder) == (LINES if figures else [])
    assert (tmp_path / "rounds.jsonl").read_text() == text_of(NAMED[:4])
    raw = tmp_path / "simulation" / "rounds.jsonl"
    assert raw.exists() == figures
    if figures:
        assert raw.read_text() == text_of(LINES)


def test_a_line_torn_anywhere_costs_that_line_alone(tmp_path: Path) -> None:
    whole = text_of(LINES)
    last = json.dumps(LINES[-1])
    for cut in range(len(last)):
        torn = whole[: len(whole) - 1 - len(last) + cut]
        folder = folder_with_rounds(tmp_path, torn, torn)
        assert rounds_in(folder) == figures_in(folder) == LINES[:-1], torn
    # Only the line break is missing: the line is complete; the next one must start a new line.
    folder = folder_with_rounds(tmp_path, text_of(NAMED[:4])[:-1], whole[:-1])
    records.keep_rounds(folder, 4)
    more = {**NAMED[4], "seconds": 0.25, "clients": 9, "loss": None}
    records.append_round(folder, RoundFigures(**more), figures=True)
    assert rounds_in(folder) == NAMED
    assert figures_in(folder) == [*LINES, more]


def test_a_torn_line_is_the_last_one_and_not_one_of_the_same_text(tmp_path: Path) -> None:
    lines = [json.dumps(NAMED[0]), '{"rou', json.dumps(NAMED[1]), '{"rou']
    folder = folder_with_rounds(tmp_path, "\n".join(lines))
    with pytest.raises(RunFolderError, match="damaged at line 2: "):
        rounds_in(folder)


@pytest.mark.parametrize("figures", [True, False])
@pytest.mark.parametrize("before", range(6))
def test_rounds_are_cut_back_to_those_before_the_checkpoint(
    tmp_path: Path, before: int, figures: bool
) -> None:
    rounds, raw = (text_of(lines) + '{"round": 4, "clie' for lines in (NAMED[:4], LINES))
    folder = folder_with_rounds(tmp_path, rounds, raw if figures else None)
    records.keep_rounds(folder, before)
    kept = min(before, 4)
    assert rounds_in(folder) == NAMED[:kept]
    assert folder.rounds_path.read_text() == text_of(NAMED[:kept])
    expected = {"rounds.jsonl"}
    if figures:
        assert folder.figures_path.read_text() == text_of(LINES[:kept])
        assert os.listdir(tmp_path / "simulation") == ["rounds.jsonl"]
        expected |= {"simulation"}
    assert set(os.listdir(tmp_path)) == expected


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is full")
@pytest.mark.parametrize("name", ["rounds_path", "figures_path"])
def test_a_full_disk_while_appending_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(records.RunFolder, name, Path("/dev/full"))
    line = RoundFigures(**LINES[0])
    with pytest.raises(RunFolderError, match=r"cannot write /dev/full: No space left on device"):
        records.append_round(records.RunFolder(path=tmp_path), line, figures=True)


def test_what_was_published_goes_when_the_checkpoint_has_it(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    others = ["published-.safetensors", "published-x.safetensors", "published-1.txt"]
    for name in ["published-9.safetensors", "published-10.safetensors", *others]:
        (tmp_path / name).write_text("")
    assert folder.published_path(10) == tmp_path / "published-10.safetensors"
    made = set(os.listdir(tmp_path))
    records.drop_published(folder, 9)
    assert set(os.listdir(tmp_path)) == made
    records.drop_published(folder, 10)
    assert set(os.listdir(tmp_path)) == made - {"published-9.safetensors"}
