import tracemalloc
from collections import defaultdict
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privrec.data import tables as lines_module
from privrec.data import tables as module
from privrec.data.clients import nobody
from privrec.data.federation import Federation
from privrec.data.manifest import Manifest
from privrec.data.schema import Schema
from privrec.data.tables import Tables, read_folder, to_federation, write_folder
from privrec.errors import DataError

MANIFEST = Manifest(name="tiny", value="value", time="time", context=("place",), positive_above=3.0)


def tiny() -> Tables:
    """Three people, three films: Bea has seen nothing; Cem saw film 7 twice."""
    return Tables(
        manifest=MANIFEST,
        interactions=pl.DataFrame(
            {
                "user": ["cem", "ann", "cem", "ann", "cem"],
                "item": [7, 9, 7, 8, 9],
                "value": [4, 5, 1, 3, 5],
                "time": [30, 20, 10, 10, 30],
                "place": ["home", "bus", None, "home", "home"],
            }
        ),
        users=pl.DataFrame({"id": ["ann", "bea", "cem"], "age": [20.0, 30.0, 40.0]}),
        items=pl.DataFrame(
            {
                "id": [7, 8, 9],
                "title": ["Seven", None, ""],
                "genres": [["crime"], ["war", "crime"], []],
                "year": [1995, 10, 9],
            }
        ),
    )


def everybody(federation: Federation) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(federation.n_clients)


def test_the_federation_is_what_the_tables_say() -> None:
    federation = to_federation(tiny())
    clients = federation.take(everybody(federation))
    assert clients.sizes.tolist() == [2, 0, 3]
    # By user, then time, then as in the file.
    assert clients.item.tolist() == [1, 2, 0, 0, 2]
    assert clients.value.tolist() == [3, 5, 1, 4, 5]
    assert clients.liked.tolist() == [False, True, False, True, True]
    assert (federation.name, federation.n_clients, federation.n_items) == ("tiny", 3, 3)
    assert (federation.largest, federation.catalogue.positive_above) == (3, 3.0)
    assert federation.repeats
    assert list(federation.catalogue.item_ids) == ["7", "8", "9"]
    assert list(federation.catalogue.titles) == ["Seven", "8", "9"]


def test_features_have_the_kind_of_their_column() -> None:
    federation = to_federation(tiny())
    found = {f"{f.side}.{f.name}": (f.kind, f.values) for f in federation.schema.features}
    assert found == {
        "user.age": ("numeric", ()),
        "item.genres": ("multi", ("crime", "war")),
        "item.year": ("categorical", ("9", "10", "1995")),  # by size, not by letter
        "context.place": ("categorical", ("bus", "home")),
    }
    clients = federation.take(everybody(federation))
    age = clients.features["embed/user.age"].weights[:, 0]
    np.testing.assert_allclose(age, np.array([-1, 0, 1]) * np.sqrt(1.5), rtol=1e-6)
    place = clients.context["embed/context.place"]
    assert place.weights[:, 0].tolist() == [1, 1, 0, 1, 1]
    assert place.codes[[0, 1, 3], 0].tolist() == [1, 0, 1]
    genres = federation.items["embed/item.genres"]
    assert genres.weights.tolist() == [[1, 0], [0.5, 0.5], [0, 0]]


def test_nobody_repeats_when_every_pair_is_there_once() -> None:
    tables = tiny()
    once = tables.interactions.unique(["user", "item"], maintain_order=True)
    assert not to_federation(replace(tables, interactions=once)).repeats


