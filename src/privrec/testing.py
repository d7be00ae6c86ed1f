"""The tests that every recipe must pass, also recipes of other packages.

    from privrec.testing import RecipeContract

    class TestMine(RecipeContract):
        recipe = "mine"  # a name of the table, or a `Recipe`

pytest finds the tests of such a class. docs/extending.md explains them.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import polars as pl

from privrec.algorithms.recipe import Plan, Recipe
from privrec.algorithms.recipes import RECIPES, configure, prepare, recipe_named
from privrec.attacks.trial import odd_people
from privrec.core.bound import bounded
from privrec.core.contribution import (
    from_bytes,
    length,
    shapes_of,
    to_bytes,
    told_from_bytes,
    told_to_bytes,
)
from privrec.core.phase import Cohort, Exchange, Phase, ServerState, Told, Unwritten
from privrec.core.round import Surroundings, cohort_draw, fastest, one_by_one, play_stage_round
from privrec.data.clients import Clients, joined
from privrec.data.federation import Federation
from privrec.data.manifest import Manifest
from privrec.data.schema import Bag
from privrec.data.sources import load
from privrec.data.tables import Tables, to_federation
from privrec.errors import SettingsError, WireError
from privrec.privacy.aggregate import Aggregator, Published
from privrec.privacy.release import NoiseSource
from privrec.runs import loop
from privrec.runs.run import Run
from privrec.types import F64, IntArray, Leaf

DATA = "synthetic:users=60,items=40,longest=20"
PEOPLE = 8
SMALL: dict[str, object] = {
    "rounds": 2,
    "cohort": PEOPLE,
    "stage1_rounds": 1,
    "stage1_cohort": PEOPLE,
    "validate_every": 0,
    "local_epochs": 1,
    "batch_size": 64,
    "group": 4,
    "negatives": 1,
    "adapt_negatives": 1,
    "adapt_epochs": 1,
    "embedding_size": 4,
    "tower_size": 4,
    "hidden": [4],
    "views": 4,
    "view_window": 6,
    "view_segment": 2,
    "view_negatives": 4,
    "view_others": 1,
    "history_rank": 4,
    "subspace_rank": 4,
    "subspace_rounds": 2,
    "second_rank": 4,
    "second_sweeps": 1,
    "rank": 4,
    "targets": 8,
    "graph_items": 16,
    "pseudo_items": 4,
    "neighbours": 2,
}
NOISED: dict[str, object] = {
    "noise": "seeded",
    "noise_multiplier": 1e-3,
    "stage1": "private",
    "force_delta": True,
    "neighbours": 0,
}


LEARNING: dict[str, object] = {
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
    "second_rank": 8,
    "second_sweeps": 3,
    "rank": 2,
    "validation_share": 0.0,
    "local_noise": 0.02,
}


# --- settings --------------------------------------------------------------------------------


def own(recipe: str, values: Mapping[str, object]) -> dict[str, Any]:
    """Return the values whose keys are settings of the recipe."""
    keys = recipe_named(recipe).settings.model_fields
    return {key: value for key, value in values.items() if key in keys}


def small(recipe: str, **more: Any) -> dict[str, Any]:
    """Return settings with which any recipe trains fast.

    The noise is tiny. A recipe without noise by default has none here either.
    """
    usual = recipe_named(recipe).values
    values = {**SMALL, **(NOISED if usual.get("mechanism") else {}), **more}
    if usual.get("history") == "subspace":
        values["rounds"] = 0  # Later rounds need the finished subspace, not one round of it.
    return own(recipe, values)


def noised(recipe: str, **more: Any) -> dict[str, Any]:
    """Return settings as `small`, with noise on every sum; {} if the recipe cannot have noise."""
    known = recipe_named(recipe)
    if "mechanism" not in known.settings.model_fields:
        return {}
    settings = small(recipe, **{**NOISED, **more})
    return {"mechanism": "gaussian", **known.values, **settings, "epsilon": None}


# --- the phases of a recipe ------------------------------------------------------------------


class Place(NamedTuple):
    """A phase of a recipe, its first state, and the arrays that devices get in that state."""

    phase: Phase
    state: ServerState
    told: Told


def phases_of(prepared: Plan) -> Iterator[Place]:
    """Yield the phases of a run, after one round of each earlier stage.

    A recipe that is trained on all data in one place has no phases.
    """
    params = None
    for stage in prepared.stages():
        if not isinstance(stage, Phase | Exchange):
            return
        state = stage.start(params)
        if isinstance(stage, Phase):
            yield Place(stage, state, stage.tell(state))
        around = Surroundings(
            take=prepared.task.federation.take,
            run=fastest,
            draw=cohort_draw(0, secret=False),
            journal=Unwritten(),
        )
        params = play_stage_round(stage, state, around)[0].params


@cache
def _people() -> Federation:
    return load(DATA)


@cache
def _phases(recipe: str, settings: str) -> tuple[Place, ...]:
    """Return the phases of a recipe; `settings` is JSON, because `cache` cannot hash a mapping."""
    return tuple(phases_of(prepare(configure(recipe, DATA, json.loads(settings)), _people())))


@cache
def _run(recipe: str, settings: str) -> Run:
    """Return a finished run, which all tests share."""
    return loop.train(recipe, _people(), **json.loads(settings))


def _device_scales(phase: Phase) -> bool:
    """Return whether a device scales its contribution to length 1; the kernel needs no bound."""
    is_noised = phase.release.mechanism != "none"
    return phase.name in ("popularity", "moments", *(["subspace"] if is_noised else []))


def sums(found: Any) -> dict[str, F64]:
    """Return a cohort's sums by name, in 64 bits."""
    return {name: np.asarray(leaf, np.float64) for name, leaf in found.update.items()}


