"""What a curious server reads off one contribution: toys with plain answers, and every recipe."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import privrec
from privrec.algorithms.privrec_plus.sums import SQUARES, TRIANGLE
from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import configure, prepare
from privrec.attacks.server import (
    Items,
    grade,
    items_of,
    made_up,
    read,
    read_off,
    trained_reader,
    upper_kind,
)
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import Phase
from privrec.data.federation import Federation
from privrec.errors import SettingsError
from privrec.runs.documents import Share
from privrec.testing import toy
from tiny import DATA, MODEL, own

NOISE: dict[str, Any] = {"noise": "seeded", "noise_multiplier": 1.0, "force_delta": True}
LINES = [(0, 1, 5.0), (0, 3, 5.0), (0, 0, 1.0), (1, 4, 5.0), (1, 3, 2.0), (2, 2, 5.0), (3, 4, 5.0)]
"""Person 0 likes 1 and 3 and dislikes 0; person 1 likes 4 and dislikes 3; 2 and 3 like one each."""


@pytest.fixture(scope="module")
def data() -> Federation:
    return privrec.load(DATA)


def prepared_of(recipe: str, data: Federation, **more: Any) -> Plan:
    usual = own(recipe, {**MODEL, "validation_share": 0.0, "rounds": 2, "stage1_rounds": 2})
    return prepare(configure(recipe, data.name, {**usual, **more}), data)


def nothing(values: Any) -> Any:
    return np.zeros(len(values), np.bool_)


def reading(sent: Contribution, told: dict[str, Any], *, dislikes: bool = True) -> list[list[int]]:
    found = read(sent, told, 6, dislikes=dislikes, looks_liked=nothing)
    return [ids.tolist() for ids in found]


def test_a_popularity_row_is_the_list_of_her_items() -> None:
    toys = toy(LINES, n_items=6)
    prepared = prepared_of("privrec-plus", toys, test_share=0.01)
    first = read_off(prepared)[0]
    assert first.as_json() == {
        "phase": "popularity",
        "people": len(prepared.task.split.train),
        "items": {"precision": 1.0, "recall": 1.0},
        "likes": {"precision": 1.0, "recall": 1.0},
        "guessing": {"precision": first.guessing.precision},
    }
    assert first.guessing.precision is not None
    assert first.guessing.precision < 1


def test_figures_are_shares_over_all_people_by_hand() -> None:
    def ids(*numbers: int) -> Any:
        return np.array(numbers, np.int64)

    found = [Items(ids(0, 1, 2, 3), ids(0, 1)), Items(ids(4), ids(4))]
    truth = [Items(ids(0, 1), ids(1)), Items(ids(4, 5), ids(5))]
    view = grade("train", found, truth, ids(5, 1, 0))
    assert view.items == Share(precision=3 / 5, recall=3 / 4)
    assert view.likes == Share(precision=1 / 3, recall=1 / 2)
    # The two most liked are 5 and 1, of which the first person likes 1; the second likes 5.
    assert view.guessing.precision == 2 / 3


def test_a_contribution_of_zeros_says_nothing() -> None:
    told = {"kept": np.arange(3), "power": np.ones(3), "common": np.ones(3) / 3**0.5}
    told["items/vectors"] = np.ones((6, 2))
    zeros = Contribution(
        rows={
            "popularity": TouchedRows(np.array([1, 2]), np.zeros(2), 6),
            ITEM_TABLE: TouchedRows(np.array([1, 2]), np.zeros((2, 3)), 6),
        },
        dense={"items/vectors": np.zeros((6, 2))},
        outer={SQUARES: np.zeros(6)},
        triangle={TRIANGLE: np.zeros(3)},
    )
    assert reading(zeros, told) == [[], []]
    view = grade("x", [Items(*map(np.array, reading(zeros, told)))], [Items(*[np.arange(2)] * 2)],
                 np.arange(6))  # fmt: skip
    assert (view.likes, view.guessing.precision) == (Share(precision=None, recall=0.0), None)


def test_rows_of_histories_name_items_by_what_was_asked() -> None:
    told = {"kept": np.array([5, 2, 4])}
    # Likes of the items 5 and 4, a dislike of 2, and one feature.
    sent = Contribution(outer={SQUARES: np.array([0.3, 0, 0.3, 0, 0.1, 0, 0.9])})
    assert reading(sent, told) == [[2, 4, 5], [4, 5]]
    assert reading(sent, told, dislikes=False) == [[4, 5], [4, 5]]


@pytest.mark.parametrize("sign", [1, -1])
def test_popularity_that_was_taken_out_is_put_back(sign: int) -> None:
    power, common = np.array([1.0, 2.0, 0.5, 1.0, 1.5]), np.array([4.0, 3.0, 1.0, 1.0, 1.0])
    common /= np.linalg.norm(common)
    # She likes the first and the third of the five items and dislikes the second.
    row = np.array([1.0, 0.5, 1.0, 0, 0]) * power
    taste = row - (row @ common) * common
    told = {"kept": np.array([3, 0, 1, 2, 5]), "power": power, "common": common}
    sent = Contribution(triangle={TRIANGLE: sign * 0.1 * taste})
    assert reading(sent, told) == [[0, 1, 3], [1, 3]]


@pytest.mark.parametrize(
    ("amounts", "liked"),
    [
        ([], []),
        ([0.2, 0.2], [True, True]),
        ([0.5, 1.0, 0.5], [False, True, False]),
        ([0.5, 1.0, 1.5], [False, True, True]),
        # Once liked, and once liked and once disliked.
        ([1.0, 1.5], [True, True]),
    ],
)
def test_likes_weigh_twice_as_much_as_dislikes(amounts: list[float], liked: list[bool]) -> None:
    assert upper_kind(np.array(amounts)).tolist() == liked


def test_a_reader_learns_the_side_on_which_likes_lie() -> None:
    draw = np.random.default_rng(0)
    direction = np.array([3.0, 0, 0, 0])

    def person(scale: float) -> tuple[Any, Any]:
        liked = draw.random(50) < 0.3
        around = draw.standard_normal((50, 4))
        return scale * (around + np.where(liked[:, None], direction, -direction)), liked

    known = [person(scale) for scale in (1.0, 0.01, 7.0)]
    looks_liked = trained_reader([one for one, _ in known], [liked for _, liked in known])
    values, liked = person(1e-3)
    assert (looks_liked(values) == liked).mean() > 0.95


@pytest.mark.parametrize(
    ("recipe", "exact", "more"),
    [
        ("privrec-plus", True, {}),
        ("dp-privrec-plus", True, NOISE),
        ("dpals", True, NOISE),
        ("fcf", True, {}),
        ("privrec", False, {}),
        ("dp-privrec-one", False, NOISE),
        pytest.param("lm-privrec", False, NOISE, marks=pytest.mark.slow),
        pytest.param("dp-privrec", False, NOISE, marks=pytest.mark.slow),
        pytest.param("nn-self", False, {}, marks=pytest.mark.slow),
        pytest.param("fedgnn", False, {}, marks=pytest.mark.slow),
    ],
)
def test_every_recipe_is_read_off(
    recipe: str, exact: bool, more: dict[str, Any], data: Federation
) -> None:
    prepared = prepared_of(recipe, data, **more)
    views = read_off(prepared, people=15)
    phases = [stage.name for stage in prepared.stages() if isinstance(stage, Phase)]
    assert [view.phase for view in views] == phases
    for view in views:
        assert view.people == 15
        if exact:
            # Nobody's items are named wrongly, in any phase.
            assert (view.items.precision, view.likes.precision) == (1.0, 1.0)
    assert views == read_off(prepared, people=15)
    assert views != read_off(prepared, people=15, seed=1)


@pytest.mark.slow
def test_likes_stand_out_among_negatives() -> None:
    data = privrec.load("synthetic:users=60,items=200,longest=40")
    (view,) = read_off(prepared_of("privrec", data, hidden=[8], embedding_size=8), people=40)
    figures = (
        view.likes.precision,
        view.likes.recall,
        view.items.precision,
        view.guessing.precision,
    )
    precision, recall, touched, guessing = (value or 0.0 for value in figures)
    # Rows are also those of one negative for each like, and of dislikes.
    assert 0.5 < touched < 0.75
    assert (view.items.recall or 0.0) > 0.95
    assert precision > touched + 0.05
    assert precision > 2 * guessing > 0
    assert recall > 0.6


def test_a_reading_does_not_look_at_the_truth(data: Federation) -> None:
    """Devices that send somebody else's contribution: the right names are gone with it."""
    prepared = prepared_of("privrec-plus", data)
    stage, train = prepared.stages()[0], prepared.task.split.train
    assert isinstance(stage, Phase)
    device, everybody = stage.device, data.take(train)
    place = {int(one): k for k, one in enumerate(everybody.ids)}

    def contribute(told: Any, person: Any, round_index: int) -> Contribution:
        if int(person.ids[0]) in place:  # Nobody, and those whom the server invents, are not.
            other = (place[int(person.ids[0])] + 1) % len(train)
            person = everybody.take(np.array([other]))
        return device.contribute(told, person, round_index)

    (right,) = read_off(replace(prepared, stages=lambda: (stage,)), people=40)
    swapped = replace(stage, device=replace(device, contribute=contribute))
    (wrong,) = read_off(replace(prepared, stages=lambda: (swapped,)), people=40)
    assert right.likes.precision == 1.0
    assert wrong.likes.precision is not None
    assert wrong.guessing.precision is not None
    assert wrong.likes.precision < wrong.guessing.precision + 0.05
    assert wrong.guessing.precision < 0.6


