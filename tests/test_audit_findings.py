"""More planted faults, of the kind that programmers make. Most are found under secure noise too."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privrec.algorithms.privrec_plus import plan
from privrec.algorithms.privrec_plus.budget import split_budget
from privrec.algorithms.privrec_plus.sums import taste_device
from privrec.attacks.audit import Audit, audit
from privrec.attacks.bounds import least_area
from privrec.attacks.findings import drawn_again, noise_again, too_small
from privrec.cli.app import app
from privrec.core.phase import Cohort, Phase, ServerState, Told
from privrec.core.round import fastest
from privrec.privacy import noise
from privrec.privacy.aggregate import Aggregator, CohortTotal, plain
from privrec.privacy.ledger import PrivacyLedger, ledger_in
from privrec.privacy.noise import NoiseSource, secure, seeded
from privrec.privacy.release import Sampling
from privrec.runs import loop, publisher
from privrec.types import IntArray

DATA = "synthetic:users=150,items=120"
PLUS = "dp-privrec-plus"
ROUNDS: dict[str, Any] = {"rounds": 5, "cohort": 40, "clip_quantile": 0.5}


def audited(recipe: str = PLUS, data: str = DATA, **settings: Any) -> Audit:
    """Return an audit under secure noise.

    At this confidence 40 canaries prove nothing by their scores, so that no right run fails by
    chance; what is found is found by looking inside, and is far beyond chance.
    """
    usual: dict[str, Any] = {"canaries": 40, "epsilon": 4.0, "confidence": 0.999999}
    return audit(recipe, data, **{**usual, **settings})


def check_found(found: Audit, words: str) -> None:
    assert not found.holds
    assert any(words in finding for finding in found.findings), found.findings


@pytest.mark.parametrize("settings", [{"stage1_cohort": 60}, ROUNDS], ids=["drawn", "rounds"])
def test_nothing_is_found_where_nothing_is_wrong(settings: dict[str, Any]) -> None:
    found = audited(**settings)
    assert found.noise == "secure"
    assert found.findings == ()
    assert found.holds


# --- noise --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (np.zeros_like, "is not norm of scale"),
        (lambda x: x / 2, "is not norm of scale"),
        (lambda x: np.tile(x[:64], len(x) // 64 + 1)[: len(x)], "repeats itself"),
    ],
    ids=["off", "half", "tiled"],
)
def test_secure_noise_that_is_not_what_the_ledger_says(
    monkeypatch: pytest.MonkeyPatch, fault: Any, words: str
) -> None:
    def wrong() -> NoiseSource:
        source = secure()
        return replace(source, normal=lambda size: fault(source.normal(size)))

    monkeypatch.setattr(publisher, "secure", wrong)
    check_found(audited(), words)


@pytest.mark.parametrize("laplace", [False, True])
def test_noise_of_which_a_tenth_is_missing(laplace: bool) -> None:
    source = secure()
    right = (source.laplace if laplace else source.normal)(40_000)
    assert not too_small(right, laplace=laplace)
    assert not too_small(right[:2], laplace=laplace)
    assert not too_small(right[:0], laplace=laplace)
    assert too_small(0.9 * right, laplace=laplace)
    assert too_small(np.zeros(4), laplace=laplace)


def rounds_of(
    noises: Sequence[Any], mechanism: str = "gaussian", people: Sequence[Any] = (), users: int = 1
) -> Any:
    """Return rounds with this noise of scale 2, and these people of `users` who are there."""
    release = SimpleNamespace(
        is_private=True, mechanism=mechanism, sampling=SimpleNamespace(share=0.5, users=2 * users)
    )
    phase = SimpleNamespace(name="p", release=release, population=np.arange(users))
    return [
        SimpleNamespace(
            phase=phase, round_index=k, noise={"a": 2 * noise}, noise_scale=2.0, people=p
        )
        for k, (noise, p) in enumerate(zip_longest(noises, people))
    ]


@pytest.mark.parametrize("size", [50, 63, 200, 1000])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_of_any_earlier_round_and_no_other_is_told(mechanism: str, size: int) -> None:
    """Among 200 independent rounds none is accused, whatever the law and the number of entries."""
    draw = np.random.default_rng(size)
    of = draw.laplace if mechanism == "laplace" else draw.normal
    noises = [of(size=size) for _ in range(200)]
    assert noise_again(rounds_of(noises, mechanism)) == []
    noises[150] = noises[3]
    [said] = noise_again(rounds_of(noises, mechanism))
    assert said == "round 150 (p): the noise is that of round 3 (p)"
    # As large as it may be; and none at all.
    assert noise_again(rounds_of([1e6 * noises[0], noises[1], 0 * noises[2]], mechanism)) == []


def test_people_who_are_declared_but_not_there_do_not_make_cohorts_alike() -> None:
    draw = np.random.default_rng(0)
    drawn = [np.flatnonzero(draw.random(1000) < 0.6) for _ in range(50)]
    assert drawn_again(rounds_of([np.zeros(1)] * 50, people=drawn, users=1000)) == []
    drawn[7] = drawn[6]
    [said] = drawn_again(rounds_of([np.zeros(1)] * 50, people=drawn, users=1000))
    assert said.startswith("round 7 (p): ")


def test_a_secure_generator_with_the_same_key_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two sums have different sizes, so their noises are not the same numbers in order."""

    class Os:
        @staticmethod
        def urandom(size: int) -> bytes:
            return bytes(size)

    monkeypatch.setattr(noise, "os", Os)
    check_found(audited(), "the same numbers each time")