@pytest.mark.slow
@given(
    lines=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=30),
    at_a_time=st.integers(1, 40),
)
def test_lines_are_in_the_order_of_time_wherever_they_are_cut(
    lines: list[tuple[int, int]], at_a_time: int
) -> None:
    made = Tables(
        manifest=Manifest(name="times", time="time"),
        # The item is the number of the line: at one time the order of the file stays.
        interactions=pl.DataFrame(
            [(user, line, time) for line, (user, time) in enumerate(lines)],
            schema=["user", "item", "time"],
            orient="row",
        ),
        users=pl.DataFrame({"id": range(7)}),
        items=pl.DataFrame({"id": range(30)}),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_SORTED_AT_ONCE", at_a_time)
        clients = to_federation(made).take(np.arange(7))
    expected = sorted(range(len(lines)), key=lambda line: (*lines[line], line))
    assert clients.item.tolist() == expected
    assert clients.sizes.tolist() == [sum(user == k for user, _ in lines) for k in range(7)]


@given(
    lines=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=30),
    at_a_time=st.integers(1, 40),
)
def test_repeats_are_found_wherever_the_lines_are_cut(
    lines: list[tuple[int, int]], at_a_time: int
) -> None:
    made = Tables(
        manifest=Manifest(name="pairs"),
        interactions=pl.DataFrame(lines, schema=["user", "item"], orient="row"),
        users=pl.DataFrame({"id": range(7)}),
        items=pl.DataFrame({"id": range(5)}),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_A_TIME", at_a_time)
        assert to_federation(made).repeats == (len(set(lines)) < len(lines))


def test_without_a_value_column_every_line_is_a_like() -> None:
    tables = replace(tiny(), manifest=Manifest(name="tiny"))
    clients = to_federation(tables).take(np.array([2]))
    assert clients.value.tolist() == [1, 1, 1]
    assert clients.liked.all()
    assert clients.item.tolist() == [0, 0, 2]  # no time either: the order of the file


def test_kinds_override_the_column_type() -> None:
    manifest = replace(MANIFEST, kinds={"age": "categorical", "year": "numeric"})
    schema = to_federation(replace(tiny(), manifest=manifest)).schema
    assert schema.named("age", "user").values == ("20", "30", "40")
    assert schema.named("year", "item").kind == "numeric"


def test_dates_order_the_lines() -> None:
    tables = tiny()
    days = [date(2020, 1, day) for day in (30, 20, 10, 10, 30)]
    dated = tables.interactions.with_columns(time=pl.Series(days))
    clients = to_federation(replace(tables, interactions=dated)).take(np.array([0, 2]))
    assert clients.item.tolist() == [1, 2, 0, 0, 2]


@pytest.mark.parametrize(
    "nothing",
    [
        pl.Series([None, None, None]),
        pl.Series(["", None, ""]),
        pl.Series([[], [], None], dtype=pl.List(pl.String)),
    ],
)
def test_a_column_without_any_value_makes_no_feature(nothing: pl.Series) -> None:
    tables = tiny()
    items = tables.items.with_columns(nothing.alias("nothing"))
    schema = to_federation(replace(tables, items=items)).schema
    assert [feature.name for feature in schema.of("item")] == ["genres", "year"]


def test_the_vocabulary_does_not_depend_on_the_order_of_the_rows() -> None:
    words = ["nan", "10", "9", "b", "NaN", "inf", "a", "-1"]
    tables = tiny()
    orders = [np.random.default_rng(seed).permutation(len(words)) for seed in range(20)]
    found = {
        to_federation(
            replace(
                tables,
                users=pl.DataFrame(
                    {"id": ["ann", "cem", *"123456"], "word": [words[i] for i in order]}
                ),
            )
        )
        .schema.named("word", "user")
        .values
        for order in orders
    }
    assert found == {("-1", "9", "10", "NaN", "a", "b", "inf", "nan")}


def changed(**changes: Any) -> Tables:
    """Return the tiny tables with some columns replaced: `users__age=[…]`, `manifest__time=…`."""
    tables = tiny()
    for place, new in changes.items():
        table, column = place.split("__")
        old = getattr(tables, table)
        if table == "manifest":
            made = replace(old, **{column: new})
        elif new is None:
            made = old.drop(column)
        else:
            made = old.with_columns(pl.Series(column, new, strict=False))
        tables = replace(tables, **{table: made})
    return tables


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interactions__user": None}, r"interactions has no column 'user' \(it has: item"),
        ({"manifest__user": "usr"}, r"has no column 'usr'; did you mean 'user'\?"),
        ({"manifest__value": "valu"}, r"has no column 'valu'; did you mean 'value'\?"),
        ({"manifest__time": "tim"}, r"has no column 'tim'; did you mean 'time'\?"),
        ({"manifest__context": ("plce",)}, r"has no column 'plce'; did you mean 'place'\?"),
        ({"manifest__context": ("place", "place")}, "'place' must not be another column"),
        ({"manifest__context": ("value",)}, "'value' must not be another column"),
        ({"users__id": None}, "users has no column 'id'"),
        ({"users__id": ["ann", "ann", "cem"]}, "users has the id 'ann' more than once"),
        ({"items__id": [7, 8, 8]}, "items has the id '8' more than once"),
        ({"users__id": ["ann", None, "cem"]}, "users has no id in row 1"),
        ({"users__id": ["ann", "", "cem"]}, "users has no id in row 1"),
        ({"users__id": [1.5, 2, 3]}, "users ids must be text or whole numbers; got Float64"),
        ({"users__id": [[1], [2], [3]]}, "users ids must be text or whole numbers; got List"),
        ({"users__id": [b"a", b"b", b"c"]}, "users ids must be text or whole numbers; got Binary"),
        ({"interactions__user": ["cem"] * 4 + ["dee"]}, "row 4 names the user 'dee', whom users"),
        ({"interactions__item": [7, 9, 6, 8, 9]}, "row 2 names the item '6', which items"),
        ({"interactions__item": [7, 9, None, 8, 9]}, "'item' has no id in row 2"),
        ({"interactions__value": ["4", "5", "x", "3", "5"]}, "'value' must be numbers; got String"),
        (
            {"interactions__value": [4, 5, float("nan"), 3, 5]},
            "row 2: value must be a finite .*nan",
        ),
        (
            {"interactions__value": [4, 5, 1, float("inf"), 5]},
            "row 3: value must be a finite .*inf",
        ),
        ({"interactions__value": [4, None, 1, 3, 5]}, "row 1: value must be a finite number"),
        ({"interactions__value": [1e300, 5, 1, 3, 5]}, "row 0: value must be a finite number"),
        ({"interactions__value": [1, 2, 3, 3, 3]}, "nobody likes anything.* = 3; the largest is 3"),
        ({"interactions__time": ["a"] * 5}, "'time' must be times; got String"),
        ({"interactions__time": [1, 2, None, 3, 4]}, "'time' has rows without a finite time"),
        ({"interactions__time": [1, 2, 3, 4, float("nan")]}, "has rows without a finite time"),
        ({"manifest__kinds": {"genres": "numeric"}}, "'genres' holds lists: .* must be multi"),
        ({"manifest__kinds": {"genres": "categorical"}}, "'genres' holds lists: .* must be multi"),
        ({"manifest__kinds": {"place": "numeric"}}, "'place' must be numbers; got String"),
        ({"manifest__kinds": {"genre": "multi"}}, r"unknown feature 'genre'; .*'genres'\?"),
        ({"manifest__kinds": {"title": "multi"}}, "unknown feature 'title'"),
        ({"users__age": [20, float("inf"), 40]}, "user feature 'age' has infinite values"),
        ({"users__age": [1e300, -1e300, 0.0]}, "user feature 'age' has values too large"),
        ({"users__age": [{"a": 1}, {"a": 2}, None]}, "user feature 'age' must be plain values"),
        ({"items__title": [["a"], ["b"], ["c"]]}, "'title' must be text; got List"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        to_federation(changed(**changes))
    assert "\n" not in str(caught.value)


def test_a_persons_number_is_made_from_her_id_alone() -> None:
    federation = to_federation(tiny())
    ids = federation.take(everybody(federation)).ids
    assert len(set(ids.tolist())) == 3
    assert federation.ids(np.array([2, 0])).tolist() == ids[[2, 0]].tolist()
    # Without Bea, with Cem first and with other films: Ann and Cem keep their numbers.
    fewer = replace(
        tiny(),
        users=pl.DataFrame({"id": ["cem", "ann"]}),
        items=pl.DataFrame({"id": [9, 8, 7, 6]}),
    )
    assert to_federation(fewer).take(np.arange(2)).ids.tolist() == ids[[2, 0]].tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"interactions__user": ["cem", "ann", "cem", "ann", "bea"]},
        {"interactions__item": [7, 9, 7, 8, 8]},
        {"interactions__value": [4, 5, 1, 2, 5]},
        {"interactions__time": [30, 20, 10, 30, 30]},
        {"interactions__place": ["home", "bus", "bus", "home", "home"]},
        {"users__id": ["ann", "bob", "cem"]},
        {"users__age": [20.0, 30.0, 41.0]},
        {"items__id": [7, 9, 8]},
        {"manifest__positive_above": 2.0},
    ],
)
def test_other_data_have_another_fingerprint(changes: dict[str, Any]) -> None:
    ours = to_federation(tiny()).fingerprint
    assert to_federation(tiny()).fingerprint == ours
    assert to_federation(changed(**changes)).fingerprint != ours


