"""An attacker who has several runs on the same people cannot remove their noise.

Each test is an attack: it gets what was published and knows the settings and the seeds. Its result
is compared with the un-noised sum, which it does not get. `share_noise` inserts an old bug, noise
from (seed, round) alone: the same attacks then find the sum, so the tests can fail.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from privrec.core.phase import ServerState
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.privacy.release import NoiseSource, seeded
from privrec.runs.journal import RunJournal
from privrec.seeds import rng
from privrec.types import F64
from tiny import DATA, MODEL, own

SMALL = {**MODEL, "rounds": 1, "stage1_rounds": 1, "stage1_cohort": 8, "views": 4, "batch_size": 4}
SUMS = {"rounds": 0, "stage1_cohort": 10**9}
RECIPES: dict[str, dict[str, Any]] = {
    "dp-privrec-plus": SUMS,
    **{name: own(name, SMALL) for name in ("dp-privrec-one", "dp-privrec", "lm-privrec")},
}


class Tap:
    """Records the sum and what was published of it, for every round of the runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sums: list[F64] = []
        self.published: list[F64] = []
        self.scales: list[float] = []
        publish = Aggregator.publish_round

        def tapped(
            maker: Aggregator, total: CohortTotal, clip_norm: float, noise: NoiseSource
        ) -> Published:
            found = publish(maker, total, clip_norm, noise)
            self.sums.append(flat(total.update))
            self.published.append(flat(found.update))
            self.scales.append(maker.noise_scale(clip_norm))
            return found

        monkeypatch.setattr(Aggregator, "publish_round", tapped)

    def first(self) -> tuple[F64, F64, float]:
        """Return the sum, what was published and the noise's scale of the first round played."""
        found = self.sums[0], self.published[0], self.scales[0]
        for kept in (self.sums, self.published, self.scales):
            kept.clear()
        return found


@pytest.fixture
def tap(monkeypatch: pytest.MonkeyPatch) -> Tap:
    return Tap(monkeypatch)


def flat(update: Any) -> F64:
    return np.concatenate(
        [np.ravel(np.asarray(update[name], np.float64)) for name in sorted(update)]
    )


def old_noise(seed: int, round_index: int) -> NoiseSource:
    return seeded(rng(seed, round_index, "noise"))


