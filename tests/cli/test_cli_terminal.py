"""What a terminal, a pipe or a script sees: tables that cut nothing, closed pipes, suggestions."""

import io
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from commands import document, done
from privrec.cli.console import print_privacy, print_table
from privrec.cli.rank import shares_text
from privrec.privacy.paper import Cell
from privrec.privacy.statement import strength_of
from privrec.runs.api import open_run
from privrec.runs.documents import Privacy
from tiny import DATA

MAIN = "from privrec.cli.entry import main; main()"


def words_of(text: str) -> list[str]:
    """Return what stands between spaces and the lines of a table."""
    return "".join(" " if c in "│┃" else c for c in text).split()


@pytest.mark.parametrize("width", [30, *range(40, 101, 4), 200])
def test_no_table_cuts_a_figure_or_a_name(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    draw = random.Random(width)  # noqa: S311 (not for secrets)
    for _ in range(30):
        figures = draw.randrange(10)
        columns = ["recipe", "what it is", *(f"column {k}" for k in range(figures))]
        columns += ["better than"]
        rows = [
            [
                draw.choice(["ease", "dp-privrec-plus", "popularity"]),
                " ".join("word" * draw.randint(1, 4) for _ in range(draw.randint(0, 9))),
                *(draw.choice(["0.12", f"{draw.uniform(-1e4, 1e6):,.4f}"]) for _ in range(figures)),
                f"{draw.randint(0, 100)} %",
            ]
            for _ in range(draw.randint(1, 4))
        ]
        print_table("A title", columns, rows)
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= width
        assert "…" not in shown
        found = words_of(shown)
        if "┃" in shown:
            assert all(line[-1] in "┓┃┩│┘" for line in shown.splitlines()[1:]), shown
        for cell in (cell for row in rows for cell in row):
            assert [word for word in cell.split() if word not in found] == [], shown


def test_a_wide_table_loses_its_frame_and_then_becomes_blocks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        print_table("T", ("run", "here", "there"), [("first", "0.123", "0.456")])
        return capsys.readouterr().out

    assert "│ first │ 0.123 │ 0.456 │" in shown(30)
    assert "first  0.123  0.456" in shown(20)
    assert shown(16) == "T\nfirst\n  here: 0.123\n  there: 0.456\n"


@pytest.mark.parametrize("width", ["80", "60"])
@pytest.mark.parametrize(
    "words",
    [
        ["data", "list"],
        ["data", "describe", DATA],
        ["recipes"],
        ["recipes", "ease"],
        ["compare", "RUN"],
        ["evaluate", "RUN"],
        ["privacy", "spent", "RUN"],
        ["recommend", "RUN"],
        ["train", "popularity", "--data", DATA, "--dry-run"],
    ],
    ids=" ".join,
)
def test_the_tables_of_commands_are_whole(
    evaluated: tuple[Path, object],
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    width: str,
) -> None:
    shutil.copytree(evaluated[0], scratch / "run")
    named = ["run" if word == "RUN" else word for word in words]

    def words_at(width: str) -> set[str]:
        monkeypatch.setenv("COLUMNS", width)
        shown = done(*named)
        assert "…" not in shown
        framed = [line for line in shown.splitlines() if "│" in line or "─" in line]
        assert max(map(len, framed), default=0) <= int(width)
        return {word.strip(",:;") for word in words_of(shown) if word.strip("┏━┳┓┡╇┩└─┴┘")}

    assert words_at("999") <= words_at(width)


class Terminal(io.StringIO):
    """A screen that has colours."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("epsilon", "word", "colour"),
    [
        (0.5, "strong protection", "32"),
        (3.0, "moderate protection", "34"),
        (8.0, "weak protection", "33"),
        (None, "no guarantee", "31"),
    ],
)
def test_the_box_has_the_colour_of_its_strength_and_the_word(
    monkeypatch: pytest.MonkeyPatch, epsilon: float | None, word: str, colour: str
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.delenv("NO_COLOR", raising=False)
    privacy = Privacy(
        epsilon=epsilon,
        delta=1e-6,
        strength=strength_of(epsilon),
        statement="-",
        short="Who, and against whom \x1b[2J.",
        not_covered=["the server", "others"],
    )
    print_privacy(privacy, "elsewhere")
    shown = screen.getvalue()
    assert shown.startswith(f"\x1b[{colour}m╭")
    assert "\x1b[2J" not in shown
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert f"privacy: {word}" in plain.splitlines()[0]
    for line in ("not covered:", "- the server", "- others", "in full: elsewhere"):
        assert f"│ {line} " in plain
    assert ("Ponomareva" in plain) == (epsilon is not None)


def test_a_command_says_once_and_in_short_what_is_promised(scratch: Path) -> None:
    """Of a run with noise: the train's and the evaluation's box, and a line of the export."""
    options = ["--delta", "1e-3", "--epsilon", "4", "--out", "run"]
    trained = done("train", "dp-privrec-plus", "--data", DATA, *options)
    privacy = open_run(Path("run")).privacy()
    evaluated = done("evaluate", "run")
    exported = done("export", "run", "--out", "model.privrec")
    for said in (trained, evaluated, exported):
        assert privacy.statement not in said
        assert said.count("privacy: moderate protection, epsilon 3.9") == 1
        assert max(len(line.split()) for line in said.splitlines() if "protect" in line) < 50
    for said in (trained, evaluated):
        lines = said.splitlines()
        assert lines.count(privacy.short) == 1
        listed = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
        assert listed == list(privacy.not_covered)
    assert privacy.short not in exported
    assert "no guarantee, epsilon is infinite" in done(
        "train", "popularity", "--data", DATA, "--out", "bare"
    )


@pytest.mark.parametrize("width", [80, 60])
def test_the_papers_tables_are_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    figures = [16.5, 12.25, 10.125, 9.75, 8.0625, 7.5, 6.25]
    names = [field.name for field in fields(Cell)]
    values: list[Any] = ["frappe", 760, 30, 1e-8, *figures]
    cells = [Cell(**dict(zip(names, values, strict=True)))]
    monkeypatch.setattr("privrec.privacy.paper.paper_tables", lambda: cells)
    monkeypatch.setenv("COLUMNS", str(width))
    found = words_of(done("privacy", "paper-tables"))
    assert [f"{figure:.4f}" for figure in figures if f"{figure:.4f}" not in found] == []


def test_a_pipe_gets_a_row_on_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    [line] = [line for line in done("data", "list").splitlines() if "gowalla" in line]
    assert "filtered by Liang et al. 2016" in line


# --- pipes and disks -------------------------------------------------------------------------


def run_with(stdout: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("words", [["data", "list"], ["data", "list", "--json"]])
def test_nobody_reads_any_more(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = run_with(writing, *words)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is full")
@pytest.mark.parametrize("words", [["data", "list"], ["recipes", "--json"]])
@pytest.mark.slow
def test_a_full_disk_behind_stdout_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ran = run_with(full.fileno(), *words)
    assert (ran.returncode, ran.stderr) == (2, "privrec: No space left on device\n")


@pytest.mark.slow
def test_another_encoding_is_no_traceback() -> None:
    code = MAIN.replace("main()", "import sys; sys.stdout.reconfigure(encoding='ascii'); main()")
    ran = subprocess.run(
        [sys.executable, "-c", code, "data", "list"], capture_output=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"movielens-1m" in ran.stdout


# --- suggestions -----------------------------------------------------------------------------


def test_settings_without_effect_are_still_accepted(scratch: Path) -> None:
    """A config.toml of a run has all keys, also those of noise where there is none."""
    done("train", "fcf", "--data", DATA, "--set", "rounds=1", "--set", "cohort=9", "--out", "a")
    words = ["train", "fcf", "--config", "a/config.toml", "--out", "b", "--json"]
    assert document(*words)["rounds"] == 1


# --- what a place in a list means ------------------------------------------------------------


def test_only_the_best_of_all_is_better_than_all() -> None:
    others = 3705
    shares = [(others - place) / others for place in range(4)]
    assert shares_text(shares, others + 1) == ["100.00 %", "99.97 %", "99.94 %", "99.91 %"]
    assert len(set(shares_text([(40980 - k) / 40980 for k in range(20)], 40981))) == 20
    assert shares_text([1.0, 0.5, 0.0], 3) == ["100 %", "50 %", "0 %"]