def test_every_second_round_has_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(self: publisher.Publisher, state: ServerState) -> NoiseSource:
        return seeded(np.random.default_rng(state.round_index % 2))

    monkeypatch.setattr(publisher.Publisher, "_noise", again)
    check_found(audited(**ROUNDS), "(train): the noise is that of round")


def test_a_count_of_adaptive_clipping_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Aggregator, "count_scale", 0.0)
    check_found(audited(**ROUNDS), "noise on the count of adaptive clipping")


# --- bounds -------------------------------------------------------------------------------------


def test_the_sum_is_bounded_and_not_each_person(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = taste_device

    def device(*args: Any) -> Any:
        made = whole(*args)

        def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
            total = made.kernel(told, cohort, round_index, clip_norm)  # type: ignore[misc]
            length = np.sqrt(sum(float(np.square(a).sum()) for a in total.update.values()))
            shrink = clip_norm / max(length, clip_norm)
            return total._replace(update={n: shrink * a for n, a in total.update.items()})

        return replace(made, kernel=kernel)

    monkeypatch.setattr(plan, "taste_device", device)
    check_found(audited(), "not the sum of what each adds")


def test_the_bound_of_the_first_round_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(phase: Phase, told: Told, cohort: Cohort, number: int, clip_norm: float) -> CohortTotal:
        return fastest(phase, told, cohort, number, phase.aggregator.clip_norm)

    monkeypatch.setattr(loop, "fastest", run)
    # So long a bound falls from round to round.
    check_found(audited(**ROUNDS, clip_norm=100.0), "devices keep to the bound 100")


def test_the_other_norm_under_laplace_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Aggregator, "norm", "l2")
    check_found(audited("lm-privrec", rounds=2, cohort=40), "one person adds a vector of length")


# --- cohorts and ledger -------------------------------------------------------------------------


def test_more_people_are_drawn_than_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Sampling.draw

    def draw(self: Sampling, population: IntArray, rng: Any) -> IntArray:
        return np.union1d(whole(self, population, rng), whole(self, population, rng))

    monkeypatch.setattr(Sampling, "draw", draw)
    # 640 of 1,000 people instead of 400: 15 deviations too many, and 6 are found.
    found = audited(data="synthetic:users=1000,items=120", stage1_cohort=400)
    check_found(found, "people were drawn for a round")


def test_people_are_drawn_with_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(self: Sampling, population: IntArray, rng: Any) -> IntArray:
        return population[np.random.default_rng(0).choice(len(population), self.cohort)]

    monkeypatch.setattr(Sampling, "draw", draw)
    check_found(audited(stage1_cohort=60), "drawn twice in one round")


def test_a_ledger_of_another_sampling_than_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ledger_in

    def counted(lines: Any, *, only_noised: bool) -> PrivacyLedger:
        found = whole(lines, only_noised=only_noised)
        return PrivacyLedger(
            tuple(
                (replace(one, sampling=replace(one.sampling, users=2 * one.sampling.users)), times)
                for one, times in found.entries
            )
        )

    monkeypatch.setattr(publisher, "ledger_in", counted)
    check_found(audited(stage1_cohort=60), "and the ledger counts 0")


def test_a_budget_is_not_kept_by_sums_without_noise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The ledger is honest and says infinite; who asked for a budget did not get it."""
    whole = split_budget

    def forgotten(*args: Any, **given: Any) -> Any:
        first, *rest = whole(*args, **given)
        return plain(first.release.sampling), *rest

    monkeypatch.setattr(plan, "split_budget", forgotten)
    args = ["audit", PLUS, "--data", DATA, "--canaries", "40", "--epsilon", "4"]
    place = tmp_path / "audit.json"
    done = CliRunner().invoke(app, [*args, "--out", str(place)])
    assert done.exit_code == 3, done.output
    assert "above the budget of 4: some sums have no noise" in done.stdout
    assert "the ledger promises nothing" in done.stdout
    found = json.loads(place.read_text(encoding="utf-8"))
    assert found["holds"] is False
    assert found["epsilon_ledger"] is None
    assert "does NOT hold" in place.with_suffix(".html").read_text(encoding="utf-8")


def test_one_score_proves_nothing() -> None:
    """Of 20 canaries, all but one take part once in 25,000 audits."""
    assert least_area(np.array([1.0]), np.array([0.5, 2.0, 3.0]), 0.05) <= 0.05
