"""Files that an import must refuse, or skip rows of, with a message that names the place."""

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from packing import put
from privrec.data.importing import ImportResult, import_files
from privrec.errors import DataError, PrivrecError, SettingsError

RATINGS = "user,item,rating,timestamp\nann,7,5,100\nbob,7,3,90\nann,8,1.5,80\n"
INTER = "user_id:token\titem_id:token\n1\t7\n2\t8\n"


def load(folder: Path, text: str | bytes, **settings: Any) -> ImportResult:
    source = put(folder, "ratings.csv", text)
    return import_files(source, **{"mapping": {}, **settings})


TIME = "'timestamp' must be a time: a finite number, as others of the column are"
BAD_LINES = [
    ("ann,7,good,100", "'rating' must be a finite number; got 'good'"),
    ("ann,7,nan,100", "'rating' must be a finite number; got 'nan'"),
    ("ann,7,inf,100", "'rating' must be a finite number; got 'inf'"),
    ("ann,7,1e39,100", "'rating' must be a finite number; got '1e39'"),
    ("ann,7,,100", "'rating' must be a finite number; got ''"),
    (
        'ann,7,"3,5",100',
        "'rating' must be a finite number (--decimal , reads a decimal comma); got '3,5'",
    ),
    (",7,5,100", "'user' must be text or a whole number, and not empty; got ''"),
    ("ann,  ,5,100", "'item' must be text or a whole number, and not empty; got ''"),
    ("ann,7,5,today", f"{TIME}; got 'today'"),
    ("ann,7,5,nan", f"{TIME}; got 'nan'"),
    ("ann,7,5,", f"{TIME}; got ''"),
    ("ann,7,5", "must have 4 columns; got 'ann,7,5'"),
    ("ann,7,5,100,1", "must have 4 columns; got 'ann,7,5,100,1'"),
    ('ann,7,"5"1,100', "must close a quote where the field ends; got 'ann,7,\"5\"1,100'"),
    ("zoe,7,5,100", "'user' must be one of the users listed; got 'zoe'"),
    ("ann,99,5,100", "'item' must be one of the items listed; got '99'"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_a_bad_row_stops_the_import_or_is_skipped(tmp_path: Path, line: str, message: str) -> None:
    users = put(tmp_path, "users.csv", "id\nann\nbob\n")
    items = put(tmp_path, "items.csv", "id,year\n7,1999\n8,2000\n")
    text = f"{RATINGS}{line}\nbob,8,4,70\nann,,x,y\n"
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load(tmp_path, text, users=users, items=items)
    assert f"ratings.csv line 5{':' if message[0] == chr(39) else ''} " in str(caught.value)
    assert "\n" not in str(caught.value)
    result = load(tmp_path, text, users=users, items=items, skip_bad=True)
    clean = load(tmp_path, RATINGS + "bob,8,4,70\n", users=users, items=items)
    assert result.tables.interactions.equals(clean.tables.interactions)
    assert [row.line for row in result.skipped] == [5, 7]
    assert message in str(result.skipped[0])
    assert result.skipped[1].column == "item"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("ann,1.5\nann,2.5\n", r"line 3: 'id' must not be there twice; got 'ann'"),
        (",1.5\nann,2.5\n", r"line 2: 'id' must be text or a whole number, and not empty"),
        ("ann,1.5\nbob,inf\n", r"line 3: 'size' must be a finite number; got 'inf'"),
        ("ann,1.5\nbob\n", r"line 3 must have 2 columns; got 'bob'"),
    ],
)
def test_bad_rows_of_users_are_named_and_skipped(tmp_path: Path, lines: str, message: str) -> None:
    users = put(tmp_path, "users.csv", f"id,size\n{lines}")
    with pytest.raises(DataError, match=rf"users\.csv {message}"):
        load(tmp_path, "user,item\nann,7\n", users=users)
    result = load(tmp_path, "user,item\nann,7\n", users=users, skip_bad=True)
    assert result.tables.users["id"].to_list() == ["ann"]
    assert len(result.skipped) == 1