def test_titles_are_safe_to_show() -> None:
    titles = ["Se\x1b[2Jven", None, "\u202egpj"]
    ids = ["a", "b\x07", "c"]
    tables = replace(
        changed(interactions__item=["a", "c", "a", "b\x07", "c"]),
        items=pl.DataFrame({"id": ids, "title": titles}),
    )
    catalogue = to_federation(tables).catalogue
    assert list(catalogue.titles) == ["Se\ufffd[2Jven", "b\ufffd", "\ufffdgpj"]
    assert list(catalogue.item_ids) == ids


@pytest.mark.parametrize("table", ["interactions", "users", "items"])
def test_a_table_without_rows_is_refused(table: str) -> None:
    tables = tiny()
    empty = replace(tables, **{table: getattr(tables, table).clear()})
    with pytest.raises(DataError, match=f"{table} has no rows"):
        to_federation(empty)


def test_a_folder_gives_back_what_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "odd [1] name"  # some readers take this name for a glob pattern
    write_folder(tiny(), folder)
    back = read_folder(folder)
    assert back.manifest == MANIFEST
    for table in ("interactions", "users", "items"):
        assert getattr(back, table).equals(getattr(tiny(), table))


@pytest.mark.parametrize("file", ["dataset.toml", "interactions.parquet", "items.parquet"])
def test_a_missing_file_is_named(tmp_path: Path, file: str) -> None:
    write_folder(tiny(), tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(DataError, match=f"{file} is missing; a data folder has one"):
        read_folder(tmp_path)


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_parquet_file_is_named(tmp_path: Path, keep: float) -> None:
    write_folder(tiny(), tmp_path)
    path = tmp_path / "users.parquet"
    raw = path.read_bytes()
    path.write_bytes(raw[: int(keep * len(raw))])
    with pytest.raises(DataError, match=r"users.parquet: it is not a whole Parquet file$"):
        read_folder(tmp_path)


# Surrogates are no characters: neither TOML nor Parquet can hold them.
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@st.composite
def random_tables(draw: st.DrawFn) -> Tables:
    users = draw(st.lists(texts, unique=True, min_size=1, max_size=5))
    items = draw(st.lists(st.integers(-9, 99), unique=True, min_size=1, max_size=5))
    lines = st.tuples(
        st.sampled_from(users),
        st.sampled_from(items),
        st.sampled_from([1.0, 2.5, 4.0, 5.0]),
        st.integers(0, 5),
        st.none() | texts,
    )
    rows = draw(st.lists(lines, min_size=1, max_size=20))
    rows.append((users[0], items[0], 5.0, 0, None))  # somebody likes something
    n = len(items)
    lists = st.none() | st.lists(texts, max_size=3)
    return Tables(
        manifest=MANIFEST,
        interactions=pl.DataFrame(
            rows,
            schema={
                "user": pl.String,
                "item": pl.Int64,
                "value": pl.Float64,
                "time": pl.Int64,
                "place": pl.String,
            },
            orient="row",
        ),
        users=pl.DataFrame({"id": users}),
        items=pl.DataFrame(
            {
                "id": items,
                "tags": pl.Series(
                    draw(st.lists(lists, min_size=n, max_size=n)), dtype=pl.List(pl.String)
                ),
                "price": pl.Series(
                    draw(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=n, max_size=n)),
                    dtype=pl.Float64,
                ),
            }
        ),
    )


