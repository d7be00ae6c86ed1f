"""`privrec evaluate` with the references asked for, and on a sample of the test people."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from commands import Refused, document, done
from pages import Page
from privrec.errors import SettingsError
from privrec.evaluation.ranking import measure
from privrec.runs.evaluate import _drawn, validate
from privrec.runs.folder import RunFolder
from privrec.runs.journal import load_params

DATA = "synthetic:users=400,items=40,longest=20"


@pytest.fixture(scope="module")
def trained_popularity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("some") / "run"
    return privrec.train("popularity", DATA, out=out).folder.path


def simulation(run: Path) -> dict[str, str]:
    """Return the evaluations and reports in a run folder."""
    places = (run / "simulation").iterdir()
    return {p.name: p.read_text() for p in places if p.name.startswith(("evaluation", "report"))}


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
    with pytest.raises(SettingsError, match="`references` must be a list of names; got 'ease'"):
        privrec.open_run(run).evaluate(references="ease")


def test_what_does_not_fit_is_named(trained_popularity: Path, refused: Refused) -> None:
    run = trained_popularity
    # A matrix of 40 by 40 numbers takes 6,400 bytes: there is room for one of two.
    found = document("evaluate", run, "--memory", "0.000007", "--json")
    assert list(found["references"]) == ["popularity", "own-items", "item-knn"]
    assert list(found["references_left_out"]) == ["ease"]
    said = done("evaluate", run, "--memory", "0.000007")
    assert "the reference ease was left out: it needs 0.0 GB, the limit is 7e-06 GB" in said
    assert "the reference ease was left out" in simulation(run)["report.html"]
    line = refused("evaluate", run, "--memory", "0.000001", "--references", "popularity,ease")
    assert "the reference 'ease' needs 0.0 GB, the limit is 1e-06 GB" in line
    assert "did you mean 'ease'" in refused("evaluate", run, "--references", "eese")
    assert "`memory_gb` must be > 0; got -1" in refused("evaluate", run, "--memory", "-1")


def test_a_sample_has_intervals_and_replaces_nothing(
    trained_popularity: Path, refused: Refused
) -> None:
    run = trained_popularity
    whole = document("evaluate", run, "--json")
    assert "sampled" not in whole
    before = simulation(run)
    assert before.keys() == {"evaluation.json", "report.html"}
    asked = whole["users"]["test"] + whole["users"]["skipped"]
    found = document("evaluate", run, "--people", "30", "--json")
    assert found["sampled"] == {"people": 30, "of": asked}
    assert found["users"]["test"] + found["users"]["skipped"] == 30
    for row in (found, found["references"]["ease"]):
        for k, (low, high) in row["interval"].items():
            assert 0 <= low <= row["hits"][k] <= high <= 1
            assert high - low > 0.001
    after = simulation(run)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"evaluation-people-30.json", "report-people-30.html"}
    assert json.loads(after["evaluation-people-30.json"]) == found
    low, high = found["interval"]["20"]
    shown = f"{found['hits']['20']:.3f} ({low:.3f}–{high:.3f})"
    assert shown in Page(after["report-people-30.html"]).cells
    said = done("evaluate", run, "--people", "30")
    assert f"A sample of 30 of {asked} test people was drawn" in said
    assert "report-people-30.html" in said.replace("\n", "")
    assert privrec.open_run(run).evaluate(people=30).as_json() == found
    # All of them, and more than there are.
    everybody: dict[str, Any] = document("evaluate", run, "--people", "5000", "--json")
    assert everybody["sampled"] == {"people": asked, "of": asked}
    assert everybody["hits"] == whole["hits"]
    assert "`people` must be >= 1; got 0" in refused("evaluate", run, "--people", "0")


def test_a_sample_is_drawn_by_the_persons_id(trained_popularity: Path) -> None:
    prepared = privrec.open_run(trained_popularity).prepared
    small, large = _drawn(prepared, 10), _drawn(prepared, 40)
    assert (len(small), len(large)) == (10, 40)
    assert set(small) < set(large) < set(prepared.task.split.test)
    assert small.tolist() != prepared.task.split.test[:10].tolist()
    other = privrec.train("popularity", DATA, seed=1).prepared
    both = np.intersect1d(prepared.task.split.test, other.task.split.test)
    # Another seed draws others, also among those who are tested under both.
    assert set(_drawn(prepared, 40)) & set(both) != set(_drawn(other, 40)) & set(both)


def test_a_sample_by_another_protocol_has_both_in_its_name(copy: RunFolder) -> None:
    run = privrec.open_run(copy.path)
    run.evaluate(protocol="leave-last", people=5, references=[])
    privrec.write_report(run, protocol="leave-last", people=5)
    assert simulation(copy.path).keys() == {
        "evaluation-leave-last-people-5.json",
        "report-leave-last-people-5.html",
    }


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
