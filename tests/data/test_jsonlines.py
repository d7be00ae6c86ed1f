import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privrec.data import jsonlines
from privrec.data.importing import import_files
from privrec.data.jsonlines import looks_like_json, read_json
from privrec.data.rawfiles import read_raw
from privrec.data.text import value_text
from privrec.errors import DataError


def put(folder: Path, text: str | bytes, name: str = "some.jsonl") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def lines(*rows: object) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31),
    st.floats(-1e6, 1e6),
    st.text(st.characters(exclude_categories=["Cs"])),
)
CELLS = PLAIN | st.lists(PLAIN, max_size=3)


def words(cell: object) -> list[str]:
    """Return the values of a cell as a vocabulary would have them."""
    return [value_text(v) for v in (cell if isinstance(cell, list) else [cell]) if v is not None]


@given(
    rows=st.lists(st.dictionaries(st.sampled_from("abc"), CELLS, min_size=1), min_size=1),
    as_list=st.booleans(),
    at_a_time=st.integers(1, 100),
)
def test_any_values_come_through(rows: list[dict[str, Any]], as_list: bool, at_a_time: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonlines, "_AT_A_TIME", at_a_time)
        table = read_json(json.dumps(rows) if as_list else lines(*rows), "f")
    assert not table.bad
    assert table.lines.tolist() == list(range(1, len(rows) + 1))
    assert set(table.frame.columns) == {key for row in rows for key in row}
    for name, column in table.frame.to_dict(as_series=False).items():
        assert [words(cell) for cell in column] == [words(row.get(name)) for row in rows]


def test_lines_that_make_up_for_each_other_are_not_mixed_up() -> None:
    """As many objects as lines, but not one on each: the fast way must not be taken."""
    text = '{"a": 1}, {"a": 2}\n{"a": [{}\n{"a": 3}]}\n{"a": 4}\n'
    table = read_json(text, "f")
    assert [row.line for row in table.bad] == [1, 2, 3]
    assert table.frame.rows() == [(4,)]
    assert table.lines.tolist() == [4]


def test_types_are_kept(tmp_path: Path) -> None:
    rows = [
        {"i": 1, "f": 2, "s": "05", "b": True, "l": ["x", 1], "n": None, "m": 7},
        {"i": 2, "f": 2.5, "s": "6", "b": False, "l": "y", "n": None, "m": "7"},
    ]
    frame = read_raw(put(tmp_path, lines(*rows))).frame
    text = pl.String
    types = [pl.Int64, pl.Float64, text, pl.Boolean, pl.List(text), pl.Null, text]
    assert list(frame.schema.values()) == types
    assert frame["l"].to_list() == [["x", "1"], ["y"]]


def test_a_column_has_one_type_over_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonlines, "_AT_A_TIME", 1)
    frame = read_json(lines({"f": 1, "t": 2.5}, {"f": 2.5, "t": "x"}, {"f": None}), "f").frame
    assert frame.to_dict(as_series=False) == {"f": [1.0, 2.5, None], "t": ["2.5", "x", None]}


