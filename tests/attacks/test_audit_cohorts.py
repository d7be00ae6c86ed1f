"""Cohorts that were not drawn independently are found; those that were are not accused."""

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from privrec.attacks import findings as looks
from privrec.attacks.chances import (
    binomial_squares,
    common_law,
    few_places,
    in_common,
    share_bound,
    tails,
)
from privrec.attacks.findings import drawn_again, drawn_together
from privrec.attacks.trial import ObservedRound
from privrec.privacy.aggregate import gaussian
from privrec.privacy.release import Sampling
from privrec.types import IntArray, Law

Draw = Callable[[Sampling, IntArray, np.random.Generator], IntArray]


def rounds_of(
    draw: Draw, *, law: Law = "poisson", people: int = 1000, cohort: int = 300, rounds: int = 1,
    seed: int = 0,
) -> list[ObservedRound]:  # fmt: skip
    """Return rounds with cohorts drawn like this; of Poisson's users a fifth is not there."""
    users = people if law == "fixed" else people + people // 4
    sampling = Sampling(law=law, users=users, cohort=cohort)
    aggregator = gaussian(sampling, clip_norm=1.0, noise_multiplier=1.0)
    phase: Any = SimpleNamespace(
        name="p", release=aggregator.release, aggregator=aggregator, population=np.arange(people)
    )
    rng = np.random.default_rng(seed)
    unused: Any = None
    return [
        ObservedRound(
            phase=phase, round_index=k, people=draw(sampling, phase.population, rng), noise={},
            told={}, clip_norm=1.0, published=unused, kept_norm=1.0, count_noise=None,
        )
        for k in range(rounds)
    ]  # fmt: skip


def findings(seen: list[ObservedRound]) -> list[str]:
    return [*drawn_together(seen), *drawn_again(seen)]


def right(sampling: Sampling, population: IntArray, rng: np.random.Generator) -> IntArray:
    return sampling.draw(population, rng)


def in_blocks(part_of: Callable[[IntArray], IntArray]) -> Draw:
    """Return a draw that tosses one coin for all people of a part: each has the right chance."""

    def draw(sampling: Sampling, population: IntArray, rng: np.random.Generator) -> IntArray:
        parts = part_of(population)
        return population[(rng.random(len(population)) < sampling.share)[parts]]

    return draw


def shuffled(size: int) -> Callable[[IntArray], IntArray]:
    return lambda population: np.random.default_rng(9).permutation(population) // size


def by_turns() -> Draw:
    """Return a draw that takes the next people in a random order: everybody has a turn."""
    begin = [0]

    def draw(sampling: Sampling, population: IntArray, rng: np.random.Generator) -> IntArray:
        order = np.random.default_rng(8).permutation(population)
        begin[0] += sampling.cohort
        return np.sort(np.roll(order, -begin[0])[: sampling.cohort])

    return draw


def always_some(sampling: Sampling, population: IntArray, rng: np.random.Generator) -> IntArray:
    """Return a right cohort, but the first 30 are drawn always and the next 30 never."""
    others = sampling.draw(population[60:], rng)
    return np.concatenate([population[:30], others])


def of_one_size(sampling: Sampling, population: IntArray, rng: np.random.Generator) -> IntArray:
    count = round(sampling.share * len(population))
    return np.sort(rng.choice(population, count, replace=False))


