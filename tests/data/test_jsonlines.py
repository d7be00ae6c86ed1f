import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privrec.data.importing import import_files
from privrec.data.rawfiles import _read_json, read_raw
from privrec.errors import DataError


def put(folder: Path, text: str | bytes, name: str = "some.jsonl") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def lines(*rows: object) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "a": st.none() | st.integers(-(2**31), 2**31),
        "b": st.none() | st.floats(-1e6, 1e6),
        "c": st.none() | TEXTS,
        "d": st.none() | st.booleans(),
        "e": st.none() | st.lists(TEXTS, max_size=3),
    },
)


@given(rows=st.lists(ROWS.filter(bool), min_size=1))
def test_any_values_come_through(rows: list[dict[str, Any]]) -> None:
    table = _read_json(lines(*rows), "f")
    assert not table.bad
    assert table.lines.tolist() == list(range(1, len(rows) + 1))
    assert set(table.frame.columns) == {key for row in rows for key in row}
    for name, column in table.frame.to_dict(as_series=False).items():
        assert column == [row.get(name) for row in rows]


def test_types_are_kept(tmp_path: Path) -> None:
    rows = [
        {"i": 1, "f": 2, "s": "05", "b": True, "l": ["x", "1"], "n": None, "m": 7},
        {"i": 2, "f": 2.5, "s": "6", "b": False, "l": [], "n": None, "m": "7"},
    ]
    frame = read_raw(put(tmp_path, lines(*rows))).frame
    text = pl.String
    types = [pl.Int64, pl.Float64, text, pl.Boolean, pl.List(text), pl.Null, text]
    assert list(frame.schema.values()) == types


def test_inner_objects_are_columns_of_their_own(tmp_path: Path) -> None:
    rows = [{"a": {"b": 1, "c": {"d": "x"}}, "e": 2}, {"a": {"b": 3}}, {"e": 5}]
    table = read_raw(put(tmp_path, lines(*rows)))
    assert table.frame.to_dict(as_series=False) == {
        "a.b": [1, 3, None],
        "a.c.d": ["x", None, None],
        "e": [2, None, 5],
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1, 2]", "must be a JSON object on one line; got '[1, 2]'"),
        ("7", "must be a JSON object on one line; got '7'"),
        ('{"user": "x", ', "must be a JSON object on one line"),
        ('{"user": "x"} {"user": "y"}', "must be a JSON object on one line"),
        ("[" * 100_000, "must be a JSON object on one line"),
        ('{"user": ' + "9" * 5000 + "}", "must be a JSON object on one line"),
        ('{"user": "\\ud800", "item": 1}', "must be a JSON object on one line"),
        ('{"user": "x", "item": 1, "rating": NaN}', "must be a JSON object on one line"),
        ('{"item": 1}', ": 'user' must be text or a whole number, and not empty; got ''"),
        ('{"user": ["x", "y"], "item": 1}', ": 'user' must be a number or a text, as in lines"),
        ('{"user": {"x": "y"}, "item": 1}', ": 'user' must be a number or a text, as in lines"),
        ('{"user": "x", "item": 1.5}', ": 'item' must be text or a whole number"),
        ('{"user": "x", "item": 1, "rating": "good"}', ": 'rating' must be a finite number; got"),
        ('{"user": "x", "item": 1, "rating": 1, "time": "soon"}', ": 'time' must be a time"),
        ('{"user": "x", "item": 1, "mood": 7}', ": 'mood' must be a list, as in lines before"),
    ],
)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, line: str, reason: str) -> None:
    good = {"user": "ann", "item": 7, "rating": 4, "time": 5, "mood": ["glad"]}
    path = put(tmp_path, f"{lines(good)}\n{line}\n{lines(good | {'user': 'bob'})}")
    with pytest.raises(DataError) as caught:
        import_files(path, mapping={}, context=["mood"])
    message = str(caught.value)
    assert message.startswith(f"{path} line 3")
    assert reason in message
    assert len(message) < 400
    result = import_files(path, mapping={}, context=["mood"], skip_bad=True)
    assert [row.line for row in result.skipped] == [3]
    assert result.tables.interactions.to_dict(as_series=False) == {
        "user": ["ann", "bob"],
        "item": ["7", "7"],
        "value": [4.0, 4.0],
        "time": [5, 5],
        "mood": [["glad"], ["glad"]],
    }


def test_what_is_not_used_may_have_any_form(tmp_path: Path) -> None:
    path = put(tmp_path, lines({"user": 1, "item": 2, "x": [[{"y": 1}]]}, {"user": 1, "item": 3}))
    assert import_files(path, mapping={}).tables.interactions.height == 2


def test_a_list_of_objects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must have one JSON object on each line; it is a list"):
        import_files(put(tmp_path, '[{"user": 1, "item": 2}]', "some.json"), mapping={})


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    good, bad = lines({"user": "ann", "item": 7, "l": ["x"]}), b'{"user": "J\xf6rg", "item": 7}\n'
    path = put(tmp_path, good.encode() + bad)
    with pytest.raises(DataError, match=r"line 2: 'user' holds bytes that are not utf-8"):
        import_files(path, mapping={})
    assert import_files(path, mapping={}, skip_bad=True).tables.users["id"].to_list() == ["ann"]
    tables = import_files(path, mapping={}, encoding="latin-1").tables
    assert tables.users["id"].to_list() == ["ann", "Jörg"]


def test_json_is_recognised_by_its_name_or_its_first_characters(tmp_path: Path) -> None:
    assert read_raw(put(tmp_path, '{"a": 1}\n', "some.txt")).frame.columns == ["a"]
    assert read_raw(put(tmp_path, ' {"a": 1}\n', "some.ndjson")).frame.columns == ["a"]
    assert read_raw(put(tmp_path, "{a},b\nx,y\n", "some.csv")).frame.columns == ["{a}", "b"]


def test_lists_are_features_of_several_values(tmp_path: Path) -> None:
    ratings = put(tmp_path, lines({"user": 1, "item": 2}, {"user": 1, "item": 3}))
    rows = [{"id": 2, "genres": ["a", "b"], "year": 1995, "length": 90.5}, {"id": 3, "genres": []}]
    items = put(tmp_path, lines(*rows), "items.jsonl")
    assert import_files(ratings, mapping={}, items=items).tables.items.to_dict(as_series=False) == {
        "id": ["2", "3"],
        "genres": [["a", "b"], []],
        "year": [1995, None],
        "length": [90.5, None],
    }
