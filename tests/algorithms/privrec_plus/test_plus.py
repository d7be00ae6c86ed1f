"""Runs of PrivRec+ without rounds on top: two or three sums, their cost and sensitivity."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import privrec
from privrec.algorithms.budgets import popularity_share
from privrec.algorithms.privrec_plus import public
from privrec.algorithms.privrec_plus import recipe as plus
from privrec.algorithms.privrec_plus.public import ALIGNMENTS, spending_of
from privrec.algorithms.privrec_plus.recipe import MOMENTS, POPULAR
from privrec.algorithms.privrec_plus.scoring import POPULARITY
from privrec.algorithms.recipes import configure, prepare, settings_of
from privrec.core.phase import Phase, Stage, Unwritten
from privrec.core.round import fastest
from privrec.data.clients import Clients, split_clients
from privrec.data.federation import Federation
from privrec.errors import SettingsError
from privrec.privacy.aggregate import Aggregator, CohortTotal
from privrec.privacy.release import NoiseSource, Sampling
from privrec.runs import folder as records
from privrec.runs.journal import load_params
from privrec.runs.ledger import read_ledger
from privrec.types import BoolArray, IntArray, Leaf
from tiny import DATA, round_of, without_features

DELTA, BUDGET, USERS, ITEMS = 1e-3, 5.0, 48, 40
TINY: dict[str, Any] = {"delta": DELTA, "epsilon": BUDGET}
Z, LITTLE = 0.7, 0.4
GIVEN: dict[str, Any] = {"delta": DELTA, "noise_multiplier": Z}
"""A given noise multiplier needs no calibration; the split is not one half each."""
WITH_MOMENTS: dict[str, Any] = {"delta": DELTA, "noise_multiplier": LITTLE}
"""Items have features: 48 people are enough for moments, 750 for each unit of noise."""
BOTH = pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("privrec-plus", {"rounds": 0}),
        ("dp-privrec-plus", GIVEN),
        ("dp-privrec-plus", WITH_MOMENTS),
    ],
)
Totals = dict[str, Leaf]
Real = Callable[[], Totals]
Published = list[tuple[Totals, Totals]]
Change = Callable[[Clients, BoolArray], Clients]


def train(path: Path, **settings: Any) -> privrec.Run:
    return privrec.train("dp-privrec-plus", DATA, out=path, **settings)


def clients_of(run: privrec.Run) -> list[int | None]:
    return [line.clients for line in run.figures]


@pytest.fixture(scope="module")
def federation() -> Federation:
    return privrec.load(DATA)


class Way(NamedTuple):
    """Which sums are released, with how much noise: the shares of the precision, in their order."""

    features: bool
    noise: float
    stages: list[str]
    sums: list[str]
    shares: list[float]

    def data(self) -> Federation:
        """Return the people of the way."""
        return privrec.load(DATA) if self.features else without_features(privrec.load(DATA))

    @property
    def given(self) -> dict[str, Any]:
        """The settings of the way."""
        return {"delta": DELTA, "noise_multiplier": self.noise}


TASTE = Way(
    features=False,
    noise=Z,
    stages=[POPULAR, MOMENTS],
    sums=[POPULARITY, "triangle"],
    shares=[popularity_share(USERS, ITEMS, Z), 1 - popularity_share(USERS, ITEMS, Z)],
)
KERNEL = Way(
    features=True,
    noise=Z,
    stages=[POPULAR, ALIGNMENTS],
    sums=[POPULARITY, ALIGNMENTS],
    shares=[0.99, 0.01],
)
THREE = Way(
    features=True,
    noise=LITTLE,
    stages=[POPULAR, ALIGNMENTS, MOMENTS],
    sums=[POPULARITY, ALIGNMENTS, "triangle"],
    shares=list(spending_of(USERS, LITTLE, ITEMS)[:3]),
)
EACH_WAY = pytest.mark.parametrize("way", [TASTE, KERNEL, THREE], ids=["taste", "kernel", "three"])
KNOWN = {
    "public/weights": np.array([0.7, 0.3]),
    "public/trust": np.array(0.8),
    "items/out": np.random.default_rng(5).normal(size=(ITEMS, ITEMS)),
}
"""Parameters of a basis, as if alignments had been published."""


def known_for(stage: Stage, popularity: Any) -> dict[str, Any]:
    """Return parameters of before that the stage can begin with."""
    start = stage.start(None).params
    known = {name: jnp.asarray(KNOWN[name]) for name in KNOWN if "public/trust" in start}
    if known:
        known["items/out"] = known["items/out"][:, : start["items/out"].shape[1]]
    return {**known, POPULARITY: popularity}


# --- what it costs ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({}, 1.0),
        ({"stage1_cohort": 12}, 0.25),
        # With all people in the cohort, replacing one moves the Gaussian's mean by 2.
        ({"sampling": "fixed"}, 1.0),
        ({"epsilon": 0.5}, 1.0),
    ],
)
@EACH_WAY
def test_a_run_costs_what_one_accountant_says_of_all_sums(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: Way,
    settings: dict[str, Any],
    share: float,
) -> None:
    if way is THREE:  # Else this budget would need thousands of people for moments.
        monkeypatch.setattr(public, "fewest_per_noise", lambda n_items: (0.0, 0.0))
    wanted = {**TINY, **settings}
    run = privrec.train("dp-privrec-plus", way.data(), out=tmp_path / "run", **wanted)
    lines = read_ledger(run.folder)
    assert [(line.round, line.stage) for line in lines] == list(enumerate(way.stages))
    assert {line.mechanism for line in lines} == {"gaussian"}
    law = settings.get("sampling", "poisson")
    cohort = Sampling(law=law, users=USERS, cohort=round(share * USERS))
    assert [line.sampling for line in lines] == [cohort] * len(way.stages)
    reach = 2 if law == "fixed" else 1
    assert all(line.noise_scale == reach * line.noise_multiplier for line in lines)
    losses = [
        pld.from_gaussian_mechanism(line.noise_multiplier, sampling_prob=share) for line in lines
    ]
    together = reduce(lambda one, other: one.compose(other), losses)
    found, target = run.privacy(), settings.get("epsilon", BUDGET)
    assert found.epsilon == pytest.approx(together.get_epsilon_for_delta(DELTA), rel=0.01)
    assert 0.98 * target < (found.epsilon or 0) <= target


@pytest.mark.slow
@EACH_WAY
def test_given_noise_is_split_between_the_sums(tmp_path: Path, way: Way) -> None:
    """Precisions add: all sums together are one release of the noise that was given."""
    run = privrec.train("dp-privrec-plus", way.data(), out=tmp_path / "run", **way.given)
    lines = read_ledger(run.folder)
    assert [line.stage for line in lines] == way.stages
    precisions = np.array([line.noise_multiplier for line in lines]) ** -2
    assert precisions.sum() == pytest.approx(way.noise**-2)
    np.testing.assert_allclose(precisions, np.array(way.shares) / way.noise**2)
    together = pld.from_gaussian_mechanism(way.noise).get_epsilon_for_delta(DELTA)
    assert run.privacy().epsilon == pytest.approx(together, rel=0.01)


@pytest.mark.slow
@given(people=st.integers(1, 3000), noise=st.floats(0, 20), more=st.floats(1, 10))
def test_the_fewer_people_per_noise_the_more_goes_to_popularity(
    people: int, noise: float, more: float
) -> None:
    found = popularity_share(people, ITEMS, noise)
    assert 0.05 <= found <= 0.5
    assert popularity_share(math.ceil(people * more), ITEMS, noise) <= found
    assert popularity_share(people, ITEMS, noise * more) >= found
    assert popularity_share(1000, 100, 5.0) == pytest.approx(12 * math.log(100) * 5 / 1000)


def test_a_smaller_cohort_asks_fewer_people(tmp_path: Path, federation: Federation) -> None:
    settings: dict[str, Any] = {**GIVEN, "stage1_cohort": 12, "noise": "seeded"}
    runs = [train(tmp_path / f"{seed}", **settings, seed=seed) for seed in range(6)]
    drawn = np.ravel([clients_of(run) for run in runs])
    assert len(set(drawn.tolist())) > 3  # A binomial number of them, anew for each sum.
    assert 8 < drawn.mean() < 16
    population, asked = watched(federation)
    settings |= {"sampling": "fixed", "out": tmp_path / "fixed"}
    run = privrec.train("dp-privrec-plus", population, **settings)
    assert clients_of(run) == [12, 12]
    assert [len(people) for people in asked] == [12, 12]
    assert asked[0] != asked[1]
    settings |= {"noise_multiplier": 0.01, "out": tmp_path / "three"}
    asked.clear()
    assert clients_of(privrec.train("dp-privrec-plus", population, **settings)) == [12] * 3
    assert [len(people) for people in asked] == [12] * 3
    assert len({frozenset(people) for people in asked}) == 3


# --- what is published -----------------------------------------------------------------------


def stages_of(federation: Federation, **settings: Any) -> tuple[Stage, ...]:
    return prepare(configure("dp-privrec-plus", DATA, settings), federation).stages()


def publishing(patch: pytest.MonkeyPatch, instead: Callable[[Totals, Real], Totals]) -> None:
    """Publish every sum by `instead(total, publish)`."""
    real = Aggregator.publish

    def publish(self: Aggregator, total: Totals, clip_norm: float, noise: NoiseSource) -> Totals:
        return instead(total, lambda: real(self, total, clip_norm, noise))

    patch.setattr(Aggregator, "publish", publish)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Published:
    """Each sum before noise, and what was published of it."""
    seen: Published = []

    def keep(total: Totals, publish: Real) -> Totals:
        seen.append((total, publish()))
        return seen[-1][1]

    publishing(monkeypatch, keep)
    return seen


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@EACH_WAY
def test_all_sums_get_the_noise_that_is_counted(
    published: Published, way: Way, sampling: str
) -> None:
    """Each compared with the sum before its noise, over 200 draws of the noise."""
    data, count = way.data(), len(way.stages)
    stages = stages_of(data, **way.given, sampling=sampling)
    assert [stage.name for stage in stages] == way.stages
    starts = [stage.start(known_for(stage, jnp.ones(ITEMS))) for stage in stages]
    sums: dict[str, CohortTotal] = {}  # Each is added up once: only its noise is drawn anew.

    def run(phase: Phase, *rest: Any) -> CohortTotal:
        if phase.name not in sums:
            sums[phase.name] = fastest(phase, *rest)
        return sums[phase.name]

    for seed in range(200):
        for stage, start in zip(stages, starts, strict=True):
            assert isinstance(stage, Phase)
            told = replace(stage, absorb=lambda state, published: state)
            round_of(data, told, start, Unwritten(seed), run)
    for place, (name, part) in enumerate(zip(way.sums, way.shares, strict=True)):
        truth, *rest = (
            np.asarray(before[name], np.float64) for before, _ in published[place::count]
        )
        assert all((truth == other).all() for other in rest)
        found = [np.asarray(after[name], np.float64) for _, after in published[place::count]]
        errors = np.array(found) - truth
        scale = way.noise / math.sqrt(part) * (2 if sampling == "fixed" else 1)
        # The alignments are two numbers: 400 of them have their deviation within 3.5 %.
        assert errors.std() == pytest.approx(scale, rel=max(0.03, 4 / math.sqrt(2 * errors.size)))
        assert stats.kstest(errors.ravel() / scale, "norm").pvalue > 1e-4
        assert np.abs(errors.mean(0)).max() < 5 * scale / math.sqrt(200)


def changed(federation: Federation, people: IntArray, change: Change) -> Federation:
    """Return the population in which the lines of these people are changed."""

    def take(positions: IntArray) -> Clients:
        clients = federation.take(positions)
        return change(clients, np.isin(clients.ids, people)[clients.owner])

    return replace(federation, take=take)


def gone(clients: Clients, theirs: BoolArray) -> Clients:
    return clients.keep(~theirs)


def others(clients: Clients, theirs: BoolArray) -> Clients:
    item = np.where(theirs, ITEMS - 1 - clients.item, clients.item)
    return replace(clients, item=item, liked=clients.liked ^ theirs)


@pytest.mark.parametrize(("change", "most"), [(gone, 1.0), (others, 2.0)])
@EACH_WAY
def test_one_person_moves_any_sum_by_no_more_than_is_counted(
    published: Published, way: Way, change: Change, most: float
) -> None:
    """Each sum given what those before published, as the accountant composes them."""
    people = split_clients(np.arange(60), seed=0, validation_share=0).train[:8]
    moved = []
    for somebody in [people[:0], *np.split(people, 8)]:
        data = changed(way.data(), somebody, change)
        for stage in stages_of(data, **way.given):
            before = known_for(stage, jnp.arange(ITEMS) * 0.3)
            round_of(data, stage, stage.start(before))
        moved.append([total for total, _ in published[-len(way.stages) :]])
    for place, name in enumerate(way.sums):
        truth, *rest = (np.asarray(totals[place][name], np.float64) for totals in moved)
        distances = [np.linalg.norm(truth - other) for other in rest]
        assert 0.1 < max(distances) <= most + 1e-6


@EACH_WAY
def test_all_of_the_model_comes_from_what_was_published(
    tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two populations whose sums were published as the same numbers have the same model."""

    def constant(total: Totals, publish: Real) -> Totals:
        draw = np.random.default_rng(0)
        return {name: 9 * np.abs(draw.normal(size=np.shape(total[name]))) for name in total}

    publishing(monkeypatch, constant)
    population = changed(way.data(), np.arange(60), others)
    found = [
        privrec.train("dp-privrec-plus", data, out=tmp_path / name, **way.given).folder
        for name, data in (("one", way.data()), ("other", population))
    ]
    assert found[0].params_path.read_bytes() == found[1].params_path.read_bytes()
    assert np.abs(records.read_arrays(found[0].params_path)["history/like"]).max() > 0