def expected_cohort(place: Place, data: Federation) -> Cohort:
    """Return a cohort: the first `PEOPLE` people of the phase."""
    return Cohort(place.phase.population[:PEOPLE], data.take)


def arrays_of(clients: Clients) -> dict[str, Leaf]:
    """Return copies of all arrays of the clients, by name."""
    bags = {**clients.features, **clients.context}
    names = ("item", "value", "liked", "time", "offsets", "ids")
    found = {name: np.array(getattr(clients, name)) for name in names}
    found |= {f"{name}/{k}": np.array(bag[k]) for name, bag in bags.items() for k in (0, 1)}
    return found


HOSTILE = (
    "without lines",
    "who likes every item",
    "of one item in all lines, liked and disliked",
    "of huge numbers",
    "of no numbers",
)


def hostile(person: Clients, kind: str, n_items: int) -> Clients:
    """Return the client with hostile data of this kind, one of `HOSTILE`."""
    if kind != "of no numbers":
        return odd_people(person, np.arange(n_items))[kind]
    features = {
        name: bag._replace(weights=np.full_like(bag.weights, np.nan))
        for name, bag in person.features.items()
    }
    return replace(person, features=features)


def with_garbage(data: Federation, people: IntArray) -> Federation:
    """Return the population with other items, likes, values and features for these people."""
    return replace(data, take=partial(_spoilt, data, data.ids(people)))


def _spoilt(data: Federation, ids: IntArray, positions: IntArray) -> Clients:
    """Return the data of the people at `positions`; those with one of these ids have garbage."""
    clients = data.take(positions)
    spoilt = np.isin(clients.ids, ids)
    lines = spoilt[clients.owner]
    return replace(
        clients,
        item=np.where(lines, data.n_items - 1 - clients.item, clients.item),
        value=np.where(lines, np.float32(1e6), clients.value),
        liked=np.where(lines, ~clients.liked, clients.liked),
        features={
            name: Bag(bag.codes, np.where(spoilt[:, None], np.float32(1e6), bag.weights))
            for name, bag in clients.features.items()
        },
    )


def toy(lines: list[tuple[int, int, float]], *, n_items: int, side: bool = False) -> Federation:
    """Return a population from lines (person, item, stars); more than 3 stars are a like.

    With `side`, people have a feature: whether their number is even or odd.
    """
    people = sorted({person for person, _, _ in lines})
    return to_federation(
        Tables(
            manifest=Manifest(name="toy", value="stars", positive_above=3.0),
            interactions=pl.DataFrame(
                lines,
                schema={"user": pl.Int64, "item": pl.Int64, "stars": pl.Float64},
                orient="row",
            ),
            users=pl.DataFrame(
                {"id": people, **({"side": [f"{k % 2}" for k in people]} if side else {})}
            ),
            items=pl.DataFrame({"id": list(range(n_items))}),
        )
    )


