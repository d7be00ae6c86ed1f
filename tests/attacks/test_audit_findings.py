"""More planted faults, of the kind that programmers make. Most are found under secure noise too."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privrec.algorithms.privrec_plus import public, sums
from privrec.algorithms.privrec_plus import recipe as plan
from privrec.algorithms.privrec_plus import rows as moments
from privrec.algorithms.privrec_plus.budget import public_budget
from privrec.algorithms.privrec_plus.rows import merged_items
from privrec.algorithms.recipes import RECIPES, configure, prepare
from privrec.attacks import findings
from privrec.attacks.audit import audit, least_area
from privrec.attacks.findings import noise_again, over_bound, same_noise, too_small, wrong_noise
from privrec.attacks.trial import ObservedRound, make_canaries
from privrec.cli.app import app
from privrec.core.phase import Cohort, DeviceHalf, Phase, ServerState, Told
from privrec.core.round import fastest
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.privacy import release as noise
from privrec.privacy.aggregate import (
    Aggregator,
    CohortTotal,
    Published,
    gaussian,
    laplace,
    plain,
)
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import NoiseSource, Sampling, secure, seeded
from privrec.runs import journal as publisher
from privrec.runs import ledger as ledger_file
from privrec.runs import loop
from privrec.runs.documents import Audit
from privrec.testing import noised, phases_of
from privrec.types import IntArray
from tiny import without_features

DATA = "synthetic:users=150,items=120"
PLUS = "dp-privrec-plus"
NETWORKS = {"privrec", "privrec-paper", "privrec-sgd", "fofl-self", "nn-self", "dp-privrec-one",
            "dp-privrec", "ssl-items", "lm-privrec", "fedgnn"}  # fmt: skip
"""Each compiles a program for each size of a person's data."""
ROUNDS: dict[str, Any] = {"rounds": 5, "cohort": 40, "clip_quantile": 0.5}


def audited(recipe: str = PLUS, data: str | Federation = DATA, **settings: Any) -> Audit:
    """Return an audit under secure noise.

    At this confidence 40 canaries prove nothing by their scores, so that no right run fails by
    chance; what is found is found by looking inside, and is far beyond chance.
    """
    usual: dict[str, Any] = {"canaries": 40, "epsilon": 4.0, "confidence": 0.999999}
    return audit(recipe, data, **{**usual, **settings})


def check_found(found: Audit, words: str) -> None:
    assert not found.holds
    assert any(words in finding for finding in found.findings), found.findings


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"stage1_cohort": 60}, ROUNDS], ids=["drawn", "rounds"])
def test_nothing_is_found_where_nothing_is_wrong(settings: dict[str, Any]) -> None:
    found = audited(**settings)
    assert found.noise == "secure"
    assert found.findings == []
    assert found.holds


# --- noise --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (np.zeros_like, "is not norm of scale"),
        (lambda x: x / 2, "is not norm of scale"),
        (lambda x: np.tile(x[:64], len(x) // 64 + 1)[: len(x)], "repeats itself"),
        (lambda x: np.concatenate([x[::2], x[::2][::-1]])[: len(x)], "repeats itself"),
    ],
    ids=["off", "half", "tiled", "palindrome"],
)
def test_secure_noise_that_is_not_what_the_ledger_says(
    monkeypatch: pytest.MonkeyPatch, fault: Any, words: str
) -> None:
    def wrong() -> NoiseSource:
        source = secure()
        return replace(source, normal=lambda size: fault(source.normal(size)))

    monkeypatch.setattr(publisher, "secure", wrong)
    check_found(audited(), words)


@pytest.mark.parametrize("total", [0.0, 1e4, 1e9])
def test_entries_without_noise_are_found_and_coarse_ones_are_not_accused(total: float) -> None:
    noise = drawn("gaussian", 0, 20_000)
    few = np.where(np.arange(len(noise)) % 50 == 0, 0.0, noise)
    for values, is_missing in ((noise, False), (few, total < 1e9)):
        [played] = rounds_of([values], total=total)
        fault = f"{played.name}: entries of 'a' have no noise"
        assert (fault in wrong_noise([played])) == is_missing


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
    noises: Sequence[Any], mechanism: str = "gaussian", total: float = 0.0
) -> list[ObservedRound]:
    """Return rounds that publish this noise of scale 2 on a sum whose entries are all `total`."""
    made = gaussian if mechanism == "gaussian" else laplace
    aggregator = made(Sampling(law="poisson", users=9, cohort=9), clip_norm=1, noise_multiplier=2)
    phase: Any = SimpleNamespace(name="p", release=aggregator.release, aggregator=aggregator)
    return [
        ObservedRound(
            phase=phase,
            round_index=k,
            people=np.arange(9),
            noise={"a": 2 * noise},
            told={},
            clip_norm=1.0,
            published=Published({"a": np.asarray(total + 2 * noise, np.float32)}, 1.0),
            kept_norm=1.0,
            count_noise=None,
        )
        for k, noise in enumerate(noises)
    ]