@pytest.mark.parametrize("value", ["x", "inf"])
def test_a_float_of_an_atomic_file_must_be_one(tmp_path: Path, value: str) -> None:
    put(tmp_path, "ml.inter", INTER)
    put(tmp_path, "ml.user", f"user_id:token\tage:float\n1\t2\n2\t{value}\n")
    with pytest.raises(DataError, match=r"ml\.user line 3: 'age' must be a finite number"):
        import_files(tmp_path, mapping={})
    put(tmp_path, "ml.user", f"user_id:token\tage:float_seq\n1\t2 3\n2\t4 {value}\n")
    with pytest.raises(DataError, match=r"ml\.user: 'age' is a float_seq, which is not read"):
        import_files(tmp_path, mapping={})
    assert import_files(tmp_path, mapping={}, ignore=["age"]).tables.users.columns == ["id"]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "is empty"),
        ("user,item,rating\n", {}, "has a header but no rows"),
        ("usr,item\n1,7\n", {}, r"no column 'user'; did you mean 'usr'\? .*--map user="),
        ("user,thing\n1,7\n", {}, r"no column 'item' \(it has: user, thing\) .*--map item="),
        (RATINGS, {"mapping": {"value": "ratng"}}, r"no column 'ratng'; did you mean 'rating'\?"),
        (RATINGS, {"mapping": {"time": "Rating"}}, r"no column 'Rating'; did you mean 'rating'\?"),
        (RATINGS, {"context": ["plce"]}, r"no column 'plce'"),
        (RATINGS, {"mapping": {"usr": "user"}}, r"must name one of .*'usr'; did you mean 'user'\?"),
        (
            RATINGS,
            {"mapping": {"value": "item", "item": "item"}},
            "`value` and `item` must be diff.*'item'",
        ),
        (RATINGS, {"mapping": {"title": "item"}}, "about the items file, but none is given"),
        (RATINGS, {"mapping": {"id": "item"}}, "users and items files, but none is given"),
        (RATINGS, {"mapping": {"value": "rating"}, "context": ["rating"]}, "nothing else already"),
        ("user,item,time\n1,7,x\n", {"context": ["time"]}, "nothing else already; got 'time'"),
        ("user,item,a\n1,7,x\n", {"context": ["a", "a"]}, "nothing else already; got 'a'"),
        (RATINGS, {"positive_above": 5}, "nobody likes anything.* = 5; the largest is 5"),
        ("user,item\n1,7\n", {"positive_above": 1}, "nobody likes .* = 1; the largest is 1"),
        (RATINGS, {"positive_above": float("nan")}, "`positive_above` must be a finite number"),
        ("user,item,rating\n1,7,x\n", {"skip_bad": True}, "has no row that can be used; .*line 2"),
    ],
)
def test_what_is_wrong_with_the_whole_is_named(
    tmp_path: Path, text: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(PrivrecError, match=message) as caught:
        load(tmp_path, text, **settings)
    assert isinstance(caught.value, DataError | SettingsError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"user": [[1], [2]]}, "'user' must be text or whole numbers; got List"),
        ({"user": [1.5, 2.0]}, "row 1: 'user' must be text or a whole number, .* got '1.5'"),
        ({"user": [None, "b"]}, "row 1: 'user' must be text or a whole number"),
        ({"rating": [[1], [2]]}, "'rating' must be numbers; got List"),
        ({"rating": [1.0, float("inf")]}, "row 2: 'rating' must be a finite number; got 'inf'"),
        ({"time": [True, False]}, "'time' must be times; got Boolean"),
        ({"time": [1, None]}, "row 2: 'time' must be a time"),
        ({"place": [{"a": 1}, {"a": 2}]}, "'place' must be plain values or lists; got Struct"),
    ],
)
def test_wrong_types_in_parquet_are_named(
    tmp_path: Path, column: dict[str, Any], message: str
) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"user": ["a", "b"], "item": ["7", "8"], **column}).write_parquet(path)
    context = [name for name in column if name == "place"]
    with pytest.raises(DataError, match=rf"log\.parquet:? {message}"):
        import_files(path, mapping={}, context=context)