def checkerboard(*, side: bool = False) -> Federation:
    """Return 120 people; each likes 14 of the 20 items that are even or odd like the person.

    `side` is as in `toy`.
    """
    draw = np.random.default_rng(0)
    lines = [
        (person, int(2 * item + person % 2), 5.0)
        for person in range(120)
        for item in draw.choice(20, 14, replace=False)
    ]
    return toy(lines, n_items=40, side=side)


# --- the contract ----------------------------------------------------------------------------


class _Stopped(BaseException):
    """Raised by a test to stop a training, as a kill would."""


def _stop_after_one_round(what: str, done: int, total: int) -> None:
    if what.startswith("rounds") and done == 1:
        raise _Stopped


@dataclass
class _Watched:
    """A population that records whose data is read."""

    data: Federation
    asked: list[IntArray]

    def take(self, positions: IntArray) -> Clients:
        self.asked.append(positions)
        return self.data.take(positions)


class RecipeContract:
    """The tests of a recipe. To test your own recipe, inherit from this class.

    `recipe` is a name that `privrec recipes` lists, or a `Recipe`. `settings` has values of its
    keys with which it trains fast. `learning` has values with which it learns from 120 people. If
    the recipe ranks the same for everybody, set `same_for_all = True`.
    """

    recipe: str | Recipe
    settings: Mapping[str, object] = {}
    learning: Mapping[str, object] = {}
    same_for_all: bool = False

    def teardown_method(self) -> None:
        """Remove your own recipe from the table of recipes after a test."""
        if not isinstance(self.recipe, str):
            RECIPES.pop(self._name, None)

    @property
    def _name(self) -> str:
        """The recipe's name in the table of recipes; your own recipe is added to the table."""
        if isinstance(self.recipe, str):
            return self.recipe
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        RECIPES[name] = self.recipe
        return name

    @property
    def _small(self) -> dict[str, Any]:
        return small(self._name, **self.settings)

    @property
    def _noised(self) -> dict[str, Any]:
        return noised(self._name, **self.settings)

    def _phases(self) -> tuple[Place, ...]:
        return _phases(self._name, json.dumps(self._small))

    def _noised_phases(self) -> tuple[Place, ...]:
        return _phases(self._name, json.dumps(self._noised))

    def test_what_runs_a_cohort_gives_what_one_by_one_gives(self) -> None:
        """The kernel returns Σ bound(contribute), and does not change its arguments.

        This also holds in a later round with a smaller bound.
        """
        for place, (number, tighter) in product(self._phases(), [(0, 1.0), (3, 0.3)]):
            phase, cohort = place.phase, expected_cohort(place, _people())
            bound = tighter * place.state.clip_norm
            if bound < 1 and phase.aggregator.clip_quantile is None and _device_scales(phase):
                bound = place.state.clip_norm  # Such a kernel ignores a smaller bound.
            before = {name: np.array(leaf) for name, leaf in place.told.items()}
            slow = one_by_one(phase, place.told, cohort, number, bound)
            fast = fastest(phase, place.told, cohort, number, bound)
            assert (slow.clipped, slow.dropped) == (fast.clipped, fast.dropped)
            assert sums(slow).keys() == sums(fast).keys()
            for name, wanted in sums(slow).items():
                size = np.abs(wanted).max(initial=1e-6)
                np.testing.assert_allclose(
                    sums(fast)[name], wanted, rtol=1e-3, atol=2e-5 * size, err_msg=name
                )
            for name, leaf in before.items():
                np.testing.assert_array_equal(np.asarray(place.told[name]), leaf)

    def test_a_device_changes_nothing_that_it_is_given(self) -> None:
        """`contribute` returns the same bytes again, and changes none of the person's arrays."""
        for place in self._phases():
            person = _people().take(place.phase.population[:1])
            before = arrays_of(person)
            first, again = (place.phase.device.contribute(place.told, person, 0) for _ in range(2))
            for name, array in arrays_of(person).items():
                np.testing.assert_array_equal(array, before[name])
            assert to_bytes(first) == to_bytes(again)

    def test_the_order_of_a_cohort_does_not_matter(self) -> None:
        """A cohort in reverse order gives the same sums."""
        for place in self._phases():
            people, bound = expected_cohort(place, _people()).people, place.state.clip_norm
            here, there = (
                sums(fastest(place.phase, place.told, Cohort(order, _people().take), 0, bound))
                for order in (people, people[::-1])
            )
            for name, array in here.items():
                size = np.abs(array).max(initial=1e-6)
                np.testing.assert_allclose(there[name], array, rtol=1e-4, atol=1e-6 * size)

    def test_nobody_adds_up_to_zero(self) -> None:
        """Poisson sampling may draw nobody: then all sums are zeros of the usual shapes."""
        for place in self._phases():
            none = Cohort(place.phase.population[:0], _people().take)
            bound = place.state.clip_norm
            usual = fastest(place.phase, place.told, expected_cohort(place, _people()), 0, bound)
            shapes = {name: array.shape for name, array in sums(usual).items()}
            for run in (one_by_one, fastest):
                empty = sums(run(place.phase, place.told, none, 0, bound))
                assert {name: array.shape for name, array in empty.items()} == shapes
                assert not any(array.any() for array in empty.values())

    def test_a_hostile_person_moves_a_noised_sum_by_no_more_than_the_bound(self) -> None:
        """This holds for all kinds of `HOSTILE` data. Without noise, a recipe must be central."""
        if not self._noised:
            assert recipe_named(self._name).server_sees == "everything"
            return
        for place, kind in product(self._noised_phases(), HOSTILE):
            _check_hostile(place, kind)

    def test_under_laplace_noise_nobody_adds_more_than_the_l1_bound(self) -> None:
        """Also for recipes with Gaussian noise by default; others must refuse Laplace noise."""
        if not self._noised:
            return
        settings = {**self._noised, "mechanism": "laplace"}
        try:
            prepared = prepare(configure(self._name, DATA, settings), _people())
            stages = prepared.stages()
        except SettingsError as error:
            assert "gaussian" in str(error).lower()  # noqa: PT017  (some recipes accept it)
            return
        for place in phases_of(prepared):
            assert place.phase.aggregator.norm == "l1"
            assert place.phase in stages
            for position in place.phase.population[:4]:
                alone = Cohort(np.array([position]), _people().take)
                total = sums(fastest(place.phase, place.told, alone, 0, 0.01))
                assert sum(np.abs(leaf).sum() for leaf in total.values()) <= 0.01 * (1 + 1e-4)

    def test_what_goes_over_the_wire_comes_back(self) -> None:
        """A message survives the conversion to bytes; cut or unexpected bytes are refused."""
        for place in self._phases():
            for name, leaf in told_from_bytes(told_to_bytes(place.told)).items():
                np.testing.assert_array_equal(leaf, np.asarray(place.told[name]))
            person = _people().take(place.phase.population[:1])
            sent = place.phase.device.contribute(place.told, person, 0)
            content, usual = to_bytes(sent), shapes_of(sent)
            assert usual is not None
            assert to_bytes(from_bytes(content, usual)) == content
            for cut in (0, 7, len(content) // 2):
                assert _is_refused(content[:cut], usual)
            assert _is_refused(content, {**usual, "one more": ("dense", (1,))})

    def test_only_devices_see_data(self) -> None:
        """The server's half reads nobody's data, and a device reads only its own person's data."""
        data = _people()
        watched = _Watched(data, [])
        population = replace(data, take=watched.take)
        for place in self._phases():
            phase, state, told = place
            prepared = prepare(configure(self._name, DATA, self._small), population)
            (same,) = (stage for stage in prepared.stages() if stage.name == phase.name)
            assert isinstance(same, Phase)
            watched.asked.clear()
            same.start(None if state.round_index == 0 else state.params)
            same.tell(state)
            same.device.contribute(told, data.take(phase.population[:1]), 0)
            total = fastest(phase, told, expected_cohort(place, data), 0, 1.0)
            same.absorb(state, Published(dict(total.update), 1.0))
            assert not watched.asked

    def test_what_is_published_has_the_noise_that_is_counted(self) -> None:
        """If all random numbers are 1, each number of a sum grows by the scale in the ledger."""
        if not self._noised:
            return  # A central recipe publishes no sum.
        for phase, state, told in self._noised_phases():
            assert type(phase.aggregator) is Aggregator
            cohort = Cohort(phase.population[:4], _people().take)
            total = fastest(phase, told, cohort, 0, state.clip_norm)
            ones = NoiseSource(normal=np.ones, laplace=np.ones)
            published = phase.aggregator.publish_round(total, state.clip_norm, ones)
            scale = phase.release.noise_multiplier * phase.release.sampling.reach * state.clip_norm
            for name, before in sums(total).items():
                moved = np.asarray(published.update[name], np.float64) - before
                np.testing.assert_allclose(moved, scale, rtol=0.01, atol=1e-6)

    def test_garbage_in_the_test_peoples_data_changes_nothing(self, tmp_path: Path) -> None:
        """The parameters do not depend on the data of the test people."""
        run = _run(self._name, json.dumps(self._small))
        test = prepare(configure(self._name, DATA, self._small), _people()).task.split.test
        assert len(test) > 0
        spoilt = with_garbage(_people(), test)
        other = loop.train(self._name, spoilt, out=tmp_path / "other", **self._small)
        assert other.folder.params_path.read_bytes() == run.folder.params_path.read_bytes()

    def test_a_stopped_run_goes_on_to_the_same_bytes(self, tmp_path: Path) -> None:
        """A run that is stopped after its first round and resumed has the same files at the end."""
        run = _run(self._name, json.dumps(self._small))
        place, stopped = tmp_path / "stopped", False
        with patch.object(loop, "CHECKPOINT_SECONDS", -1.0):
            try:
                loop.train(
                    self._name,
                    _people(),
                    out=place,
                    on_progress=_stop_after_one_round,
                    **self._small,
                )
            except _Stopped:
                stopped = True
            assert stopped
            again = loop.train(self._name, _people(), out=place, resume=True)
        assert again.folder.params_path.read_bytes() == run.folder.params_path.read_bytes()
        assert again.folder.ledger_path.read_bytes() == run.folder.ledger_path.read_bytes()

    def test_it_learns_the_checkerboard(self, tmp_path: Path) -> None:
        """Even people like even items, odd people odd items.

        A person likes 14 of 20 items of her kind, so only 6 others can rank above a held-out like.
        Networks that are trained in one place learn the kind from the feature `side`.
        """
        settings = {**self._small, **own(self._name, LEARNING), **self.learning}
        run = loop.train(self._name, checkerboard(side=True), out=tmp_path / "run", **settings)
        hits = run.evaluate().hits[10]
        assert hits < 0.6 if self.same_for_all else hits > 0.8


def _check_hostile(place: Place, kind: str) -> None:
    """Check that a person with hostile data of this kind moves the sum by at most the bound."""
    phase, told, bound = place.phase, place.told, place.state.clip_norm
    assert phase.release.is_private
    data, norm = _people(), phase.aggregator.norm
    people = expected_cohort(place, data).people
    odd = hostile(data.take(people[:1]), kind, data.n_items)
    with np.errstate(all="ignore"):
        without = sums(fastest(phase, told, Cohort(people[1:], data.take), 0, bound))
        company = joined([odd, data.take(people[1:])])
        with_her = sums(
            fastest(phase, told, Cohort(np.arange(len(people)), company.take), 0, bound)
        )
        sent = phase.device.contribute(told, odd, 0)
        usual = shapes_of(phase.device.contribute(told, data.take(people[1:2]), 0))
        assert usual is not None
        alone = bounded(sent, bound, norm, expected=usual)
    moved = np.concatenate([np.ravel(with_her[name] - without[name]) for name in without])
    rounding = 1e-4 * bound
    assert np.linalg.norm(moved, 1 if norm == "l1" else 2) <= bound + rounding, kind
    assert length(alone.contribution, norm) <= bound, kind


def _is_refused(content: bytes, usual: Any) -> bool:
    try:
        from_bytes(content, usual)
    except WireError:
        return True
    return False
