"""Running the command line inside a test."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from click.testing import Result
from typer.testing import CliRunner

from privrec.cli.app import app
from tiny import MODEL, as_options

TINY = {**MODEL, "rounds": 3, "validate_every": 2}
SET = as_options(TINY)
Refused = Callable[..., str]


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def done(*words: str | Path) -> str:
    """Run a command that must succeed without output on stderr; return what it prints."""
    result = invoke(*words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def document(*words: str | Path) -> Any:
    """Return the one JSON document that a command prints."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(done(*words), parse_constant=refuse)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return everything under a folder, hidden or not."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }
