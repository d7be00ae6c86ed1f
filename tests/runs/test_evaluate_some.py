"""`privrec evaluate` with the references asked for."""

from pathlib import Path
from typing import Any

import pytest

import privrec
from commands import Refused, document, done
from privrec.errors import SettingsError
from privrec.evaluation.ranking import measure
from privrec.runs.evaluate import validate
from privrec.runs.journal import load_params

DATA = "synthetic:users=400,items=40,longest=20"


@pytest.fixture(scope="module")
def trained_popularity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("some") / "run"
    return privrec.train("popularity", DATA, out=out).folder.path


def test_only_the_references_asked_for(trained_popularity: Path) -> None:
    run = trained_popularity
    everything = document("evaluate", run, "--json")
    assert list(everything["references"]) == ["popularity", "own-items", "item-knn", "ease"]
    assert "references_left_out" not in everything
    assert document("evaluate", run, "--references", "all", "--json") == everything
    some = document("evaluate", run, "--references", "ease,popularity", "--json")
    assert some["references"] == {k: everything["references"][k] for k in ("popularity", "ease")}
    assert document("evaluate", run, "--references", "none", "--json")["references"] == {}
    assert some["hits"] == everything["hits"]
    found = privrec.open_run(run).evaluate(references=["ease"])
    assert list(found.references) == ["ease"]
    with pytest.raises(SettingsError, match="`references` must be a valid list; got 'ease'"):
        privrec.open_run(run).evaluate(references="ease")


def test_what_does_not_fit_is_named(trained_popularity: Path, refused: Refused) -> None:
    run = trained_popularity
    # A matrix of 40 by 40 numbers takes 6,400 bytes: there is room for one of two.
    found = document("evaluate", run, "--memory", "0.000007", "--json")
    assert list(found["references"]) == ["popularity", "own-items", "item-knn"]
    assert list(found["references_left_out"]) == ["ease"]
    said = done("evaluate", run, "--memory", "0.000007")
    assert "the reference ease was left out: it needs 0.0 GB, the limit is 7e-06 GB" in said
    assert "the reference ease was left out" in (run / "simulation" / "report.html").read_text()
    line = refused("evaluate", run, "--memory", "0.000001", "--references", "popularity,ease")
    assert "the reference 'ease' needs 0.0 GB, the limit is 1e-06 GB" in line
    assert "did you mean 'ease'" in refused("evaluate", run, "--references", "eese")
    assert "`memory_gb` must be > 0; got -1" in refused("evaluate", run, "--memory", "-1")


def test_a_look_between_rounds_is_at_the_first_validation_people_alone(
    trained_popularity: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = privrec.open_run(trained_popularity)
    people, asked = run.prepared.task.split.validation, []

    def seen(view: Any, positions: Any, *rest: Any, **how: Any) -> Any:
        asked.append(positions.tolist())
        return measure(view, positions, *rest, **how)

    monkeypatch.setattr("privrec.runs.evaluate.measure", seen)
    params = load_params(run.folder)
    validate(run.prepared, params)
    validate(run.prepared, params, 5)
    assert len(people) > 5
    assert asked == [people.tolist(), people[:5].tolist()]
