"""A value in `evaluation.json` that is missing or of another kind is one line, wherever it is."""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import privrec
from privrec.runs.api import open_run
from tiny import DATA

GONE = object()
VALUES: tuple[Any, ...] = (GONE, None, "x", [], {})
Place = tuple[str | int, ...]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two evaluated runs on the same people."""
    place = tmp_path_factory.mktemp("spoiled")
    for name in ("own", "other"):
        recipe = {"own": "popularity", "other": "item-knn"}[name]
        privrec.train(recipe, DATA, out=place / name).evaluate(references=["ease"])
    return place


def places(found: Any, above: Place = ()) -> Iterator[Place]:
    """Return the place of each value in a document; of lists and of figures by k, one each."""
    if isinstance(found, dict):
        keys: list[Any] = ["20"] if "20" in found else list(found)
    else:
        keys = [0] if isinstance(found, list) and found else []
    for key in keys:
        yield (*above, key)
        yield from places(found[key], (*above, key))


def spoiled(found: Any, place: Place, value: Any) -> Any:
    """Return a copy of a document with another value at a place."""
    whole = copy.deepcopy(found)
    inner = whole
    for key in place[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return whole


@pytest.mark.slow
def test_no_value_of_an_evaluation_ends_in_a_traceback(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "own", tmp_path / "run")
    run, file = open_run(tmp_path / "run"), tmp_path / "run" / "simulation" / "evaluation.json"
    found, refused = json.loads(file.read_text()), 0
    for place in places(found):
        for value in VALUES:
            file.write_text(json.dumps(spoiled(found, place, value)))
            for read in (
                lambda: str(privrec.compare([tmp_path / "run"])),
                lambda: privrec.write_report(run),
            ):
                said = ""
                try:
                    read()
                except privrec.PrivrecError as error:
                    said = str(error)
                except Exception as error:
                    raise AssertionError(f"{value!r} at {place}") from error
                assert "\n" not in said, (place, value)
                refused += bool(said)
    assert refused > 100


def test_figures_of_each_person_are_those_of_the_evaluation(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "own", tmp_path / "run")
    file = "simulation/tested.safetensors"
    assert privrec.compare([tmp_path / "run", runs / "other"]).against
    shutil.copy(runs / "other" / file, tmp_path / "run" / file)
    with pytest.raises(
        privrec.PrivrecError, match=r"tested\.safetensors is not of evaluation\.json: eval"
    ):
        privrec.compare([tmp_path / "run", runs / "other"])