def test_inner_objects_are_columns_of_their_own(tmp_path: Path) -> None:
    rows = [{"a": {"b": 1, "c": {"d": "x"}}, "e": 2}, {"a": {"b": 3}}, {"a": 5, "e": {}}]
    table = read_raw(put(tmp_path, lines(*rows)))
    assert table.frame.to_dict(as_series=False) == {
        "a.b": [1, 3, None],
        "a.c.d": ["x", None, None],
        "e": [2, None, None],
        "a": [None, None, 5],
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
        ('{"user": "\\ud800", "item": 1}', "must have whole characters"),
        ('{"a.b": 1, "a": {"b": 2}}', "must have 'a.b' once only"),
        ('{"item": 1}', ": 'user' must be text or a whole number, and not empty; got ''"),
        ('{"user": ["x", "y"], "item": 1}', "and not empty; got 'x, y'"),
        ('{"user": "x", "item": 1.5}', ": 'item' must be text or a whole number"),
        ('{"user": "x", "item": 1, "rating": "good"}', ": 'rating' must be a finite number; got"),
        ('{"user": "x", "item": 1, "rating": NaN}', ": 'rating' must be a finite number; got ''"),
        ('{"user": "x", "item": 1, "rating": 1e400}', ": 'rating' must be a finite number"),
        ('{"user": "x", "item": 1, "rating": 1, "time": "soon"}', ": 'time' must be a time"),
        (
            '{"user": "x", "item": 1, "rating": 1, "time": 1, "mood": [["sad"]]}',
            ": 'mood' must be a plain",
        ),
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


def test_rows_of_a_list_are_counted(tmp_path: Path) -> None:
    path = put(tmp_path, '[\n{"user": 1,\n "item": 2},\n{"user": 1}\n]', "some.json")
    with pytest.raises(DataError, match=r"some\.json row 2: 'item' must be"):
        import_files(path, mapping={})
    with pytest.raises(DataError, match=r"some\.json is not a whole JSON list \(.*line 3"):
        import_files(put(tmp_path, '[\n{"user": 1},\n{"us', "some.json"), mapping={})
    with pytest.raises(DataError, match="has a header but no rows"):
        import_files(put(tmp_path, "[]", "some.json"), mapping={})


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    good, bad = lines({"user": "ann", "item": 7, "l": ["x"]}), b'{"user": "J\xf6rg", "item": 7}\n'
    path = put(tmp_path, good.encode() + bad)
    with pytest.raises(DataError, match=r"line 2: 'user' holds bytes that are not utf-8"):
        import_files(path, mapping={})
    assert import_files(path, mapping={}, skip_bad=True).tables.users["id"].to_list() == ["ann"]
    found = import_files(path, mapping={}, encoding="latin-1").tables
    assert found.users["id"].to_list() == ["ann", "Jörg"]


def test_nested_rows_are_found_after_broken_ones(tmp_path: Path) -> None:
    good = b'{"user": "y", "item": 1, "m": "b"}'
    bad = [b'{"user": "\xf6", "item": 1, "m": "a"}', b'{"user": "x", "item": 1, "m": [["a"]]}']
    path = put(tmp_path, b"\n".join([good, *bad, good]))
    result = import_files(path, mapping={}, context=["m"], skip_bad=True)
    assert [(row.line, row.column) for row in result.skipped] == [(2, "user"), (3, "m")]


def test_json_is_recognised(tmp_path: Path) -> None:
    assert looks_like_json('{"a": 1}\n', "some.txt")
    assert looks_like_json(' [ {"a": 1}]', "")
    assert looks_like_json("anything", "some.ndjson")
    assert not looks_like_json("{user},{item}\n1,2\n", "some.csv")
    assert not looks_like_json("[user],item\n1,2\n", "some.csv")
    assert read_raw(put(tmp_path, "{a},b\nx,y\n", "some.csv")).frame.columns == ["{a}", "b"]


def test_keys_that_are_no_columns(tmp_path: Path) -> None:
    rows = [
        {"user": k, "item": 1, "seen": {f"i{j}": 1 for j in range(400 * k, 400 * k + 400)}}
        for k in range(3)
    ]
    with pytest.raises(DataError, match=r"more than 1,000 different keys, such as 'seen\.i1199'"):
        import_files(put(tmp_path, lines(*rows)), mapping={})


def test_lists_are_features_of_several_values(tmp_path: Path) -> None:
    ratings = put(tmp_path, lines({"user": 1, "item": 2}, {"user": 1, "item": 3}))
    rows = [{"id": 2, "genres": ["a", "b"], "year": 1995, "length": 90.5}, {"id": 3, "genres": []}]
    items = put(tmp_path, lines(*rows), "items.jsonl")
    found = import_files(ratings, mapping={}, items=items).tables.items
    assert found.to_dict(as_series=False) == {
        "id": ["2", "3"],
        "genres": [["a", "b"], []],
        "year": [1995, None],
        "length": [90.5, None],
    }