USES = {
    POPULAR: ["bias_of"],
    ALIGNMENTS: ["trust_of", "basis_of"],
    MOMENTS: ["noisy_tower", "learned_from"],
}
"""The functions that use each sum, in the recipe."""


@pytest.mark.parametrize("noise", ["secure", "seeded"])
@EACH_WAY
def test_no_sum_is_used_before_its_release_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way, noise: str
) -> None:
    folder = records.RunFolder(path=tmp_path / "run")
    releases = dict[str, list[int]]()

    def watch(stage: str, name: str) -> None:
        use = getattr(plus, name)

        def used(*arguments: Any, **options: Any) -> Any:
            releases.setdefault(stage, []).append(len(read_ledger(folder)))
            return use(*arguments, **options)

        monkeypatch.setattr(plus, name, used)

    for stage, names in USES.items():
        for name in names:
            watch(stage, name)
    privrec.train("dp-privrec-plus", way.data(), out=folder.path, **way.given, noise=noise)
    assert sorted(releases) == sorted(way.stages)
    for place, stage in enumerate(way.stages):
        assert min(releases[stage]) == place + 1
    assert releases[POPULAR] == [1, len(way.stages)]  # Popularity is used again at the end.


# --- wrong settings --------------------------------------------------------------------------


GAUSSIAN = "`mechanism` must be 'gaussian'; got 'laplace'"
RANK = "`history_rank` must be > 0 for more than 30 items (`history_items`); got 0 with 40 items"


