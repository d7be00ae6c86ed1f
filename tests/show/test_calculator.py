"""The calculator: the same figures as the command, and bounded work for whatever is asked."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from commands import document
from privrec.errors import SettingsError
from privrec.privacy import ledger
from privrec.runs.loop import train
from privrec.show import calculator
from privrec.show.calculator import MOST_ROUNDS, question_of
from privrec.show.server import site_of
from served import Served, served
from tiny import DATA

ASKED = {"users": "4800", "cohort": "30", "rounds": "100"}


@pytest.fixture(scope="module")
def here() -> Iterator[Served]:
    with served(site_of(None)) as found:
        yield found


def words(asked: dict[str, str]) -> list[str]:
    return [word for key, value in asked.items() for word in (f"--{key.replace('_', '-')}", value)]


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("epsilon", {"noise_multiplier": "1"}),
        ("epsilon", {"noise_multiplier": "0.9", "sampling": "fixed", "delta": "1e-5"}),
        ("epsilon", {"noise_multiplier": "20", "mechanism": "laplace"}),
        ("calibrate", {"epsilon": "2"}),
    ],
)
def test_it_answers_as_the_command_does(here: Served, verb: str, more: dict[str, str]) -> None:
    asked = {**ASKED, **more}
    assert here.document("/calculate", **asked) == document(
        "privacy", verb, *words(asked), "--json"
    )


TWO = "users=1600,cohort=1600,noise_multiplier=5;users=1600,cohort=1600,noise_multiplier=1.25"


def test_a_list_of_releases_is_answered_as_by_the_command(here: Served) -> None:
    words = [word for text in TWO.split(";") for word in ("--release", text)]
    expected = document("privacy", "epsilon", *words, "--delta", "1e-5", "--json")
    assert here.document("/calculate", releases=TWO, delta="1e-5") == expected
    shown = here.document("/calculated", releases=TWO, delta="1e-5")
    assert shown["document"] == expected
    assert shown["strength"] == "moderate"
    seeded = here.document("/calculated", releases=TWO, delta="1e-5", seeded="1")
    assert (seeded["document"]["epsilon"], seeded["strength"]) == (None, "none")
    assert seeded["document"]["epsilon_of_mechanism"] == expected["epsilon"]


@pytest.mark.parametrize(
    ("releases", "said"),
    [
        ("", "give at least one release"),
        (";".join([TWO] * 9), "at most 16 kinds of releases here"),
        ("users=10,cohort=5", "`noise_multiplier` is missing"),
        (f"users={10**12},cohort=5,noise_multiplier=1", "`users` must be <= 10,000,000,000 here"),
        ("users=99,cohort=5,noise_multiplier=1,rounds=90000;" * 2, "`rounds` must be <= 100,000"),
        (
            "users=99,cohort=5,noise_multiplier=1,rounds=10001,sampling=fixed",
            "`rounds` must be <= 10,000 here",
        ),
        ("users=99,cohort=99,noise_multiplier=0.001", "`noise_multiplier` is too small"),
    ],
)
def test_a_list_that_is_none_is_refused_before_anything_is_computed(
    here: Served, releases: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(*_: object) -> None:
        raise AssertionError("it was computed")

    monkeypatch.setattr(calculator, "epsilon_document", compute)
    status, _, body = here.ask("/calculate", releases=releases)
    assert status == 400
    assert said in json.loads(body)["error"]


def test_the_ledger_of_a_watched_run_can_be_loaded(tmp_path: Path) -> None:
    train("dp-privrec-plus", DATA, out=tmp_path / "run", epsilon=4.0, delta=1e-3, rounds=0)
    with served(site_of(tmp_path / "run")) as here:
        found = here.document("/releases")
        assert (found["seeded"], len(found["releases"])) == (False, 2)
        texts = [",".join(f"{k}={v}" for k, v in one.items()) for one in found["releases"]]
        together = here.document("/calculate", releases=";".join(texts), delta="1e-3")
        spent = document("privacy", "spent", tmp_path / "run", "--delta", "1e-3", "--json")
        assert together["epsilon"] == spent["together"]["epsilon"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"rounds": "1e9"}, "rounds"),
        ({"rounds": str(10**9)}, "rounds"),
        ({"rounds": "0"}, "rounds"),
        ({"rounds": "-5"}, "rounds"),
        ({"rounds": ""}, "rounds"),
        ({"rounds": 500 * "9"}, "rounds"),
        ({"users": "1e30"}, "users"),
        ({"users": str(10**30)}, "users"),
        ({"users": "29"}, "cohort"),
        ({"noise_multiplier": "nan"}, "noise_multiplier"),
        ({"noise_multiplier": "inf"}, "noise_multiplier"),
        ({"noise_multiplier": "-1"}, "noise_multiplier"),
        ({"noise_multiplier": "1e-9"}, "noise_multiplier"),
        ({"noise_multiplier": "0.05", "cohort": "4800"}, "noise_multiplier"),
        ({"noise_multiplier": "1e308"}, "noise_multiplier"),
        ({"noise_multiplier": "1e-200"}, "noise_multiplier"),
        ({"noise_multiplier": "1e-200", "mechanism": "laplace"}, "noise_multiplier"),
        ({"noise_multiplier": ""}, "noise_multiplier"),
        ({"epsilon": "1"}, "noise_multiplier"),
        ({"noise_multiplier": "", "epsilon": "nan"}, "epsilon"),
        ({"noise_multiplier": "", "epsilon": "1e9"}, "epsilon"),
        ({"noise_multiplier": "", "epsilon": "101"}, "epsilon"),
        ({"rounds": "10001", "sampling": "fixed"}, "rounds"),
        ({"noise_multiplier": "", "epsilon": "0"}, "epsilon"),
        ({"delta": "1"}, "delta"),
        ({"delta": "0.1"}, "delta"),
        ({"delta": "nan"}, "delta"),
        ({"sampling": "<script>"}, "sampling"),
        ({"mechanism": "none"}, "mechanism"),
        ({"ruonds": "3"}, None),
    ],
)
def test_wrong_input_gets_one_line_beside_its_field_before_anything_is_computed(
    here: Served, wrong: dict[str, str], field: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(*_: object) -> None:
        raise AssertionError("it was computed")

    monkeypatch.setattr(calculator, "document_of", compute)
    asked = {**ASKED, "noise_multiplier": "1", **wrong}
    status, _, body = here.ask("/calculate", **asked)
    found = json.loads(body)
    assert (status, found["field"]) == (400, field)
    assert "\n" not in found["error"]
    assert found == here.document("/calculated", **asked)


def test_the_limits_themselves_are_accepted() -> None:
    asked = {"users": str(10**10), "cohort": "1", "rounds": str(MOST_ROUNDS)}
    assert question_of({**asked, "noise_multiplier": "1", "delta": "1e-12"}).rounds == MOST_ROUNDS
    with pytest.raises(SettingsError, match="`rounds` must be a whole number from 1 to 100,000"):
        question_of({**asked, "rounds": str(MOST_ROUNDS + 1), "noise_multiplier": "1"})


@pytest.mark.slow
def test_an_answer_leaves_nothing_large_behind(here: Served) -> None:
    here.document("/calculate", **ASKED, noise_multiplier="1.1")
    here.document("/curves", **ASKED, noise_multiplier="1.1")
    assert ledger._composed_loss.cache_info().currsize == 0
    assert ledger._loss.cache_info().currsize == 0


def test_curves_pass_through_the_answer_and_go_the_right_way(here: Served) -> None:
    asked = {**ASKED, "noise_multiplier": "1"}
    epsilon = here.document("/calculate", **asked)["epsilon"]
    rounds, noise = charts_points(here.document("/curves", **asked)["charts"])
    assert rounds == sorted(rounds)
    assert [e for _, e in rounds] == sorted(e for _, e in rounds)
    assert dict(rounds)[100.0] == pytest.approx(epsilon, rel=1e-3)
    # More noise, less ε.
    assert [z for _, z in noise] == sorted((z for _, z in noise), reverse=True)
    assert min(abs(e / epsilon - 1) + abs(z - 1) for e, z in noise) < 1e-3


def charts_points(text: str) -> list[list[tuple[float, float]]]:
    import re

    charts = text.split("<figure>")[1:]
    pattern = r'data-x="([^"]+)" data-y="([^"]+)"'
    return [[(float(x), float(y)) for x, y in re.findall(pattern, one)] for one in charts]


def test_a_curve_that_takes_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    question = question_of({**ASKED, "noise_multiplier": "1.5"})
    monkeypatch.setattr(calculator, "_CURVE_SECONDS", -1.0)
    calculator.curves_of.cache_clear()
    assert calculator.curves_of(question) == ""
    calculator.curves_of.cache_clear()


def test_the_calculator_is_alone_where_no_run_is_watched(here: Served) -> None:
    assert "What does training cost" in here.ask("/")[2]
    assert here.ask("/status")[0] == 404
    assert urlencode({"token": here.site.token}) not in here.ask("/")[2]
