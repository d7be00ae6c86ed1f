"""Every command's help fits a screen and has examples that work; shells complete names."""

import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from commands import document, done
from privrec.algorithms.recipes import RECIPES
from privrec.cli import options as completion
from privrec.cli.app import app
from privrec.data.published import PUBLISHED
from privrec.data.sources import BUILT_IN

ROOT = typer.main.get_command(app)
LINES = 50
"""What a terminal shows at once on a usual screen. One of 24 lines shows about half of the commands
whole: two lines for an option and the frames take more."""


def commands(
    command: click.Command, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))


ALL = [pytest.param(*pair, id=" ".join(pair[0]) or "privrec") for pair in commands(ROOT)]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(("words", "command"), ALL)
def test_help_fits_a_screen_and_ends_with_examples(
    words: tuple[str, ...], command: click.Command
) -> None:
    lines = done(*words, "--help").splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    shown = [line.strip() for line in lines]
    found = examples_of(command)
    assert found
    assert [line for line in found if line not in shown] == []
    for line in found:
        parses(line)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(("words", "command"), ALL)
def test_a_paragraph_of_help_is_wrapped_once(
    words: tuple[str, ...], command: click.Command
) -> None:
    lines = [line.strip() for line in done(*words, "--help").partition("╭")[0].splitlines()]
    for line, after in itertools.pairwise(lines):
        assert not line or not after or len(f" {line} {after.split()[0]} ") > 80, line


def examples_of(command: click.Command) -> list[str]:
    text = command.epilog or ""
    assert text.startswith(("Example", "First steps:"))
    return [line for line in text.split("\n\n") if line.startswith("privrec ")]


def parses(line: str) -> None:
    """Raise unless a command of that name takes these options and arguments."""
    _, *words = shlex.split(line)
    command: click.Command = ROOT
    context = click.Context(ROOT, info_name="privrec")
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None, line
        command, context = found, click.Context(found, parent=context)
    # Without callbacks and without running anything.
    command.make_context(command.name, words, parent=context, resilient_parsing=False)


def test_an_example_that_does_not_exist_would_be_found() -> None:
    for line in ("privrec trian x", "privrec train x --datta y", "privrec train", "privrec data x"):
        with pytest.raises((AssertionError, click.UsageError)):
            parses(line)


# --- what a shell completes ------------------------------------------------------------------


def test_the_names_for_the_shell_are_those_of_recipes_and_data() -> None:
    assert list(RECIPES) == list(completion.RECIPES)
    assert list(BUILT_IN) == list(completion.DATA_SETS)


def offered(line: str, folder: Path) -> tuple[list[str], str]:
    """Return what bash is given for a line that ends at the TAB, and what was said on stderr."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    code = (
        "import sys; sys.argv = ['privrec'];"
        "import atexit; atexit.register(lambda: sys.stderr.write("
        "str(sorted({'jax', 'polars', 'numpy', 'pydantic'} & set(sys.modules)))));"
        "from privrec.cli.app import app; app(prog_name='privrec')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={
            **os.environ,
            "_PRIVREC_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout.split(), ran.stderr


def test_bash_is_offered_recipes_without_importing_what_trains(tmp_path: Path) -> None:
    found, heavy = offered("privrec train dp-privrec-", tmp_path)
    assert found == ["dp-privrec-plus", "dp-privrec-one"]
    assert heavy == "[]"


def test_data_sets_are_offered() -> None:
    assert completion.offer_data("f") == ["frappe"]
    assert completion.offer_published("") == list(PUBLISHED)
    assert completion.offer_recipe_lists("ease,pop") == ["ease,popularity"]


def test_bash_completes_folders_itself(tmp_path: Path) -> None:
    assert offered("privrec evaluate ru", tmp_path)[0] == []


# --- what a recipe's keys mean ---------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_every_key_of_every_recipe_is_explained(name: str) -> None:
    found = document("recipes", name, "--json")
    keys = found.pop("keys")
    assert {one["key"]: one["value"] for one in keys} == found
    for one in keys:
        assert one["about"].endswith("."), one
        assert one["type"].split(" or ")[0] in {
            *("text", "number", "whole number", "true", "list of whole numbers"),
        }, one
    said = done("recipes", name)
    for one in keys[2:]:
        assert f"\n{one['key']} = " in said
        assert f"\n    {one['about']}\n" in said


def test_a_key_says_its_type_its_limits_and_its_choices() -> None:
    keys = {one["key"]: one for one in document("recipes", "dp-privrec", "--json")["keys"]}
    assert keys["rounds"]["allowed"] == ">= 0"
    assert keys["delta"]["allowed"] == "> 0, < 1"
    assert keys["activation"]["allowed"] == ["relu", "sigmoid", "tanh"]
    assert keys["protocol"]["allowed"] == ["auto", "halves", "leave-last", "files"]
    assert (keys["epsilon"]["type"], keys["epsilon"]["allowed"]) == ("number or not set", "> 0")
    assert keys["hidden"]["type"] == "list of whole numbers"
    said = done("recipes", "dp-privrec").splitlines()
    assert "activation = relu  (relu | sigmoid | tanh)" in said
    assert "delta = 1e-06  (number, > 0, < 1)" in said
