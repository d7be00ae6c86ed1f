"""The terms of a federation: how many sums they allow, what they promise, and how they are read."""

from pathlib import Path
from typing import Any

import pytest

import privrec
from loopback import Loopback
from privrec.algorithms.recipes import configure, prepare
from privrec.data.federation import Federation
from privrec.protocol.terms import Member, Terms, bind, promised
from privrec.testing import small
from tiny import DATA


@pytest.fixture(scope="module")
def data() -> Federation:
    return privrec.load(DATA)


def noised(recipe: str, data: Federation, **more: Any) -> Any:
    settings = {**small(recipe), "noise": "secure", "noise_multiplier": 1.0, "epsilon": None}
    return prepare(configure(recipe, data.name, {**settings, **more}), data)


def members(count: int) -> tuple[Member, ...]:
    return tuple(Member(public_key=str(k), people=5) for k in range(count))


@pytest.mark.parametrize(
    ("nodes", "missing", "colluding", "sums"),
    [(4, 0.3, 0.0, 3), (10, 0.3, 0.1, 3), (10, 0.0, 0.0, 2), (20, 0.4, 0.05, 3)],
)
def test_the_number_of_sums_is_by_hand(
    nodes: int, missing: float, colluding: float, sums: int, data: Federation
) -> None:
    terms = Terms(
        name="people",
        settings=noised("dp-privrec-plus", data).config,
        catalogue="",
        members=members(nodes),
        noise_from="nodes",
        missing=missing,
        colluding=colluding,
    )
    # floor(2 (n - c) / (t - c)) with c = 1 and t = n - floor(missing n).
    assert terms.sums == sums
    assert terms.honest == nodes - 1


def test_epsilon_against_the_server_counts_rounds_that_the_budget_does_not_play(
    data: Federation, tmp_path: Path
) -> None:
    more = {"rounds": 40, "epsilon": 5.0, "sampling": "poisson"}
    net = Loopback(noised("dp-privrec-one", data, **more), tmp_path, noise_from="nodes")
    bound = bind(net.terms, data.catalogue)
    epsilon, hostile = promised(net.terms, bound.phases())
    assert bound.phases()[0].rounds == 40
    assert hostile > epsilon > 5.0  # The budget ends the run before its 40 rounds.
