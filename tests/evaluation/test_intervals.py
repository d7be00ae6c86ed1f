"""95 % intervals: how often they hold the truth, for people who are drawn from a known law."""

import math

import numpy as np
import pytest

import privrec
from privrec.evaluation import intervals as module
from privrec.evaluation.intervals import (
    Difference,
    apart,
    differences,
    differences_of_seeds,
    ends_of_differences,
    ends_of_shares,
    intervals,
    intervals_of_means,
    intervals_of_ratios,
    mean_of,
    shares_of_seeds,
)
from privrec.evaluation.metrics import KS
from privrec.types import F64


def columns(figures: F64) -> F64:
    """Return (people, len(KS)) with the same figures for each k."""
    return np.repeat(figures[:, None], len(KS), axis=1)


def share_held(ends: tuple[F64, F64], truth: float) -> float:
    low, high = ends
    return float(((low <= truth) & (truth <= high)).mean())


def drawn(
    people: int, level: float, likeness: float, seed: int, lines_each: tuple[int, int] = (2, 8)
) -> tuple[F64, F64]:
    """Return two recommenders' hits over the lines of people: two arrays (people, repetitions).

    A person has some lines and her own chance of a hit, whose mean is `level`. Of the lines half
    are hit by both or by neither; on the others the second one is on its own.
    """
    draw = np.random.default_rng(seed)
    shape = (people, max(600, min(1500, 80_000 // people)))
    chances = draw.beta(likeness * level, likeness * (1 - level), shape)
    lines = draw.integers(lines_each[0], lines_each[1] + 1, shape)
    shared = draw.binomial(lines, 0.5)
    both, mine, other = (draw.binomial(n, chances) for n in (shared, *[lines - shared] * 2))
    return (both + mine) / lines, (both + other) / lines


CASES = [
    (people, level, likeness)
    for people in (20, 100, 1000)
    for level in (0.02, 0.2, 0.5)
    for likeness in (1.0, 5.0)
    if people < 1000 or likeness > 1
]


@pytest.mark.parametrize(("people", "level", "likeness"), CASES)
def test_of_100_intervals_92_to_98_hold_the_truth(
    people: int, level: float, likeness: float
) -> None:
    figures, _ = drawn(people, level, likeness, seed=people)
    held = share_held(ends_of_shares(figures), level)
    # With fewer than three hits in a sample one cannot tell a few lucky people from many unlucky
    # ones. An interval that holds the truth for both is longer than needed for one of them.
    assert 0.92 <= held <= (0.98 if people * level > 3 else 1.0), held


@pytest.mark.parametrize(("people", "level", "likeness"), CASES)
def test_of_100_paired_differences_92_to_98_hold_the_truth(
    people: int, level: float, likeness: float
) -> None:
    """The two are equally good, so the true difference is 0."""
    ours, theirs = drawn(people, level, likeness, seed=7 * people)
    held = share_held(ends_of_differences(ours - theirs), 0.0)
    # As above, for those who differ.
    assert 0.92 <= held <= (0.98 if (ours != theirs).sum(0).mean() > 5 else 1.0), held


@pytest.mark.parametrize("level", [0.2, 0.4])
@pytest.mark.parametrize("people", [20, 30, 60, 100])
def test_people_of_many_lines_each_differ_less(people: int, level: float) -> None:
    """As on MovieLens-1M: 80 lines on average, and figures with a deviation of about 0.15."""
    ours, theirs = drawn(people, level, 8.0, seed=people, lines_each=(20, 140))
    held = share_held(ends_of_shares(ours), level)
    assert 0.92 <= held <= 0.98, held
    held = share_held(ends_of_differences(ours - theirs), 0.0)
    assert 0.92 <= held <= 0.98, held


def test_pairs_tell_more_than_two_figures() -> None:
    ours, theirs = drawn(100, 0.2, 5.0, seed=3)
    low, high = ends_of_differences(ours - theirs)
    two = np.hypot(*(np.subtract(*ends_of_shares(figures)) for figures in (ours, theirs)))
    assert np.mean((high - low) / two) < 0.8


def test_figures_of_other_people_are_independent() -> None:
    """The squares of the distances to the ends add up; ours may fall, and theirs rise."""
    ours = Difference(by=0.3, low=0.26, high=0.4)
    theirs = Difference(by=0.25, low=0.01, high=0.28)
    one = apart(ours, theirs)
    assert (one.by, one.low, one.high) == pytest.approx((0.05, 0.0, 0.05 + 0.26))


def test_of_unknown_people_a_mean_is_no_surer_than_one_figure() -> None:
    ours = Difference(by=0.3, low=0.26, high=0.4)
    several = mean_of([ours, Difference(by=0.5, low=0.47, high=0.74)])
    assert (several.by, several.low) == pytest.approx((0.4, 0.4 - 0.07 / 2))
    assert several.high == pytest.approx(0.4 + 0.34 / 2)
    assert mean_of([ours]) == ours


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_the_same_people_under_several_seeds_are_not_counted_as_others(share: float) -> None:
    """400 people, five seeds: all of them, or 30 % under each. Correlation of her figures 0.9."""
    people, seeds, level, draw = 400, 5, 0.3, np.random.default_rng(4)
    held = np.zeros(2)
    for _ in range(300):
        # What a person has of her own has nine times the variance of what a seed adds.
        own = draw.beta(0.3, 0.7, people)
        noise = math.sqrt(own.var() / 9)
        samples = []
        for _ in range(seeds):
            ids = np.flatnonzero(draw.random(people) < share)
            figures = own[ids] + noise * draw.choice([-1.0, 1.0], len(ids))
            samples.append((ids, columns(figures)))
        found = shares_of_seeds(samples)[20], differences_of_seeds(samples)[20]
        held += [one.low <= level <= one.high for one in found]
    assert (held / 300 >= 0.92).all(), held / 300
    assert (held / 300 <= 0.98).all(), held / 300


@pytest.mark.parametrize("people", [150, 500])
@pytest.mark.parametrize("lines", [1, 8])
def test_seeds_that_test_a_fifth_of_the_people_each(people: int, lines: int) -> None:
    """As under `halves`: most people are tested under one seed of three, or under none."""
    level, repetitions, draw, held = 0.3, 400, np.random.default_rng(people), np.zeros(2)
    for _ in range(repetitions):
        own = draw.beta(5 * level, 5 * (1 - level), people)
        samples, pairs = [], []
        for _ in range(3):
            ids = np.flatnonzero(draw.random(people) < 0.2)
            ours, theirs = draw.binomial(lines, own[ids], (2, len(ids))) / lines
            theirs = np.where(draw.random(len(ids)) < 0.5, ours, theirs)
            samples.append((ids, columns(ours)))
            pairs.append((ids, columns(ours - theirs)))
        mean, by = shares_of_seeds(samples)[20], differences_of_seeds(pairs)[20]
        held += mean.low <= level <= mean.high, by.low <= 0 <= by.high
    assert (held / repetitions >= 0.92).all(), held / repetitions
    assert (held / repetitions <= 0.98).all(), held / repetitions


def test_a_mean_over_seeds_by_a_slow_loop() -> None:
    """The variance of the mean by one person after another; and one seed is a plain interval."""
    draw = np.random.default_rng(1)
    tested = [np.array([3, 5, 8, 9]), np.array([5, 9, 11]), np.array([8, 3, 20, 21, 22])]
    samples = [(ids, draw.random((len(ids), len(KS)))) for ids in tested]
    found = shares_of_seeds(samples)[20]
    assert found.by == pytest.approx(np.mean([one[:, 2].mean() for _, one in samples]))
    by_person = [dict(zip(ids.tolist(), one[:, 2].tolist(), strict=True)) for ids, one in samples]
    # Eight people are tested twelve times under three seeds. So each of the two made-up people
    # counts as half a person under each seed.
    sizes = [len(one) + 2 * 0.5 for one in by_person]
    # They are 30 / 38 of the way from the least and the largest figure to 0 and 1.
    figures = [figure for one in by_person for figure in one.values()]
    low, high = min(figures) * 8 / 38, (max(figures) * 8 + 30) / 38
    middle = sum(
        (sum(one.values()) + 0.5 * (low + high)) / n / 3
        for one, n in zip(by_person, sizes, strict=True)
    )
    variance = 0.0
    for made_up in (low, high):
        variance += (sum(0.5 * (made_up - middle) / n for n in sizes) / 3) ** 2
    for person in {person for one in by_person for person in one}:
        of_her = [
            (one[person] - middle) / n
            for one, n in zip(by_person, sizes, strict=True)
            if person in one
        ]
        variance += (sum(of_her) / 3) ** 2
    assert found.low == pytest.approx(middle - 1.959964 * math.sqrt(variance))
    assert found.high == pytest.approx(middle + 1.959964 * math.sqrt(variance))
    (ids, first), *_ = samples
    assert shares_of_seeds([(ids, first)])[20].low == intervals(first)[20][0]
    assert differences_of_seeds([(ids, first)]) == differences(first, 0 * first)


def test_a_difference_that_is_there_is_found() -> None:
    """A third of the people get nothing from the second one: the difference is level / 3."""
    ours, theirs = drawn(1000, 0.2, 5.0, seed=5)
    lost = np.random.default_rng(1).random(theirs.shape) < 1 / 3
    ends = ends_of_differences(ours - np.where(lost, 0.0, theirs))
    assert 0.92 <= share_held(ends, 0.2 / 3) <= 0.98
    assert (ends[0] > 0).all()


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_an_interval_is_never_empty(value: float) -> None:
    for people in (1, 20, 200, 5000):
        low, high = intervals(columns(np.full(people, value)))[KS[0]]
        assert 0 <= low <= value <= high <= 1
        # The rule of three: of so many people without a hit, up to 3 / people may be missed.
        assert 0.5 / people < high - low < 8 / people
        same = differences(*[columns(np.full(people, value))] * 2)[KS[0]]
        assert same.low < same.by == 0 < same.high < 8 / people


def test_the_bootstrap_is_near_the_formula_and_jumps_nowhere() -> None:
    figures = drawn(1990, 0.02, 5.0, seed=1)[0][:, :20]
    low, high = ends_of_shares(figures)
    most = figures.max(axis=0)
    more = np.concatenate([figures, [figures.min(axis=0)], [most + (1 - most) * 30 / 2020]])
    half = 1.96 * more.std(axis=0) / math.sqrt(1992)
    assert np.abs(low - (more.mean(axis=0) - half)).max() < 0.1 * (high - low).max()
    assert np.abs(high - (more.mean(axis=0) + half)).max() < 0.1 * (high - low).max()


def test_with_many_people_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_counts", forbidden)
    low, high = intervals(columns(np.tile([0.0, 1.0], 50_000)))[KS[0]]
    assert (low, high) == pytest.approx((0.5 - 0.0030990, 0.5 + 0.0030990), abs=1e-6)


def forbidden(people: int) -> F64:
    raise AssertionError(people)


def test_the_same_figures_have_the_same_interval_and_people_may_come_in_any_order() -> None:
    figures = columns(np.random.default_rng(2).random(50))
    assert intervals(figures) == intervals(figures.copy())
    turned = intervals(figures[::-1].copy())
    for k, ends in intervals(figures).items():
        assert turned[k] == pytest.approx(ends, abs=0.02)


def test_people_without_a_figure_are_left_out() -> None:
    figures = columns(np.array([0.1, math.nan, 0.9, 0.4]))
    known = figures[[0, 2, 3]]
    assert intervals(figures) == intervals(known)
    assert differences(figures, figures * 0.5) == differences(known, known * 0.5)
    nothing = np.full((3, len(KS)), math.nan)
    assert intervals(nothing) == {} == differences(nothing, nothing)


def test_signs() -> None:
    ours = columns(np.full(30, 0.5) + np.linspace(-0.1, 0.1, 30))
    better, worse = differences(ours, ours - 0.2)[20], differences(ours - 0.2, ours)[20]
    assert better.by == pytest.approx(0.2)
    assert better.low > 0.1
    assert worse.by == pytest.approx(-0.2)
    assert worse.high < -0.1


def test_the_draws_are_those_of_a_plain_bootstrap() -> None:
    """A loop that draws people one by one gives the same ends, but for the luck of the draws."""
    figures = drawn(60, 0.2, 5.0, seed=9)[0][:, 0]
    draw = np.random.default_rng(0)
    # With 60 people the made-up ones are a third of the way to the ends of the scale.
    people = [*figures.tolist(), figures.min() * 2 / 3, (figures.max() * 2 + 1) / 3]
    means = [float(np.mean(draw.choice(people, len(people)))) for _ in range(4000)]
    slow = np.quantile(means, [0.025, 0.975])
    assert intervals(columns(figures))[20] == pytest.approx(tuple(slow), abs=0.01)


@pytest.mark.slow
def test_samples_of_test_people_through_the_real_evaluation() -> None:
    """Of 200 samples of 100 people, 92 to 98 in 100 intervals hold the figure of all of them."""
    data = "synthetic:users=20000,items=60,longest=20"
    ours, theirs = (
        found.people.hits
        for recipe in ("ease", "popularity")
        if (found := privrec.train(recipe, data, seed=0).evaluate(references=[])).people
    )
    assert len(ours) == len(theirs) > 3500
    draw, held = np.random.default_rng(0), np.zeros(2)
    for _ in range(200):
        some = draw.choice(len(ours), 100, replace=False)
        low, high = intervals(ours[some])[20]
        by = differences(ours[some], theirs[some])[20]
        held += (
            low <= ours[:, 2].mean() <= high,
            by.low <= (ours - theirs)[:, 2].mean() <= by.high,
        )
    assert (held >= 184).all(), held
    assert (held <= 196).all(), held


def test_a_mean_of_any_size_and_a_ratio_have_intervals_that_hold_the_truth() -> None:
    """Figures around 7, and shares of what each person has: 95 of 100 samples hold the mean."""
    drawn = np.random.default_rng(0)
    inside = np.zeros(2)
    for _ in range(300):
        novelty = 7 + drawn.standard_normal((60, len(KS)))
        hits = drawn.uniform(0.2, 0.8, (60, len(KS)))
        both = hits * drawn.uniform(0.0, 0.6, (60, len(KS)))
        for place, (ends, truth) in enumerate(
            ((intervals_of_means(novelty), 7.0), (intervals_of_ratios(both, hits), 0.3))
        ):
            low, high = ends[20]
            inside[place] += low <= truth <= high
    assert (inside >= 0.9 * 300).all(), inside
    assert (inside <= 0.99 * 300).all(), inside


def test_a_ratio_without_anything_below_it_has_no_interval() -> None:
    parts = np.zeros((3, len(KS)))
    assert intervals_of_ratios(parts, parts) == {}
    wholes = parts.copy()
    wholes[:, 2] = 1.0
    assert set(intervals_of_ratios(parts, wholes)) == {20}
    assert intervals_of_means(np.full((3, len(KS)), np.nan)) == {}