@pytest.mark.slow
@settings(max_examples=60)
@given(random_tables())
def test_tables_to_folder_to_federation(
    tmp_path_factory: pytest.TempPathFactory, tables: Tables
) -> None:
    folder = tmp_path_factory.mktemp("data")
    write_folder(tables, folder)
    federation = to_federation(read_folder(folder))
    clients = federation.take(everybody(federation))
    histories = defaultdict(list)
    for user, item, value, time, _ in tables.interactions.rows():
        histories[user].append((time, str(item), value))
    for position, user in enumerate(tables.users["id"]):
        expected = sorted(histories[user], key=lambda line: line[0])  # stable: ties as in the file
        rows = slice(clients.offsets[position], clients.offsets[position + 1])
        found = [federation.catalogue.item_ids[item] for item in clients.item[rows]]
        assert found == [item for _, item, _ in expected]
        assert clients.value[rows].tolist() == [value for _, _, value in expected]
        assert clients.liked[rows].tolist() == [value > 3 for _, _, value in expected]
    price = federation.items.get("embed/item.price")
    assert price is not None
    assert np.isfinite(price.weights).all()
    tags = federation.items.get("embed/item.tags")
    for item_id, raw in tables.items.select("id", "tags").rows():
        row = list(federation.catalogue.item_ids).index(f"{item_id}")
        assert tags is None or tags.weights[row].sum() == pytest.approx(1 if raw else 0)


def test_asking_for_one_person_costs_nothing_of_the_others() -> None:
    everybody = nobody(Schema(features=()), 10**6)
    tracemalloc.start()
    try:
        assert len(everybody.take(np.array([999_999]))) == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One byte for each of the million would be 1 MB.
    assert peak < 100_000
