"""The first federation that a newcomer starts: it learns something, and says how sure that is."""

import inspect
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import privrec
from blocks import blocks_of, commands_in
from privrec.cli import federate

KS = ("@5", "@10", "@20", "@30")


def shown_commands() -> list[str]:
    """Return every `privrec federate up` in the help and on the page about federations."""
    helps = [federate.federate_app.info.epilog, *(c.epilog for c in commands())]
    lines = [line for text in helps for line in str(text).split("\n\n")]
    lines += [c for block in blocks_of("docs/federation.md") for c in commands_in(block.text)]
    found = [line for line in lines if line.startswith("privrec federate up")]
    return sorted({*found, "privrec federate up"})


def commands() -> list[Any]:
    return federate.federate_app.registered_commands


@cache
def gain(recipe: str, data: str, users: int | None, epsilon: float | None) -> dict[str, float]:
    """Return by how much a run is above popularity at 20, as `federate up` would evaluate it.

    A federation has the result of the simulator up to its noise (`test_same_result.py`).
    """
    more: dict[str, Any] = {} if epsilon is None else {"epsilon": epsilon}
    assert data == "synthetic"
    made = data if users is None else f"synthetic:users={users}"
    run = privrec.train(recipe, made, progress=False, **more)
    found: dict[str, float] = run.evaluate(progress=False).as_json()["differences"]["popularity"][
        "20"
    ]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("command", shown_commands())
def test_every_first_try_that_is_shown_learns_more_than_popularity(command: str) -> None:
    given = shlex.split(command)[3:]
    usual = {name: p.default for name, p in inspect.signature(federate.up).parameters.items()}

    def value(name: str) -> Any:
        return given[given.index(f"--{name}") + 1] if f"--{name}" in given else usual[name]

    users, epsilon = value("users"), value("epsilon")
    found = gain(
        value("recipe") or federate.RECIPE,
        value("data"),
        None if users is None else int(users),
        None if epsilon is None else float(epsilon),
    )
    # Far above what a test person more or less, or other noise, changes.
    assert found["low"] > 0.05, found


def test_every_figure_has_its_interval(
    evaluated: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run, found = evaluated
    federate.show_result(run, Path("federation"), False)
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if re.search(r"\d\.\d{3}", line)]
    names = {found["recipe"], *found["references"]}
    table = [line for line in rows if line.startswith("│")]
    assert {line.strip("│ ").split()[0] for line in table} == names
    # The table of hits comes first, then what is beyond hits.
    for line in table[: len(names)]:
        assert len(re.findall(r"\d\.\d{3}[0-9]* ± \d\.\d{3}", line)) == len(KS), line
    assert re.search(r"│ popularity +│ [+-]\d\.\d{3} ± \d", shown)
    assert f"{found['users']['test']} test people" in shown
