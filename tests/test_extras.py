"""A command that needs an extra says so before it reads data, and how to install it."""

import sys
import tomllib
from pathlib import Path
from typing import NoReturn

import pytest

from commands import Refused
from tiny import DATA

NEEDS = [
    ("attack", "scikit-learn", ["attack", "--data", DATA, "--recipes", "privrec"]),
    ("attack", "jax-privacy", ["audit", "dp-privrec-plus", "--data", DATA]),
    ("paper", "autodp", ["privacy", "paper-tables"]),
]
MODULES = {"scikit-learn": "sklearn", "jax-privacy": "jax_privacy"}
"""What is imported, where it has another name than what is installed."""


@pytest.mark.parametrize(
    ("extra", "library", "words"), NEEDS, ids=[" ".join(words[:2]) for *_, words in NEEDS]
)
def test_what_is_missing_is_said_before_any_work(
    extra: str, library: str, words: list[str], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> NoReturn:
        raise AssertionError("data was read")

    monkeypatch.setattr("privrec.data.sources.synthetic", read)
    monkeypatch.setitem(sys.modules, MODULES.get(library, library), None)
    line = refused(*words)
    assert f"needs {library}: pip install 'privrec[{extra}]'" in line


def test_each_extra_brings_what_its_commands_need() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    for extra, library, _ in NEEDS:
        found = {line.split(">")[0] for line in extras[extra]}
        assert library in found
    # Flower has strict requirements of its own, so its tests have another environment.
    usual = {line for name in extras.keys() - {"dev", "flower"} for line in extras[name]}
    assert usual <= set(extras["dev"])