@pytest.mark.parametrize(
    ("draw", "given", "words"),
    [
        (in_blocks(lambda people: people // 10), {}, "people 1 places apart were drawn together"),
        (in_blocks(lambda people: people // 2), {"people": 9000}, "1 places apart"),
        (in_blocks(lambda people: people % 100), {}, "people 100 places apart"),
        (in_blocks(lambda people: people // 10), {"cohort": 1100}, "were left out together"),
        (in_blocks(shuffled(10)), {"rounds": 12}, "people in a round spread"),
        (in_blocks(shuffled(2)), {"rounds": 16}, "some are drawn together"),
        (always_some, {"rounds": 20}, "rounds of a person spread"),
        (by_turns(), {"rounds": 3}, "rounds in a row have"),
        (by_turns(), {"rounds": 3, "law": "fixed"}, "rounds in a row have"),
        (of_one_size, {"rounds": 30}, "people in a round spread"),
    ],
    ids=[
        "blocks", "pairs", "stride", "left out", "random blocks", "random pairs", "always",
        "turns", "fixed turns", "one size",
    ],
)  # fmt: skip
def test_draws_that_are_not_independent(draw: Draw, given: dict[str, Any], words: str) -> None:
    assert findings(rounds_of(right, **given)) == []
    found = findings(rounds_of(draw, **given))
    assert any(words in one for one in found), found


@pytest.mark.parametrize("law", ["poisson", "fixed"])
@pytest.mark.parametrize("later", [1, 9])
def test_a_cohort_that_is_drawn_again_later(law: Law, later: int) -> None:
    seen = rounds_of(right, law=law, rounds=20)
    assert findings(seen) == []
    wrong = [*seen]
    wrong[4 + later] = rounds_of(lambda *_: seen[4].people, law=law, rounds=5 + later)[-1]
    [said] = drawn_again(wrong)
    assert said.startswith(f"round {4 + later} (p): ")
    assert "people were in round 4 (p) too" in said


@pytest.mark.parametrize("law", ["poisson", "fixed"])
@pytest.mark.parametrize("people", [3, 40, 1000, 25_000])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.75])
def test_right_cohorts_are_not_accused(law: Law, people: int, share: float) -> None:
    cohort = max(round(people * share), 1)
    for rounds in (1, 12):
        assert (
            findings(rounds_of(right, law=law, people=people, cohort=cohort, rounds=rounds)) == []
        )


@pytest.mark.slow
def test_the_chance_of_an_accusation_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a chance of 1/10, each of the six kinds accuses at most about 20 of 200 right runs."""
    monkeypatch.setattr(looks, "_CHANCE_OF_ALL", 0.1)
    accused = [
        finding
        for seed in range(200)
        for finding in findings(rounds_of(right, people=100, cohort=30, rounds=8, seed=seed))
    ]
    kinds = ("places apart", "people in a round", "of a person", "each, and only", "too; ", "a row")
    assert {kind for kind in kinds if sum(kind in one for one in accused) > 40} == set()
    assert len(accused) > 5


# --- the laws -----------------------------------------------------------------------------------


def test_places_that_are_hit_are_counted_exactly() -> None:
    throws = [len(set(throw)) for throw in product(range(4), repeat=6)]
    for hit in range(7):
        assert few_places(6, 4, hit) == pytest.approx(np.mean([one <= hit for one in throws]))
    assert few_places(50, 10.0**300, 49) == pytest.approx(50 * 49 / 2 * 1e-300)
    assert few_places(0, 500, 0) == 1.0


def test_bounds_are_above_the_exact_chances_and_not_far() -> None:
    draw = np.random.default_rng(0)
    for total in (5, 20, 60):
        exact = stats.binom.sf(total - 1, 100, 0.05)
        assert exact <= share_bound(100, 0.05, total) <= max(1000 * exact, 1.0)
    # The number of common members of two parts, five times.
    sums = draw.hypergeometric(10, 90, 20, size=(5, 100_000)).sum(0)
    for total in (16, 20):
        more, _ = tails([(common_law(100, 10, 20), 5)], total)
        assert (sums >= total).mean() <= more < 50 * (sums >= total).mean()
    for total in (5, 3):
        _, fewer = tails([(common_law(100, 10, 20), 5)], total)
        assert (sums <= total).mean() <= fewer < 50 * (sums <= total).mean()
    values, chances = binomial_squares(50, 0.2)
    assert np.exp(chances).sum() == pytest.approx(1)
    assert np.exp(chances) @ values == pytest.approx(1)  # In units of the variance.
    far = in_common(500, 300, np.array([300, 300]), np.array([180, 260]))
    assert far[0] == 1.0
    assert far[1] == pytest.approx(stats.hypergeom.sf(259, 500, 300, 300))