@pytest.mark.parametrize(
    ("recipe", "settings", "said"),
    [
        ("dp-privrec-plus", {"mechanism": "laplace"}, GAUSSIAN),
        ("dp-privrec-plus", {"mechanism": "none"}, "`mechanism` must be 'gaussian'; got 'none'"),
        ("dp-privrec-plus", {"history_rank": 8}, "unknown key 'history_rank' for dp-privrec-plus"),
        ("dp-privrec-plus", {"stage1": "private"}, "unknown key 'stage1' for dp-privrec-plus"),
        ("privrec-plus", {"stage1": "paper"}, "unknown key 'stage1' for privrec-plus"),
        ("privrec-plus", {"history_rank": 0, "history_items": 30, "history": "closed-form"}, RANK),
        ("dp-privrec-plus", {"clip_quantile": 0.5}, "`clip_quantile` is for rounds of training"),
        (
            "dp-privrec-plus",
            {"noise_multiplier": 0.5, "epsilon": 0.5},
            "epsilon 0.5 affords no round: one round with noise_multiplier",
        ),
    ],
)
def test_a_wrong_wish_is_one_clear_line(
    tmp_path: Path, recipe: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        privrec.train(recipe, DATA, out=tmp_path / "run", **settings)
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_config_of_before_has_keys_that_noise_ignored() -> None:
    """A run folder and `--config` may have them; `--set` may not."""
    config = configure("dp-privrec-plus", DATA, {})
    before = {"patience": 0, "history_rank": 128, "subspace_rounds": 6, "dislike_target": 0.6}
    whole = {**before, **config.model_dump(exclude_none=True)}
    assert settings_of(whole) == config
    assert configure("dp-privrec-plus", DATA, whole) == config
    assert not before.keys() & type(config).model_fields.keys()


# --- who is asked, and what is learned -------------------------------------------------------


def watched(federation: Federation) -> tuple[Federation, list[set[int]]]:
    """Return the population, and the sets of people whose data is requested, one per request."""
    asked: list[set[int]] = []

    def take(positions: IntArray) -> Clients:
        asked.append({int(position) for position in positions})
        return federation.take(positions)

    return replace(federation, take=take), asked


@BOTH
def test_nothing_of_a_test_person_is_taken_in_training(
    tmp_path: Path, federation: Federation, recipe: str, settings: dict[str, Any]
) -> None:
    split = split_clients(np.arange(60), seed=3, validation_share=0.1)
    population, asked = watched(federation)
    wanted = {**settings, "seed": 3, "validation_share": 0.1, "validate_every": 0}
    wanted["noise"] = "seeded"
    run = privrec.train(recipe, population, out=tmp_path / "run", **wanted)
    sums = 3 if settings is WITH_MOMENTS else 2
    # Who chooses settings first looks at people who may be looked at.
    assert not set().union(*asked) & set(split.test.tolist())
    assert asked[-sums:] == [set(split.train.tolist())] * sums
    # Random data for the other people changes nothing; for the training people it does.
    rest = np.concatenate([split.test, split.validation])
    for people, is_same in ((rest, True), (split.train[:1], False)):
        spoilt = changed(federation, people, others)
        again = privrec.train(recipe, spoilt, out=tmp_path / f"{is_same}", **wanted)
        params = again.folder.params_path.read_bytes()
        assert (params == run.folder.params_path.read_bytes()) == is_same


@BOTH
def test_a_newcomer_who_likes_nothing_is_shown_what_is_popular(
    tmp_path: Path, recipe: str, settings: dict[str, Any]
) -> None:
    run = privrec.train(recipe, DATA, out=tmp_path / "run", **settings)
    popularity = np.asarray(load_params(run.folder)[POPULARITY])
    assert np.ptp(popularity) > 1
    best = np.argsort(-popularity, kind="stable")[:5]
    shown = [one.item for one in run.device(likes=[]).recommend(5)]
    assert shown == [run.catalogue.item_ids[item] for item in best]
    liking = run.device(likes=["i1", "i2"], dislikes=["i3"])
    assert len({one.item for one in liking.recommend(5)}) == 5


@pytest.mark.slow
def test_with_few_items_less_noise_is_not_worse() -> None:
    """A ridge that is too small made each item its own neighbour as soon as noise was small."""
    few = "synthetic:users=2000,items=100,longest=40"
    hits = [
        privrec.train("dp-privrec-plus", few, epsilon=epsilon, seed=0, noise="seeded")
        .evaluate(references=["popularity"])
        .hits[10]
        for epsilon in (4, 64)
    ]
    assert hits[1] > hits[0] - 0.02