def drawn(mechanism: str, seed: int, size: int) -> Any:
    """Return standard noise on the grid of published sums."""
    source = seeded(np.random.default_rng(seed))
    found = source.normal(size) if mechanism == "gaussian" else source.laplace(size)
    return np.round(found * 2**12) / 2**12


@pytest.mark.slow
@pytest.mark.parametrize("size", [50, 63, 200, 1000])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_of_any_earlier_round_and_no_other_is_told(mechanism: str, size: int) -> None:
    """Among 200 independent rounds none is accused, whatever the law and the number of entries."""
    noises = [drawn(mechanism, 1000 * size + k, size) for k in range(200)]
    assert noise_again(rounds_of(noises, mechanism)) == []
    assert same_noise(rounds_of(noises, mechanism)) == []
    shifted = 0.8 * np.roll(noises[3], size // 50)
    for again in (noises[3], -1.2 * noises[3][::-1], shifted):
        wrong = rounds_of([*noises[:150], again, *noises[150:]], mechanism)
        [said] = noise_again(wrong)
        assert said == "round 150 (p): the noise is that of round 3 (p)"
    # As large as it may be; and none at all.
    assert noise_again(rounds_of([1e6 * noises[0], noises[1], 0 * noises[2]], mechanism)) == []


def palindrome(noise: Any) -> Any:
    return np.concatenate([noise[::2], noise[::2][::-1]])[: len(noise)]


def with_signs(noise: Any) -> Any:
    signs = np.random.default_rng(1).choice([-1.0, 1.0], len(noise))
    return signs * np.random.default_rng(2).permutation(noise)


def five_times(noise: Any) -> Any:
    return with_signs(np.tile(noise[: len(noise) // 5 + 1], 5)[: len(noise)])


@pytest.mark.parametrize("size", [24, 120, 7260, 60_000])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("total", [0.0, 1000.0])
def test_noise_that_occurs_again_is_found_in_any_order(
    mechanism: str, size: int, total: float
) -> None:
    right = [drawn(mechanism, size + k, size) for k in range(4)]
    assert same_noise(rounds_of(right, mechanism, total)) == []
    for fault in (palindrome, five_times, lambda noise: with_signs(palindrome(noise))):
        wrong = rounds_of([right[0], fault(right[1])], mechanism, total)
        assert same_noise(wrong) == ["round 1 (p): the noise repeats itself in some order"]
    for again in (right[1][::-1], with_signs(right[1]), with_signs(right[1])[: size // 2]):
        [said] = same_noise(rounds_of([*right, again], mechanism, total))
        assert said == "round 4 (p): the noise is that of round 1 (p) in some order"


def test_two_sums_of_a_round_with_the_same_noise() -> None:
    noise = drawn("gaussian", 0, 5000)
    right, wrong = rounds_of([noise, noise])
    for one, other in ((right, drawn("gaussian", 1, 1500)), (wrong, with_signs(noise[:1500]))):
        one.noise["b"] = one.published.update["b"] = 2 * other  # type: ignore[index]
    assert same_noise([right]) == []
    assert "round 1 (p): the noise on 'b' is that on 'a' in some order" in same_noise([wrong])


def test_sums_that_are_too_large_for_their_noise_say_nothing() -> None:
    """Beside 1e9, the steps of 32 bits are 64: all noises are multiples of that."""
    coarse = [np.round(drawn("gaussian", k, 400)) for k in range(2)]
    assert same_noise(rounds_of(coarse, total=1e9)) == []


def test_the_chance_of_an_accusation_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a chance of 1/10, of two kinds, at most about 40 of 200 right runs are accused."""
    monkeypatch.setattr(findings, "_CHANCE_OF_ALL", 0.1)
    accused = [
        bool(same_noise(rounds_of([drawn(law, 7 * k + j, size) for j in range(3)], law)))
        for law, size in (("gaussian", 100), ("laplace", 3000))
        for k in range(100)
    ]
    assert 0 < sum(accused) < 70


@pytest.mark.slow
def test_a_secure_generator_with_the_same_key_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two sums have different sizes, so their noises are not the same numbers in order."""

    class Os:
        @staticmethod
        def urandom(size: int) -> bytes:
            return bytes(size)

    monkeypatch.setattr(noise, "os", Os)
    check_found(audited(), "the same numbers each time")


@pytest.mark.slow
def test_every_second_round_has_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(self: publisher.RunJournal, state: ServerState) -> NoiseSource:
        return seeded(np.random.default_rng(state.round_index % 2))

    monkeypatch.setattr(publisher.RunJournal, "noise", again)
    check_found(audited(**ROUNDS), "(train): the noise is that of round")


@pytest.mark.slow
def test_a_count_of_adaptive_clipping_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Aggregator, "count_scale", 0.0)
    check_found(audited(**ROUNDS), "noise on the count of adaptive clipping")


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["taste_device", "alignment_device", "moments_device"])
def test_the_sum_is_bounded_and_not_each_person(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole: Callable[..., DeviceHalf] = getattr(plan, name)

    def device(*args: Any) -> Any:
        made = whole(*args)

        def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
            total = made.kernel(told, cohort, round_index, clip_norm)  # type: ignore[misc]
            length = np.sqrt(sum(float(np.square(a).sum()) for a in total.update.values()))
            shrink = clip_norm / max(length, clip_norm)
            return total._replace(update={n: shrink * a for n, a in total.update.items()})

        return replace(made, kernel=kernel)

    monkeypatch.setattr(plan, name, device)
    monkeypatch.setattr(public, "fewest_per_noise", lambda n_items: (0.0, 0.0))
    people = load(DATA)
    data = without_features(people) if name == "taste_device" else people
    check_found(audited(data=data), "not the sum of what each adds")


@pytest.mark.slow
def test_a_bound_that_fails_for_an_item_both_liked_and_disliked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The length is measured before likes and dislikes of one item are added: 1.5 / √1.25."""

    def shares(rows: Any, layout: Any, dislike: float) -> Any:
        n = layout.n_items
        parts = rows[:, :n].astype(np.float64), dislike * rows[:, n : 2 * n].astype(np.float64)
        lengths = np.hypot(*(moments.row_lengths(part) for part in parts))
        return merged_items(rows, layout, dislike), moments.to_length_one(lengths)

    monkeypatch.setattr(sums, "popularity_shares", shares)
    found = audited()
    check_found(found, "one person adds a vector of length 1.342, above the bound 1")
    check_found(found, "a person who likes and dislikes each item")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "kind"),
    [
        ("not distinct", "of one item in all lines"),
        ("all items", "who likes every item"),
        ("huge", "of huge numbers"),
        ("dislikes", "who dislikes all"),
        ("contexts", "of each line twice, in other contexts"),
        ("nothing", "without lines"),
    ],
)
def test_a_bound_that_fails_for_odd_people(
    setting: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel adds 1.1 times the bound for one kind of people, who are not in the data."""
    whole = sums.popularity_device

    def is_odd(person: Clients) -> bool:
        lines, items = len(person.item), len(np.unique(person.item))
        return {
            "not distinct": lines > 2 and items == 1,
            "all items": items == 120,
            "huge": bool((np.abs(person.value) > 1e9).any()),
            "dislikes": lines > 0 and not person.liked.any(),
            "contexts": lines == 2 * items and bool(person.liked.all()),
            "nothing": lines == 0,
        }[setting]

    def device(*args: Any, **given: Any) -> Any:
        made = whole(*args, **given)

        def kernel(told: Told, cohort: Cohort, *rest: Any) -> CohortTotal:
            total = made.kernel(told, cohort, *rest)  # type: ignore[misc]
            odd = sum(is_odd(cohort.take(np.array([k]))) for k in cohort.people)
            extra = 1.1 * odd * np.eye(1, 120)[0]
            return total._replace(update={n: a + extra for n, a in total.update.items()})

        return replace(made, kernel=kernel)

    monkeypatch.setattr(plan, "popularity_device", device)
    check_found(audited(), f"a person {kind}")


NOISED = [name for name in RECIPES if noised(name)]


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=[pytest.mark.slow] if name in NETWORKS else []) for name in NOISED],
)
def test_no_recipe_lets_an_odd_person_add_more_than_the_bound(recipe: str) -> None:
    data = load("synthetic:users=60,items=40,longest=20")
    canaries = make_canaries(data, 20, seed=0).people
    places = list(phases_of(prepare(configure(recipe, data.name, noised(recipe)), data)))
    assert places
    for place in places:
        [one] = rounds_of([np.zeros(1)])
        bound = place.state.clip_norm
        told = {name: np.asarray(leaf) for name, leaf in place.told.items()}
        one = replace(one, phase=place.phase, told=told, clip_norm=bound)
        assert place.phase.release.is_private
        assert over_bound([one], canaries, data) == []


def test_a_bound_that_fails_in_the_last_round_alone() -> None:
    data = load("synthetic:users=60,items=40,longest=20")
    canaries = make_canaries(data, 20, seed=0).people
    place = next(iter(phases_of(prepare(configure(PLUS, data.name, noised(PLUS)), data))))
    whole = place.phase.device

    def kernel(told: Told, cohort: Cohort, number: int, clip_norm: float) -> CohortTotal:
        total = whole.kernel(told, cohort, number, clip_norm)  # type: ignore[misc]
        factor = 3.0 if number == 2 else 1.0
        return total._replace(update={name: factor * a for name, a in total.update.items()})

    phase = replace(place.phase, device=replace(whole, kernel=kernel))
    told = {name: np.asarray(leaf) for name, leaf in place.told.items()}
    rounds = [
        replace(one, phase=phase, told=told, clip_norm=place.state.clip_norm)
        for one in rounds_of([np.zeros(1)] * 3)
    ]
    assert over_bound(rounds[:2], canaries, data) == []
    [finding] = over_bound(rounds, canaries, data)
    assert finding.startswith(f"{rounds[2].name}: one person adds a vector of length 3")


@pytest.mark.slow
def test_the_bound_of_the_first_round_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(phase: Phase, told: Told, cohort: Cohort, number: int, clip_norm: float) -> CohortTotal:
        return fastest(phase, told, cohort, number, phase.aggregator.clip_norm)

    monkeypatch.setattr(loop, "fastest", run)
    # So long a bound falls from round to round.
    check_found(audited(**ROUNDS, clip_norm=100.0), "devices keep to the bound 100")


@pytest.mark.slow
def test_the_other_norm_under_laplace_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Aggregator, "norm", "l2")
    check_found(audited("lm-privrec", rounds=2, cohort=40), "one person adds a vector of length")


# --- cohorts and ledger -------------------------------------------------------------------------


@pytest.mark.slow
def test_more_people_are_drawn_than_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Sampling.draw

    def draw(self: Sampling, population: IntArray, rng: Any) -> IntArray:
        return np.union1d(whole(self, population, rng), whole(self, population, rng))

    monkeypatch.setattr(Sampling, "draw", draw)
    # 640 of 1,000 people instead of 400: 15 deviations too many, and 6 are found.
    found = audited(data="synthetic:users=1000,items=120", stage1_cohort=400)
    check_found(found, "people were drawn for a round")


@pytest.mark.slow
def test_people_are_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One coin for ten neighbours: each has the right chance, and the right number is drawn."""
    coins = np.random.default_rng(0)

    def draw(self: Sampling, population: IntArray, rng: Any) -> IntArray:
        heads = coins.random(len(population)) < self.share
        return population[heads[np.arange(len(population)) // 10]]

    monkeypatch.setattr(Sampling, "draw", draw)
    found = audited(data="synthetic:users=1000,items=120", stage1_cohort=400)
    check_found(found, "people 1 places apart were drawn together")


@pytest.mark.slow
def test_people_are_drawn_with_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(self: Sampling, population: IntArray, rng: Any) -> IntArray:
        return population[np.random.default_rng(0).choice(len(population), self.cohort)]

    monkeypatch.setattr(Sampling, "draw", draw)
    check_found(audited(stage1_cohort=60), "drawn twice in one round")


@pytest.mark.slow
def test_a_ledger_of_another_sampling_than_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ledger_file.ledger_in

    def counted(lines: Any, *, only_noised: bool = False) -> PrivacyLedger:
        found = whole(lines, only_noised=only_noised)
        return PrivacyLedger(
            tuple(
                (replace(one, sampling=replace(one.sampling, users=2 * one.sampling.users)), times)
                for one, times in found.entries
            )
        )

    monkeypatch.setattr(ledger_file, "ledger_in", counted)
    check_found(audited(stage1_cohort=60), "and the ledger counts 0")


def test_a_budget_is_not_kept_by_sums_without_noise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The ledger is honest and says infinite; who asked for a budget did not get it."""
    whole = public_budget

    def forgotten(*args: Any, **given: Any) -> Any:
        made = whole(*args, **given)
        return made._replace(popularity=plain(made.popularity.release.sampling))

    monkeypatch.setattr(plan, "public_budget", forgotten)
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