def test_the_model_of_a_finished_run_is_used(data: Federation) -> None:
    prepared = prepared_of("fcf", data)
    (stage,) = prepared.stages()
    fresh = stage.start(None).params
    asked: list[Any] = []
    device = stage.device
    assert isinstance(stage, Phase)
    assert device is not None
    given = {name: leaf + 1 for name, leaf in fresh.items()}

    def contribute(told: Any, person: Any, round_index: int) -> Contribution:
        asked.append(told)
        return device.contribute(told, person, round_index)

    changed = replace(stage, device=replace(device, contribute=contribute))
    read_off(replace(prepared, stages=lambda: (changed,)), given, people=2)
    for name, leaf in given.items():
        assert np.array_equal(asked[-1][name], leaf)


def test_invented_people_are_sound(data: Federation) -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        person = made_up(data.catalogue, draw)
        assert len(np.unique(person.item)) == len(person.item) == person.sizes[0] >= 5
        assert items_of(person).likes.tolist() == sorted(person.item[person.liked])
        for feature in data.schema.of("user"):
            assert person.features[feature.table].codes.max() < feature.rows


def test_nobody_is_no_sample(data: Federation) -> None:
    with pytest.raises(SettingsError, match="`people` must be >= 1"):
        read_off(prepared_of("fcf", data), people=0)


@pytest.mark.parametrize(
    ("recipe", "more"), [("privrec-plus", {}), ("dp-privrec-plus", NOISE)], ids=["exact", "noised"]
)
def test_a_round_of_a_subspace_iteration_names_her_items(
    recipe: str, more: dict[str, Any], data: Federation
) -> None:
    views = read_off(prepared_of(recipe, data, history="subspace", rounds=0, **more))
    assert [view.phase for view in views] == ["popularity", "subspace"]
    assert views[1].items == Share(precision=1.0, recall=1.0)
    assert (views[1].likes.precision or 0) > 0.95
