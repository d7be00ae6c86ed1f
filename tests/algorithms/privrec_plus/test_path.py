"""What a dry run says of the way that a run under noise goes."""

import re
from typing import Any

import pytest

from privrec.algorithms.privrec_plus.path import whole_noise
from privrec.algorithms.privrec_plus.public import spending_of
from privrec.algorithms.privrec_plus.recipe import plus_path
from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import configure, prepare
from privrec.data.sources import load
from tiny import without_features

MANY = "synthetic:users=4000,items=40,longest=20"
MIDDLE = "synthetic:users=6000,items=2500,longest=20"
FEW = "synthetic:users=300,items=40,longest=20"


def planned(data: str, *, features: bool = True, **settings: Any) -> Plan:
    found = load(data) if features else without_features(load(data))
    return prepare(configure("dp-privrec-plus", data, {"delta": 1e-4, **settings}), found)


def said(plan: Plan) -> list[str]:
    return list(plus_path(plan.task, plan.stages()))  # type: ignore[arg-type]


def numbers_after(word: str, text: str) -> list[int]:
    return [int(found.replace(",", "")) for found in re.findall(rf"{word} (\d[\d,]*)", text)]


def test_the_noise_of_all_releases_is_that_of_one() -> None:
    plan = planned(MANY, noise_multiplier=3.0)
    assert whole_noise(plan.stages()) == pytest.approx(3.0)
    assert whole_noise(planned(FEW, noise_multiplier=3.0).stages()) == pytest.approx(3.0)


def test_a_run_that_asks_for_no_noise_has_a_way_too() -> None:
    plan = planned(FEW, noise_multiplier=0.0, epsilon=None)
    assert whole_noise(plan.stages()) == 0
    _, moments = said(plan)
    assert moments.startswith("moments are asked for in 39 directions: 240 people are enough")


@pytest.mark.parametrize(
    ("noise", "asked", "begins"),
    [
        (7.0, True, "moments are asked for"),
        (10.0, True, "the last release counts popularity again if"),
        (14.0, False, "popularity and alignments alone"),
    ],
)
def test_the_number_that_is_said_changes_the_way(noise: float, asked: bool, begins: str) -> None:
    """2,500 items: 600 people for one unit of noise, or 400 where features say little."""
    plan = planned(MIDDLE, noise_multiplier=noise)
    features, moments = said(plan)
    assert features.startswith("public features of items choose the basis (")
    assert moments.startswith(begins)
    assert moments.endswith("those of the frequent items instead") == (noise == 7.0)
    assert (len(plan.stages()) == 3) == asked
    limits = {7.0: [4200], 10.0: [6000, 4000], 14.0: [5600]}[noise]
    assert numbers_after("about", moments) == limits
    for limit in limits:
        fewer, enough = (spending_of(n, noise, 2500) for n in (int(0.96 * limit), limit))
        assert (fewer.moments > 0, fewer.least_trust) != (enough.moments > 0, enough.least_trust)


@pytest.mark.slow
def test_why_features_choose_nothing() -> None:
    [line] = said(planned(FEW, features=False))
    assert line == (
        "features of items choose nothing: items have no public features that say which of them"
        " are alike"
    )
    instead = "(they are with `history` = 'closed-form')"
    [line] = said(planned(FEW, history_items=30))
    assert line.endswith(f"in a subspace, for more than 30 items, they are not used {instead}")
    [line] = said(planned(FEW, history="subspace"))
    assert line.endswith(f"in a subspace they are not used {instead}")
    [line] = said(planned(FEW, rounds=2, cohort=8))
    assert line.endswith("with rounds on top they are not used")


def test_in_a_large_catalogue_features_choose_if_asked_and_the_limits_are_said() -> None:
    features, _, large = said(planned(FEW, history_items=30, history="closed-form"))
    assert features.startswith("public features of items choose the basis (")
    assert large == (
        "40 items are more than 30 (`history_items`): the basis is over the 40 most popular ones,"
        " the others get vectors from their features, and no vector is longer than 256"
    )


def test_without_noise_nothing_is_said() -> None:
    plan = prepare(configure("privrec-plus", FEW, {}), load(FEW))
    assert said(plan) == []
