"""What every recipe of the table must hold, now and later: a new row is tested by being there.

The example recipe is tested like any other, so it is in the table while these tests run.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from contract import (
    HOSTILE,
    Place,
    arrays_of,
    expected_cohort,
    hostile,
    is_sum,
    joined,
    noised,
    parts_of,
    placed,
    places,
    small,
    sums,
    with_garbage,
)
from privrec.algorithms.recipes import RECIPES, configure, prepare
from privrec.core.contribution import (
    bounded,
    from_bytes,
    length,
    shapes_of,
    to_bytes,
    told_from_bytes,
    told_to_bytes,
)
from privrec.core.phase import Cohort, Phase
from privrec.core.round import fastest, one_by_one
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.errors import SettingsError, WireError
from privrec.privacy.aggregate import Aggregator, Published
from privrec.privacy.release import NoiseSource
from privrec.runs import loop
from privrec.types import IntArray
from stops import Stopped
from subspace import SUBSPACE
from tiny import DATA, own
from toys import checkerboard

PLUS_IN_SUBSPACE = "dp-privrec-plus in a subspace"
NAMES = [*RECIPES, "subspace", PLUS_IN_SUBSPACE]
EVERY = pytest.mark.parametrize("recipe", NAMES)
THE_SAME_FOR_ALL = {"popularity", "own-items"}
"""These recommend the same new items to everybody, and say so in their summary."""


@pytest.fixture(scope="module", autouse=True)
def _example_in_the_table() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "subspace", SUBSPACE)
        plus = RECIPES["dp-privrec-plus"]
        values = {**plus.values, "history": "subspace"}
        patch.setitem(RECIPES, PLUS_IN_SUBSPACE, replace(plus, values=values))
        yield


@pytest.fixture(scope="module")
def data() -> Federation:
    return privrec.load(DATA)


@EVERY
def test_what_runs_a_cohort_gives_what_one_by_one_gives(recipe: str, data: Federation) -> None:
    """The kernel is Σ bound(contribute); and neither changes what it is given.

    In a later round, too, and under another bound than the first.
    """
    for place, (number, tighter) in product(places(recipe, data), [(0, 1.0), (3, 0.3)]):
        cohort = expected_cohort(place, data)
        bound = tighter * place.state.clip_norm
        if bound < 1 and place.phase.aggregator.clip_quantile is None and is_sum(place):
            bound = place.state.clip_norm  # The bound of a sum of its own length is fixed.
        told = {name: np.array(leaf) for name, leaf in place.told.items()}
        slow = one_by_one(place.phase, place.told, cohort, number, bound)
        fast = fastest(place.phase, place.told, cohort, number, bound)
        assert (slow.clipped, slow.dropped) == (fast.clipped, fast.dropped)
        assert sums(slow).keys() == sums(fast).keys()
        for name, wanted in sums(slow).items():
            size = np.abs(wanted).max(initial=1e-6)
            np.testing.assert_allclose(
                sums(fast)[name], wanted, rtol=1e-3, atol=2e-5 * size, err_msg=name
            )
        for name, leaf in told.items():
            np.testing.assert_array_equal(np.asarray(place.told[name]), leaf)


@EVERY
def test_a_device_changes_nothing_that_it_is_given(recipe: str, data: Federation) -> None:
    for place in places(recipe, data):
        person = data.take(place.phase.population[:1])
        before = arrays_of(person)
        first, again = (place.phase.device.contribute(place.told, person, 0) for _ in range(2))
        for name, array in arrays_of(person).items():
            np.testing.assert_array_equal(array, before[name])
        # The same told, person and round give the same.
        assert to_bytes(first) == to_bytes(again)


@EVERY
def test_the_order_of_a_cohort_does_not_matter(recipe: str, data: Federation) -> None:
    for place in places(recipe, data):
        people, bound = expected_cohort(place, data).people, place.state.clip_norm
        here = sums(fastest(place.phase, place.told, Cohort(people, data.take), 0, bound))
        there = sums(fastest(place.phase, place.told, Cohort(people[::-1], data.take), 0, bound))
        for name, array in here.items():
            size = np.abs(array).max(initial=1e-6)
            np.testing.assert_allclose(there[name], array, rtol=1e-4, atol=1e-6 * size)


@EVERY
def test_nobody_adds_up_to_zero(recipe: str, data: Federation) -> None:
    """Poisson sampling may draw nobody; the sum has the usual names and shapes all the same."""
    for place in places(recipe, data):
        none = Cohort(place.phase.population[:0], data.take)
        bound = place.state.clip_norm
        slow, fast = (
            sums(run(place.phase, place.told, none, 0, bound)) for run in (one_by_one, fastest)
        )
        some = sums(fastest(place.phase, place.told, expected_cohort(place, data), 0, bound))
        for found in (slow, fast):
            assert {name: array.shape for name, array in found.items()} == {
                name: array.shape for name, array in some.items()
            }
            assert not any(array.any() for array in found.values())


@EVERY
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_person_moves_a_noised_sum_by_no_more_than_the_bound(
    recipe: str, kind: str, data: Federation
) -> None:
    if not noised(recipe):
        assert RECIPES[recipe].server_sees == "everything"  # It is central and says so.
        return
    for place in places(recipe, data, noisy=True):
        phase, told, bound = place.phase, place.told, place.state.clip_norm
        assert phase.release.is_private
        people, norm = expected_cohort(place, data).people, phase.aggregator.norm

        def take(positions: IntArray, worst: int = int(people[0])) -> Clients:
            found = data.take(positions)
            if worst not in positions:
                return found
            bad = hostile(data.take(np.array([worst])), kind, data.n_items)
            return joined([
                bad if position == worst else data.take(np.array([position]))
                for position in positions
            ])  # fmt: skip

        with np.errstate(all="ignore"):
            without = sums(fastest(phase, told, Cohort(people[1:], data.take), 0, bound))
            with_her = sums(fastest(phase, told, Cohort(people, take), 0, bound))
            person = take(people[:1])
            sent = phase.device.contribute(told, person, 0)
            usual = shapes_of(phase.device.contribute(told, data.take(people[1:2]), 0))
            assert usual is not None
            alone = bounded(sent, bound, norm, expected=usual)
        moved = np.concatenate([np.ravel(with_her[name] - without[name]) for name in without])
        order = 1 if norm == "l1" else 2
        rounding = 1e-4 * bound
        assert np.linalg.norm(moved, order) <= bound + rounding
        assert length(alone.contribution, norm) <= bound


@EVERY
def test_under_laplace_noise_nobody_adds_more_than_the_l1_bound(
    recipe: str, data: Federation
) -> None:
    """Also a recipe whose own noise is another; one that cannot have it says so."""
    settings = {**noised(recipe), "mechanism": "laplace"}
    if not noised(recipe):
        return
    try:
        prepared = prepare(configure(recipe, data.name, settings), data)
        stages = prepared.stages()
    except SettingsError as error:
        assert "aussian" in str(error)  # noqa: PT017  (some recipes accept it)
        return
    for place in placed(prepared):
        phase, told = place.phase, place.told
        assert phase.aggregator.norm == "l1"
        assert phase in stages
        for position in phase.population[:4]:
            alone = Cohort(np.array([position]), data.take)
            total = sums(fastest(phase, told, alone, 0, 0.01))
            assert sum(np.abs(leaf).sum() for leaf in total.values()) <= 0.01 * (1 + 1e-4)


@EVERY
def test_what_goes_over_the_wire_comes_back(recipe: str, data: Federation) -> None:
    for place in places(recipe, data):
        for name, leaf in told_from_bytes(told_to_bytes(place.told)).items():
            np.testing.assert_array_equal(leaf, np.asarray(place.told[name]))
        person = data.take(place.phase.population[:1])
        sent = place.phase.device.contribute(place.told, person, 0)
        content, usual = to_bytes(sent), shapes_of(sent)
        assert usual is not None
        came = parts_of(from_bytes(content, usual))
        assert came.keys() == parts_of(sent).keys()
        for name, leaf in came.items():
            np.testing.assert_array_equal(leaf, np.asarray(parts_of(sent)[name]))
        for cut in (0, 7, len(content) // 2):
            with pytest.raises(WireError):
                from_bytes(content[:cut], usual)
        with pytest.raises(WireError):
            from_bytes(content, {**usual, "one more": ("dense", (1,))})


@EVERY
def test_only_devices_see_data(recipe: str, data: Federation) -> None:
    """What the server does reads nobody's data, and a device reads its own person's alone."""
    asked: list[IntArray] = []

    def take(positions: IntArray) -> Clients:
        asked.append(positions)
        return data.take(positions)

    watched = replace(data, take=take)
    for phase, state, told in places(recipe, data):
        prepared = prepare(configure(recipe, data.name, small(recipe)), watched)
        (same,) = (stage for stage in prepared.stages() if stage.name == phase.name)
        assert isinstance(same, Phase)
        asked.clear()
        same.start(None if state.round_index == 0 else state.params)
        same.tell(state)
        same.device.contribute(told, data.take(phase.population[:1]), 0)
        total = fastest(phase, told, expected_cohort(Place(phase, state, told), data), 0, 1.0)
        same.absorb(state, Published(dict(total.update), 1.0))
        assert not asked


@EVERY
def test_what_is_published_has_the_noise_that_is_counted(recipe: str, data: Federation) -> None:
    """Noise of ones moves every number of a sum by the scale in the ledger."""
    if not noised(recipe):
        return  # It is central, and publishes no sum.
    for phase, state, told in places(recipe, data, noisy=True):
        assert type(phase.aggregator) is Aggregator
        assert not phase.volunteers
        cohort = Cohort(phase.population[:4], data.take)
        total = fastest(phase, told, cohort, 0, state.clip_norm)
        ones = NoiseSource(normal=np.ones, laplace=np.ones)
        found = phase.aggregator.publish_round(total, state.clip_norm, ones)
        scale = phase.release.noise_multiplier * phase.release.sampling.reach * state.clip_norm
        for name, before in sums(total).items():
            moved = np.asarray(found.update[name], np.float64) - before
            np.testing.assert_allclose(moved, scale, rtol=0.01, atol=1e-6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: Federation) -> dict[str, privrec.Run]:
    return {}


def trained(
    recipe: str, data: Federation, whole: dict[str, privrec.Run], place: Path
) -> privrec.Run:
    """Return a finished run, the same for all tests."""
    if recipe not in whole:
        whole[recipe] = privrec.train(recipe, data, out=place / "whole", **small(recipe))
    return whole[recipe]


@EVERY
def test_garbage_in_the_test_peoples_data_changes_nothing(
    recipe: str, data: Federation, whole: dict[str, privrec.Run], tmp_path: Path
) -> None:
    run = trained(recipe, data, whole, tmp_path)
    test = prepare(configure(recipe, data.name, small(recipe)), data).split.test
    assert len(test) > 0
    other = privrec.train(recipe, with_garbage(data, test), out=tmp_path / "other", **small(recipe))
    assert other.folder.params_path.read_bytes() == run.folder.params_path.read_bytes()


@EVERY
def test_a_stopped_run_goes_on_to_the_same_bytes(
    recipe: str,
    data: Federation,
    whole: dict[str, privrec.Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped after its first round, and again after it was resumed: before anything more."""
    run = trained(recipe, data, whole, tmp_path)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)

    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("rounds") and done == 1:
            raise Stopped

    place = tmp_path / "stopped"
    with pytest.raises(Stopped):
        privrec.train(recipe, data, out=place, on_progress=stop, **small(recipe))
    again = privrec.train(recipe, data, out=place, resume=True)
    assert again.folder.params_path.read_bytes() == run.folder.params_path.read_bytes()
    assert again.folder.ledger_path.read_bytes() == run.folder.ledger_path.read_bytes()


