"""The bar that Python shows by itself: in a terminal and in a notebook, and nowhere else."""

import io
import sys
from types import SimpleNamespace

import pytest

import privrec
from privrec.errors import SettingsError
from privrec.runs import bar
from privrec.runs.bar import line_of, progress_bar
from tiny import DATA


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def screen(written: str) -> str:
    """Return what a terminal's line holds after all that was written to it."""
    line: list[str] = []
    place = 0
    for sign in written:
        if sign == "\r":
            place = 0
            continue
        assert sign.isprintable()
        line[place : place + 1] = [sign]
        place += 1
    return "".join(line).rstrip()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    # Not `sys.stderr` itself, which pytest sets again when the test begins.
    stream = Terminal()
    monkeypatch.setattr(bar, "sys", SimpleNamespace(stderr=stream, modules=sys.modules))
    monkeypatch.setattr(bar, "_EVERY", 0.0)
    return stream


def test_a_terminal_shows_one_line_and_clears_it(terminal: Terminal) -> None:
    with progress_bar(None) as tell:
        assert tell is not None
        tell("rounds", 0, 400)
        assert "rounds 0/400" in screen(terminal.getvalue())
        tell("rounds", 400, 400)
        tell("people", 1, 2)
        assert "people 1/2" in screen(terminal.getvalue())
        assert "400" not in screen(terminal.getvalue())
    assert screen(terminal.getvalue()) == ""
    assert "\n" not in terminal.getvalue()


def test_steps_inside_a_round_come_and_go(terminal: Terminal) -> None:
    with progress_bar(None) as tell:
        assert tell is not None
        for what, done, total, shown in (
            ("rounds", 1, 3, "rounds 1/3"),
            ("people", 900, 1000, "rounds 1/3 · people 900/1,000"),
            ("people", 1000, 1000, "rounds 1/3 · people 1,000/1,000"),
            ("server", 0, 1, "rounds 1/3 · server 0/1"),
            ("server", 1, 1, "rounds 1/3 · server 1/1"),
            ("people", 100, 1000, "rounds 1/3 · people 100/1,000"),
        ):
            tell(what, done, total)
            assert screen(terminal.getvalue()).partition(" ")[2] == shown


def test_the_line_fits_a_narrow_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    with progress_bar(None) as tell:
        assert tell is not None
        tell("people read for references", 10**6, 10**9)
    assert max(map(len, terminal.getvalue().split("\r"))) == 29


def test_training_and_testing_show_a_bar_by_themselves(terminal: Terminal) -> None:
    run = privrec.train("popularity", DATA)
    assert "rounds 1/1" in terminal.getvalue()
    run.evaluate(references=[])
    assert "people tested" in terminal.getvalue()
    assert screen(terminal.getvalue()) == ""


def test_no_bar_where_it_is_not_wanted(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    run = privrec.train("popularity", DATA, on_progress=lambda what, *_: seen.append(what))
    run.evaluate(references=[], on_progress=lambda what, *_: seen.append(what))
    assert {"rounds", "people tested"} <= set(seen)
    privrec.train("popularity", DATA, progress=False).evaluate(references=[], progress=False)
    assert terminal.getvalue() == ""
    plain = io.StringIO()
    for stream in (plain, None):
        monkeypatch.setattr(bar, "sys", SimpleNamespace(stderr=stream, modules={}))
        privrec.train("popularity", DATA)
    assert plain.getvalue() == ""
    with pytest.raises(SettingsError, match="`on_progress` must be a function; got 3"):
        privrec.train("popularity", DATA, on_progress=3)  # type: ignore[arg-type]


def test_an_interrupted_bar_is_cleared(terminal: Terminal) -> None:
    def interrupted() -> None:
        with progress_bar(None) as tell:
            assert tell is not None
            tell("rounds", 1, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "rounds 1/2" in terminal.getvalue()
    assert screen(terminal.getvalue()) == ""


def test_a_notebook_shows_one_line_and_clears_it(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, shell = io.StringIO(), SimpleNamespace(kernel=object())
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    streams = {"stderr": terminal, "stdout": cell}
    monkeypatch.setattr(bar, "sys", SimpleNamespace(**streams, modules={"IPython": ipython}))
    with progress_bar(None) as tell:
        assert tell is not None
        tell("rounds", 1, 2)
        assert "██████████░░░░░░░░░░ rounds 1/2" in screen(cell.getvalue())
    assert screen(cell.getvalue()) == ""
    assert terminal.getvalue() == ""


def test_ipython_in_a_terminal_has_the_bar_of_a_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(get_ipython=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "IPython", found)
    with progress_bar(None) as tell:
        assert tell is not None
        tell("rounds", 1, 2)
    assert "rounds 1/2" in terminal.getvalue()


def test_a_step_that_begins_again_has_a_new_rate(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 10.0, 100.0, 101.0])
    monkeypatch.setattr(bar, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with progress_bar(None) as tell:
        assert tell is not None
        for done in (1, 9, 1, 3):
            tell("people", done, 10)
    lines = [line.strip() for line in terminal.getvalue().split("\r") if "people" in line]
    assert [line.partition(", ")[2] for line in lines] == [
        "",
        "0.8/s, 0:01 left",
        "",
        "2.0/s, 0:04 left",
    ]


def test_a_rate_that_is_not_known_is_not_shown() -> None:
    assert line_of("rounds", 0, 9, 0.0) == "rounds 0/9"
    assert line_of("compiling", 1, 1, 9.0) == "compiling 1/1"
