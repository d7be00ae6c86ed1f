"""What a dry run says of the way that a run under noise goes."""

import re
from typing import Any

import pytest

from privrec.algorithms.privrec_plus import path
from privrec.algorithms.privrec_plus.path import people_for_moments, whole_noise
from privrec.algorithms.privrec_plus.public import Spending, spending_of
from privrec.algorithms.privrec_plus.recipe import plus_path
from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import configure, prepare
from privrec.data.sources import load
from tiny import without_features

MANY = "synthetic:users=4000,items=40,longest=20"
FEW = "synthetic:users=300,items=40,longest=20"


def planned(data: str, *, features: bool = True, **settings: Any) -> Plan:
    found = load(data) if features else without_features(load(data))
    return prepare(configure("dp-privrec-plus", data, {"delta": 1e-4, **settings}), found)


def said(plan: Plan) -> list[str]:
    return list(plus_path(plan.task, plan.stages()))  # type: ignore[arg-type]


def number_after(word: str, text: str) -> int:
    [found] = re.findall(rf"{word} ([\d,]+)", text)
    return int(found.replace(",", ""))


def test_the_noise_of_all_releases_is_that_of_one() -> None:
    plan = planned(MANY, noise_multiplier=3.0)
    assert whole_noise(plan.stages()) == pytest.approx(3.0)
    assert whole_noise(planned(FEW, noise_multiplier=3.0).stages()) == pytest.approx(3.0)


@pytest.mark.parametrize(("data", "asked"), [(MANY, True), (FEW, False)])
def test_the_number_that_is_said_changes_the_way(data: str, asked: bool) -> None:
    plan = planned(data, noise_multiplier=1.0)
    features, moments = said(plan)
    assert features.startswith("public features of items choose the basis (")
    assert moments.startswith(
        "moments are asked for" if asked else "popularity and alignments alone"
    )
    assert (len(plan.stages()) == 3) == asked
    enough = number_after("from about" if not asked else "fewer than about", moments)
    # Rounded up to two digits: a tenth fewer are too few.
    assert spending_of(enough, 1.0, 40).moments > 0
    assert spending_of(int(0.9 * enough), 1.0, 40).moments == 0


def test_people_for_moments_is_where_the_rule_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(limit: float) -> Any:
        return lambda people, noise, items: Spending(0.5, 0.1, 0.4 * (people >= limit * noise), 9)

    monkeypatch.setattr(path, "spending_of", rule(614))
    assert people_for_moments(2.0, 40) == 1300  # 1,228, to two digits.
    monkeypatch.setattr(path, "spending_of", rule(7))
    assert people_for_moments(1.0, 40) == 7
    monkeypatch.setattr(path, "spending_of", rule(1e12))
    assert people_for_moments(1.0, 40) is None


def test_why_features_choose_nothing() -> None:
    [line] = said(planned(FEW, features=False))
    assert line == (
        "features of items choose nothing: items have no public features that tell them apart"
    )
    [line] = said(planned(FEW, history_items=30))
    assert line.endswith("in a subspace, for more than 30 items, they are not used")
    [line] = said(planned(FEW, history="subspace"))
    assert line.endswith("in a subspace they are not used")
    [line] = said(planned(FEW, rounds=2, cohort=8))
    assert line.endswith("with rounds on top they are not used")


def test_without_noise_nothing_is_said() -> None:
    plan = prepare(configure("privrec-plus", FEW, {}), load(FEW))
    assert said(plan) == []
