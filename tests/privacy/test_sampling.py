"""Sampling of cohorts: probabilities, limits, and the adjacency that is reported."""

import math

import numpy as np
import pytest
from scipy import stats

from privrec.errors import SettingsError
from privrec.privacy.release import Sampling
from privrec.seeds import rng
from privrec.types import Law

USERS, COHORT, ROUNDS = 20, 4, 5000
PEOPLE = np.arange(10, 10 + USERS)


def drawn(law: Law) -> list[np.ndarray]:
    sampling = Sampling(law=law, users=USERS, cohort=COHORT)
    return [sampling.draw(PEOPLE, rng(0, r, "cohort")) for r in range(ROUNDS)]


@pytest.mark.parametrize("law", ["poisson", "fixed"])
def test_everybody_is_drawn_equally_often_and_at_most_once(law: Law) -> None:
    counts = np.zeros(10 + USERS)
    for cohort in drawn(law):
        assert len(set(cohort.tolist())) == len(cohort)
        counts[cohort] += 1
    assert counts[:10].sum() == 0
    # Each count is binomial(5000, 0.2): within five standard deviations of 1000.
    assert np.abs(counts[10:] - 1000).max() < 5 * math.sqrt(5000 * 0.2 * 0.8)


def test_a_fixed_cohort_has_its_size_and_a_poisson_one_is_binomial() -> None:
    assert {len(cohort) for cohort in drawn("fixed")} == {COHORT}
    sizes = np.bincount([len(cohort) for cohort in drawn("poisson")], minlength=USERS + 1)
    expected = ROUNDS * stats.binom.pmf(np.arange(USERS + 1), USERS, COHORT / USERS)
    few, many = expected[:10], expected[10:].sum()
    found = [*sizes[:10], sizes[10:].sum()]
    assert stats.chisquare(found, [*few, many], sum_check=False).pvalue > 1e-4
    assert sizes[0] > 0  # An empty cohort happens.


def test_poisson_draws_people_independently() -> None:
    """Whether two people are drawn together: q² under Poisson, less without replacement."""
    share = {}
    for law in ("poisson", "fixed"):
        both = [{10, 11} <= set(cohort.tolist()) for cohort in drawn(law)]
        share[law] = np.mean(both)
    assert abs(share["poisson"] - 0.04) < 5 * math.sqrt(0.04 * 0.96 / ROUNDS)
    apart = 0.2 * 3 / 19
    assert abs(share["fixed"] - apart) < 5 * math.sqrt(apart / ROUNDS)


@pytest.mark.parametrize("law", ["poisson", "fixed"])
def test_the_whole_population_can_be_a_cohort_but_no_more(law: Law) -> None:
    everybody = Sampling(law=law, users=3, cohort=3).draw(np.arange(3), rng(0, 0, "cohort"))
    assert sorted(everybody.tolist()) == [0, 1, 2]
    for cohort in (4, 0, -1):
        with pytest.raises(SettingsError, match=f"the people who train, and >= 1; got {cohort}"):
            Sampling(law=law, users=3, cohort=cohort)


def test_a_population_that_is_not_accounted_for_is_refused() -> None:
    with pytest.raises(SettingsError, match="counts 3 people; the population has 2"):
        Sampling(law="fixed", users=3, cohort=1).draw(np.arange(2), rng(0, 0, "cohort"))


@pytest.mark.parametrize("true", [USERS - 1, USERS, USERS + 1, 3 * USERS, 1])
def test_a_poisson_coin_is_the_same_however_many_people_there_are(true: int) -> None:
    """The accountant counts a fixed probability: one more person must not change it for others."""
    sampling = Sampling(law="poisson", users=USERS, cohort=COHORT)
    people = np.arange(10, 10 + true)
    counts = np.zeros(10 + true)
    sizes = []
    for r in range(ROUNDS):
        cohort = sampling.draw(people, rng(1, r, "cohort"))
        assert len(set(cohort.tolist())) == len(cohort)
        counts[cohort] += 1
        sizes.append(len(cohort))
    # Each count is binomial(5000, 4/20), as it is accounted for, whatever the true number is.
    assert counts[:10].sum() == 0
    assert np.abs(counts[10:] - 1000).max() < 5 * math.sqrt(5000 * 0.2 * 0.8)
    # Draws are independent: the variance of the size is that of a binomial number.
    variance = true * 0.2 * 0.8
    assert np.var(sizes) == pytest.approx(variance, rel=0.15)


def test_a_secret_coin_is_the_same_however_many_people_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("privrec.seeds.secrets.token_bytes", rng(2, 0, "secret").bytes)
    sampling = Sampling(law="poisson", users=USERS, cohort=COHORT)
    for true in (1, USERS - 1, 3 * USERS):
        people = np.arange(10, 10 + true)
        counts = np.zeros(10 + true)
        for _ in range(ROUNDS):
            counts[sampling.draw(people, None)] += 1
        assert counts[:10].sum() == 0
        assert np.abs(counts[10:] - 1000).max() < 5 * math.sqrt(5000 * 0.2 * 0.8)


def test_nobody_is_drawn_from_nobody() -> None:
    sampling = Sampling(law="poisson", users=USERS, cohort=COHORT)
    assert sampling.draw(np.arange(0), rng(0, 0, "cohort")).tolist() == []


def test_an_unknown_law_is_named() -> None:
    with pytest.raises(SettingsError, match="'poisson' or 'fixed'; got 'posson'"):
        Sampling(law="posson", users=3, cohort=1)  # type: ignore[arg-type]


def test_each_law_says_what_it_compares() -> None:
    poisson = Sampling(law="poisson", users=10, cohort=2)
    fixed = Sampling(law="fixed", users=10, cohort=2)
    assert (poisson.adjacency, poisson.reach) == ("add or remove one person", 1.0)
    assert (fixed.adjacency, fixed.reach) == ("replace one person", 2.0)
    assert poisson.share == fixed.share == 0.2
