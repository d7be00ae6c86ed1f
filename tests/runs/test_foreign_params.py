"""Parameters of another run are refused: the ledger beside them promises nothing about them."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import privrec
from commands import Refused, done
from privrec.runs import folder as records
from tiny import DATA

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "own": ("dp-privrec-plus", {"epsilon": 4.0}),
    "the same settings": ("dp-privrec-plus", {"epsilon": 4.0}),
    "less noise": ("dp-privrec-plus", {"epsilon": 7.0}),
    "another seed": ("dp-privrec-plus", {"epsilon": 4.0, "seed": 1}),
    "another recipe": ("popularity", {}),
}
READERS = {
    "evaluate": ["evaluate", "run", "--references", "none"],
    "recommend": ["recommend", "run"],
    "export": ["export", "run", "--out", "model.privrec"],
    "lists": ["recommend", "run", "--everybody", "--out", "lists.csv"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("params")
    for name, (recipe, settings) in RUNS.items():
        privrec.train(recipe, DATA, out=place / name, **settings)
    return place


@pytest.mark.parametrize("other", [name for name in RUNS if name != "own"])
def test_params_of_another_run_are_refused(
    runs: Path, scratch: Path, refused: Refused, other: str
) -> None:
    shutil.copytree(runs / "own", scratch / "run")
    shutil.copy(runs / other / "params.safetensors", scratch / "run" / "params.safetensors")
    for words in READERS.values():
        assert "run/params.safetensors is of another run: " in refused(*words)
    assert [path.name for path in scratch.iterdir()] == ["run"]


def test_own_params_are_read_also_after_an_evaluation_and_from_a_copy(
    runs: Path, scratch: Path
) -> None:
    shutil.copytree(runs / "own", scratch / "first")
    privrec.open_run("first").evaluate(references=[], progress=False)
    privrec.open_run("first").save("run")
    for words in READERS.values():
        done(*words)


def test_params_from_before_there_were_marks_are_told_by_their_recipe(
    runs: Path, scratch: Path, refused: Refused
) -> None:
    shutil.copytree(runs / "own", scratch / "run")
    for name in ("own", "another recipe"):
        path = runs / name / "params.safetensors"
        about = records.read_about(path)
        about.pop("run")
        arrays = records.read_arrays(path)
        records.write_arrays(scratch / "run" / "params.safetensors", arrays, about)
        if name == "own":
            done(*READERS["recommend"])
        else:
            assert "its recipe is 'popularity'" in refused(*READERS["recommend"])
