"""A person's row, against a slow loop over her lines."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privrec.algorithms.privrec_plus.rows import rows_of, without_items
from privrec.algorithms.privrec_plus.scoring import Layout, dense_rows, layout_in, layout_of
from privrec.data.clients import Clients
from privrec.data.schema import Feature, Schema, encode
from privrec.data.sources import load
from tiny import DATA

N_ITEMS = 5
AGE = Feature(name="age", side="user", kind="categorical", values=("young", "old", "older"))
TAGS = Feature(name="tags", side="user", kind="multi", values=("a", "b", "c", "d"))
HEIGHT = Feature(name="height", side="user", kind="numeric", mean=170.0, scale=10.0)
PLACE = Feature(name="place", side="context", kind="categorical", values=("home", "work"))
MOODS = Feature(name="moods", side="context", kind="multi", values=("calm", "glad", "sad"))
GENRE = Feature(name="genre", side="item", kind="categorical", values=("crime",))
SCHEMA = Schema(features=(AGE, GENRE, TAGS, PLACE, HEIGHT, MOODS))
LAYOUT = layout_of(SCHEMA, N_ITEMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    item: int
    liked: bool
    place: str | None = None
    moods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """`height` in centimetres; None and () mean unknown."""

    lines: Sequence[Line] = ()
    age: str | None = None
    tags: tuple[str, ...] = ()
    height: float | None = None


def clients_of(people: Sequence[Person]) -> Clients:
    lines = [line for person in people for line in person.lines]
    liked = np.array([line.liked for line in lines], np.bool_)
    return Clients(
        ids=np.arange(len(people)),
        offsets=np.cumsum([0, *(len(person.lines) for person in people)]),
        item=np.array([line.item for line in lines], np.int32),
        value=np.where(liked, 5.0, 1.0).astype(np.float32),
        liked=liked,
        time=np.arange(len(lines), dtype=np.float64),
        features={
            AGE.table: encode(AGE, [person.age for person in people]),
            TAGS.table: encode(TAGS, [list(person.tags) for person in people]),
            HEIGHT.table: encode(HEIGHT, [person.height for person in people]),
        },
        context={
            PLACE.table: encode(PLACE, [line.place for line in lines]),
            MOODS.table: encode(MOODS, [list(line.moods) for line in lines]),
        },
    )


def slow_row(person: Person) -> list[float]:
    """Likes, dislikes, age, tags, height, then the shares of places and of moods."""
    likes = [0.0] * N_ITEMS
    dislikes = [0.0] * N_ITEMS
    places = dict.fromkeys(PLACE.values, 0.0)
    moods = dict.fromkeys(MOODS.values, 0.0)
    for line in person.lines:
        if line.liked:
            likes[line.item] = 1.0
        else:
            dislikes[line.item] = 1.0
        if line.place is not None:
            places[line.place] += 1 / len(person.lines)
        for mood in line.moods:
            moods[mood] += 1 / len(line.moods) / len(person.lines)
    ages = [float(person.age == value) for value in AGE.values]
    tags = [person.tags.count(tag) / max(len(person.tags), 1) for tag in TAGS.values]
    height = 0.0 if person.height is None else (person.height - 170) / 10
    return [*likes, *dislikes, *ages, *tags, height, *places.values(), *moods.values()]


def some_of(feature: Feature) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(feature.values), max_size=3).map(tuple)


a_line = st.builds(
    Line,
    item=st.integers(0, N_ITEMS - 1),
    liked=st.booleans(),
    place=st.none() | st.sampled_from(PLACE.values),
    moods=some_of(MOODS),
)
a_person = st.builds(
    Person,
    lines=st.lists(a_line, max_size=8),
    age=st.none() | st.sampled_from(AGE.values),
    tags=some_of(TAGS),
    height=st.none() | st.floats(50, 250),
)


def test_the_layout_has_what_is_known_of_people_and_nothing_of_items() -> None:
    assert LAYOUT.names == (
        "history/like",
        "history/dislike",
        "history/user.age",
        "history/user.tags",
        "history/user.height",
        "history/context.place",
        "history/context.moods",
    )
    assert LAYOUT.sizes == (5, 5, 3, 4, 1, 2, 3)
    assert LAYOUT.size == 23
    assert Layout(n_items=7).sizes == (7, 7)
    assert Layout(n_items=7, dislikes=False).names == ("history/like",)
    assert Layout(n_items=7, dislikes=False).sizes == (7,)


def test_a_models_own_names_tell_its_layout() -> None:
    """A model may have been trained with some of the blocks; it ignores the others."""
    others = {"items/out", "items/bias", "learn/like", "history/user.colour"}
    assert layout_in(SCHEMA, N_ITEMS, {*LAYOUT.names, *others}) == LAYOUT
    assert layout_in(SCHEMA, N_ITEMS, {*LAYOUT.names[:2], *others}) == Layout(n_items=N_ITEMS)
    some = layout_in(SCHEMA, N_ITEMS, {"history/like", "history/user.age", "history/context.moods"})
    assert some == Layout(n_items=N_ITEMS, dislikes=False, users=(AGE,), contexts=(MOODS,))


@settings(max_examples=150)
@given(people=st.lists(a_person, max_size=5))
def test_rows_are_those_of_a_slow_loop(people: list[Person]) -> None:
    found = rows_of(clients_of(people), LAYOUT)
    assert found.shape == (len(people), LAYOUT.size)
    assert found.dtype == np.float32
    wanted = np.array([slow_row(person) for person in people]).reshape(-1, LAYOUT.size)
    np.testing.assert_allclose(found.toarray(), wanted, rtol=1e-5, atol=1e-6)
    # A phone builds the same row without a sparse matrix.
    dense = dense_rows(clients_of(people), LAYOUT)
    assert dense.dtype == np.float32
    np.testing.assert_array_equal(dense, found.toarray())


def test_an_item_counts_once_however_often_it_was_chosen() -> None:
    lines = [Line(item=2, liked=True)] * 9 + [Line(item=2, liked=False), Line(item=4, liked=False)]
    (row,) = rows_of(clients_of([Person(lines=lines)]), LAYOUT).toarray()
    assert row[:5].tolist() == [0, 0, 1, 0, 0]
    assert row[5:10].tolist() == [0, 0, 1, 0, 1]


def test_people_without_lines_have_their_features_and_nobody_has_no_rows() -> None:
    empty = rows_of(clients_of([Person(age="old"), Person()]), LAYOUT).toarray()
    assert np.argwhere(empty).tolist() == [[0, 2 * N_ITEMS + 1]]
    assert rows_of(clients_of([]), LAYOUT).shape == (0, LAYOUT.size)
    assert without_items(rows_of(clients_of([]), LAYOUT), LAYOUT).shape == (0, LAYOUT.size)


@settings(max_examples=50)
@given(people=st.lists(a_person, min_size=1, max_size=5))
def test_without_items_only_what_was_said_about_items_is_gone(people: list[Person]) -> None:
    rows = rows_of(clients_of(people), LAYOUT)
    before = rows.toarray()
    found = without_items(rows, LAYOUT).toarray()
    assert not found[:, : 2 * N_ITEMS].any()
    np.testing.assert_array_equal(found[:, 2 * N_ITEMS :], before[:, 2 * N_ITEMS :])
    np.testing.assert_array_equal(rows.toarray(), before)


@pytest.mark.parametrize("size", [1, 7])
def test_a_row_does_not_depend_on_who_else_is_asked(size: int) -> None:
    data = load(DATA)
    layout = layout_of(data.schema, data.n_items)
    whole = rows_of(data.take(np.arange(60)), layout).toarray()
    for start in range(0, 60, size):
        people = np.arange(start, min(start + size, 60))
        np.testing.assert_array_equal(rows_of(data.take(people), layout).toarray(), whole[people])