def share_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Insert the bug: noise that depends on the seed and the round alone."""

    def noise(journal: RunJournal, state: ServerState) -> NoiseSource:
        return old_noise(journal.config.seed, state.round_index)

    monkeypatch.setattr(RunJournal, "noise", noise)


def solved(one: F64, other: F64, s: float, t: float) -> F64:
    """Return the sum x that solves one = x + s·n, other = x + t·n for a shared noise n."""
    return (t * one - s * other) / (t - s)


def error(found: F64, truth: F64) -> float:
    return float(np.sqrt(np.mean((found - truth) ** 2)))


def played(tap: Tap, out: Path, recipe: str, **settings: Any) -> tuple[F64, F64, float]:
    privrec.train(recipe, DATA, out=out, **{**RECIPES[recipe], **settings})
    return tap.first()


# Two stages take long to compile, and go through the same publisher.
MOST = [
    pytest.param(recipe, marks=pytest.mark.slow) if recipe == "dp-privrec" else recipe
    for recipe in RECIPES
]


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["seeded", "secure"])
@pytest.mark.parametrize("recipe", MOST)
def test_two_budgets_do_not_cancel_the_noise(
    recipe: str, noise: str, tap: Tap, tmp_path: Path
) -> None:
    truth, strong, s = played(tap, tmp_path / "8", recipe, epsilon=8.0, noise=noise)
    again, weak, t = played(tap, tmp_path / "2", recipe, epsilon=2.0, noise=noise)
    assert t > s > 0
    if noise == "seeded" or recipe == "dp-privrec-plus":
        # The attack needs the same cohort, and so the same sum.
        np.testing.assert_allclose(again, truth, atol=1e-5)
    # Laplace noise of scale s has a deviation of s√2. Of 40 normal numbers of scale s, the error is
    # below 0.4 s less than once in 10⁹ times.
    own = error(strong, truth)
    assert own > 0.4 * s
    assert error(solved(strong, weak, s, t), truth) > 0.9 * own


def test_the_attack_finds_the_sum_where_noise_is_shared(
    tap: Tap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_noise(monkeypatch)
    truth, strong, s = played(tap, tmp_path / "8", "dp-privrec-plus", epsilon=8.0, noise="seeded")
    _, weak, t = played(tap, tmp_path / "2", "dp-privrec-plus", epsilon=2.0, noise="seeded")
    assert error(solved(strong, weak, s, t), truth) < 0.01 * s


CHANGES: list[dict[str, Any]] = [
    {"epsilon": 7.9},
    {"delta": 1e-7},
    {"dislike_input": 0.4},
    {"history_items": 30},
    {"validation_share": 0.05},
    {"train_people": 47},
    {"recipe": "dp-privrec-one"},
]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: "-".join(map(str, change)))
def test_whatever_differs_the_noise_differs(
    change: dict[str, Any], tap: Tap, tmp_path: Path
) -> None:
    """The difference of two runs must not be the difference of their sums."""
    truth, one, s = played(tap, tmp_path / "1", "dp-privrec-plus", epsilon=8.0, noise="seeded")
    recipe = change.get("recipe", "dp-privrec-plus")
    settings = {key: value for key, value in change.items() if key != "recipe"}
    settings = {"epsilon": 8.0, "noise": "seeded", **settings}
    again, other, t = played(tap, tmp_path / "2", recipe, **settings)
    size = min(len(one), len(other))
    first, second = (one - truth)[:size] / s, (other - again)[:size] / t
    # For 40 numbers, the correlation of independent noise exceeds 0.6 once in 10,000 times. This
    # noise is seeded, so the result is always the same.
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.6


def test_one_person_less_has_other_noise(tap: Tap, tmp_path: Path) -> None:
    """Otherwise the difference of two runs, with and without her, would be exactly her row."""
    data = privrec.load(DATA)
    settings: dict[str, Any] = {**SUMS, "epsilon": 8.0, "noise": "seeded"}
    privrec.train("dp-privrec-plus", data, out=tmp_path / "1", **settings)
    truth, one, s = tap.first()
    changed = replace(data, fingerprint="of the data without her")
    privrec.train("dp-privrec-plus", changed, out=tmp_path / "2", **settings)
    again, other, _ = tap.first()
    np.testing.assert_array_equal(truth, again)
    assert error(one, other) > s


def test_the_same_run_again_publishes_the_same(tap: Tap, tmp_path: Path) -> None:
    runs = [
        played(tap, tmp_path / str(k), "dp-privrec-plus", epsilon=8.0, noise="seeded")
        for k in range(2)
    ]
    np.testing.assert_array_equal(runs[0][1], runs[1][1])


def guessed(seed: int) -> Callable[[int], F64]:
    return old_noise(seed, 0).normal


@pytest.mark.parametrize("recipe", MOST)
def test_no_seed_takes_the_default_noise_off(recipe: str, tap: Tap, tmp_path: Path) -> None:
    """The attack that tries all seeds once found seed 20240 from a model alone."""
    truth, published, s = played(tap, tmp_path / "run", recipe, seed=7)
    left = [error(published - s * guessed(seed)(len(truth)), truth) for seed in range(300)]
    # Noise that was guessed leaves less than 0.01 s, as the next test shows.
    assert min(left) > 0.4 * s


def test_trying_seeds_finds_noise_that_depends_on_them_alone(
    tap: Tap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_noise(monkeypatch)
    settings = {"seed": 7, "noise": "seeded"}
    truth, published, s = played(tap, tmp_path / "run", "dp-privrec-plus", **settings)
    left = [error(published - s * guessed(seed)(len(truth)), truth) for seed in range(20)]
    assert int(np.argmin(left)) == 7
    assert min(left) < 0.01 * s


@pytest.mark.parametrize("recipe", MOST)
def test_noise_is_secure_unless_seeded_noise_is_asked_for(recipe: str, tmp_path: Path) -> None:
    plain = privrec.train(recipe, DATA, out=tmp_path / "plain", **RECIPES[recipe])
    promise = plain.privacy()
    assert promise.noise == "secure"
    assert promise.epsilon is not None
    assert promise.epsilon <= 8
    people = round(60 * 0.8 * (1 - plain.config.validation_share))
    assert promise.statement.startswith(f"Each of about {people} people who train is protected")
    toy = privrec.train(recipe, DATA, out=tmp_path / "toy", noise="seeded", **RECIPES[recipe])
    promise = toy.privacy()
    assert (promise.noise, promise.epsilon) == ("seeded", None)
    assert promise.epsilon_of_mechanism is not None
    assert promise.statement.startswith("For experiments only: no protection.")