LEARNING: dict[str, Any] = {
    "rounds": 20,
    "cohort": 30,
    "stage1_rounds": 30,
    "stage1_cohort": 30,
    "sampling": "fixed",
    "local_lr": 0.5,
    "server_lr": 0.03,
    "learning_rate": 0.03,
    "server_optimizer": "adam",
    "negatives": 2,
    "adapt_negatives": 2,
    "adapt_epochs": 2,
    "adapt_lr": 0.5,
    "embedding_size": 8,
    "embedding_scale": 0.3,
    "tower_size": 8,
    "hidden": [8],
    "clip_norm": 10.0,
    "stage1_clip_norm": 10.0,
    "history_rank": 8,
    "rank": 2,
    "validation_share": 0.0,
    "local_noise": 0.02,
}

BY_ADAPTING: dict[str, dict[str, Any]] = {"fofl-self": {"batch_size": 8, "adapt_epochs": 10}}
"""A network that knows nobody's side learns it on the device alone, in more and smaller steps."""


@EVERY
def test_it_learns_the_checkerboard(recipe: str, tmp_path: Path) -> None:
    """Even people like even items, odd people odd ones: a held-out like is never behind place 7.

    Who is even is also a feature: a network that is trained in one place learns from nothing else.
    """
    settings = {**small(recipe), **own(recipe, LEARNING), **BY_ADAPTING.get(recipe, {})}
    run = privrec.train(recipe, checkerboard(side=True), out=tmp_path / "run", **settings)
    hits = run.evaluate().hits[10]
    if recipe in THE_SAME_FOR_ALL:
        assert hits < 0.6
    else:
        assert hits > 0.8
