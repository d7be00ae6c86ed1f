"""What an import says about each column, and what it guesses."""

from pathlib import Path
from typing import Any

import pytest

from commands import Refused, document, done
from privrec.data.columns import ALIASES, plain_column
from privrec.data.importing import ImportResult, import_files
from privrec.errors import DataError, SettingsError

SECONDS = 1_600_000_000


def put(folder: Path, name: str, header: str, *rows: str) -> Path:
    path = folder / name
    path.write_text("".join(f"{row}\n" for row in (header, *rows)), encoding="utf-8")
    return path


def became(result: ImportResult) -> dict[str, str]:
    return {use.column: use.became for use in result.uses}


def why(result: ImportResult, column: str) -> str:
    [use] = [use for use in result.uses if use.column == column]
    return "; ".join(filter(None, (use.why, use.note)))


def shop(folder: Path, **settings: Any) -> ImportResult:
    """Import lines whose time was once dropped without a word."""
    rows = [f"u{k % 9},p{k},{(SECONDS + 9 - k) * 1000},web,{k % 5 + 1},x{k}" for k in range(9)]
    source = put(folder, "events.csv", "user_id,item,event_time_ms,channel,points,memo", *rows)
    return import_files(source, **{"mapping": {}, **settings})


def test_every_column_is_accounted_for(tmp_path: Path) -> None:
    result = shop(tmp_path, context=["channel"])
    assert became(result) == {
        "user_id": "user",
        "item": "item",
        "event_time_ms": "time",
        "channel": "context",
        "points": "ignored",
        "memo": "ignored",
    }
    assert why(result, "user_id") == "guessed from its name"
    assert why(result, "item") == "its name"
    assert why(result, "event_time_ms") == (
        "guessed from its name; milliseconds since 1970, 2020-09-13 to 2020-09-13"
    )
    assert why(result, "channel") == "you said so; categorical, 1 values"
    assert why(result, "points") == "it may be a value, such as a rating: --map value=points"
    assert why(result, "memo") == "--context memo would use it"
    # The order in time is known now: it is the reverse of that of the file.
    assert result.tables.manifest.time == "time"
    assert result.tables.interactions["time"].is_sorted(descending=True)


def test_a_mapping_wins_over_every_guess(tmp_path: Path) -> None:
    mapping = {"value": "points", "time": "points", "item": "memo"}
    with pytest.raises(SettingsError, match="two meanings"):
        shop(tmp_path, mapping=mapping)
    result = shop(tmp_path, mapping={"time": "points", "item": "memo"})
    assert became(result)["points"] == "time"
    assert why(result, "memo") == "you said so"
    assert became(result)["event_time_ms"] == became(result)["item"] == "ignored"
    assert why(result, "item") == "it may be the item, but 'memo' is: --map item=item"
    said = why(result, "event_time_ms")
    assert said == "it looks like a time, but 'points' is the time: --map time=event_time_ms"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("created_at", "2020-05-01T10:00:00Z"),
        ("eventTimestamp", f"{SECONDS}"),
        ("ts_us", f"{SECONDS * 10**6}"),
        ("Unix Time", f"{SECONDS}.5"),
        ("epoch-millis", f"{SECONDS * 1000}"),
        ("event.time", "2020-05-01"),
    ],
)
def test_usual_names_of_times(tmp_path: Path, name: str, value: str) -> None:
    result = import_files(put(tmp_path, "a.csv", f"user,item,{name}", f"a,b,{value}"), mapping={})
    assert became(result)[name] == "time"
    assert result.warnings == ()


def test_a_column_that_is_only_called_like_a_time_is_none(tmp_path: Path) -> None:
    source = put(tmp_path, "a.csv", "user,item,created,play_time", "a,b,yes,31", "a,c,no,250")
    result = import_files(source, mapping={})
    assert became(result)["created"] == became(result)["play_time"] == "ignored"
    assert result.tables.manifest.time is None
    # One wrong value does not make it something else: it is a bad row.
    rows = ["a,b,2020-01-01", "a,c,2020-01-02", "a,d,never"]
    with pytest.raises(DataError, match=r"line 4: 'created' must be a time: .*; got 'never'"):
        import_files(put(tmp_path, "b.csv", "user,item,created", *rows), mapping={})


def test_an_unknown_time_is_warned_of(tmp_path: Path) -> None:
    rows = [f"a,{k},{SECONDS + k},{SECONDS + k}" for k in range(5)]
    result = import_files(put(tmp_path, "a.csv", "user,item,zeit,cart_id", *rows), mapping={})
    [warning] = result.warnings
    assert warning.endswith(
        "a.csv: no column is the time, so lines stay in the order of the file; 'zeit' looks like"
        " a time: --map time=zeit"
    )
    assert why(result, "zeit") == "it looks like a time: --map time=zeit"


@pytest.mark.parametrize(
    ("times", "note"),
    [
        ([SECONDS, SECONDS + 86400], "seconds since 1970, 2020-09-13 to 2020-09-14"),
        ([SECONDS * 10**6] * 2, "microseconds since 1970, 2020-09-13 to 2020-09-13"),
        ([SECONDS * 10**9] * 2, "nanoseconds since 1970, 2020-09-13 to 2020-09-13"),
        ([1, 2], "numbers without a known unit, 1 to 2"),
        (["2020-01-02", "2021-01-02T01:00:00Z"], "dates, 2020-01-02 to 2021-01-02"),
    ],
)
def test_the_unit_of_times_is_told(tmp_path: Path, times: list[object], note: str) -> None:
    rows = [f"a,{k},{time}" for k, time in enumerate(times)]
    result = import_files(put(tmp_path, "a.csv", "user,item,time", *rows), mapping={})
    assert why(result, "time") == f"its name; {note}"
    assert result.warnings == ()


@pytest.mark.parametrize(
    ("other", "words"),
    [(SECONDS * 1000, "milliseconds and others seconds"), (0, "seconds and others not")],
)
def test_times_of_two_units_are_warned_of(tmp_path: Path, other: int, words: str) -> None:
    rows = [f"a,1,{SECONDS}", f"a,2,{other}"]
    [warning] = import_files(put(tmp_path, "a.csv", "user,item,ts", *rows), mapping={}).warnings
    assert f"some are {words}, and so their order is wrong" in warning


def test_dates_of_several_ways_have_one_order(tmp_path: Path) -> None:
    dates = [
        "2020-01-03",
        "2020-01-02T10:00:00Z",
        "2020-01-02 09:00:00",
        "2020-01-02T12:30:00+02:00",
        "2020-01-02T10:00:00.5Z",
    ]
    rows = [f"a,{k},{date}" for k, date in enumerate(dates)]
    tables = import_files(put(tmp_path, "a.csv", "user,item,date", *rows), mapping={}).tables
    assert tables.interactions.sort("time")["item"].to_list() == ["2", "1", "4", "3", "0"]


def test_files_of_people_and_items_are_listed_too(tmp_path: Path) -> None:
    source = put(tmp_path, "lines.txt", "1::2", "1::3", "2::3")
    users = put(tmp_path, "users.csv", "user_id,age,height,none", "1,30,1.5,", "2,40,1.6,", "3,,,")
    items = put(tmp_path, "items.csv", "id,name,genres", "2,It,a|b", "3,Up,a")
    result = import_files(source, mapping={}, users=users, items=items)
    listed = [(Path(use.file).name, use.column, use.became) for use in result.uses]
    assert listed == [
        ("lines.txt", "1", "user"),
        ("lines.txt", "2", "item"),
        ("users.csv", "user_id", "id"),
        ("users.csv", "age", "feature"),
        ("users.csv", "height", "feature"),
        ("users.csv", "none", "feature"),
        ("items.csv", "id", "id"),
        ("items.csv", "name", "title"),
        ("items.csv", "genres", "feature"),
    ]
    assert why(result, "1") == "guessed: it is column 1 of a file without a header"
    assert why(result, "age") == "categorical, 2 values"
    assert why(result, "height") == "numeric"
    assert why(result, "none") == "empty"
    assert why(result, "genres") == "multi-valued, 2 values"
    assert result.as_json()["people_without_lines"] == 1


def test_an_id_is_not_proposed_as_context(tmp_path: Path) -> None:
    rows = [f"a,{k},order {k},{'xy'[k % 2]}" for k in range(40)]
    result = import_files(put(tmp_path, "a.csv", "user,item,order,page", *rows), mapping={})
    assert why(result, "order") == "nearly each line has its own value"
    assert why(result, "page") == "--context page would use it"


def test_no_name_has_two_meanings() -> None:
    names = [name for ours in ("user", "item", "value", "time") for name in set(ALIASES[ours])]
    assert len(names) == len(set(names))
    assert all(plain_column(name) == name for name in names)


def test_the_command_says_what_it_did(scratch: Path) -> None:
    shop(scratch)
    said = done("data", "import", "events.csv", "--out", "mine", "--name", "My shop")
    assert "Columns of events.csv" in said
    assert "imported 9 interactions (9 likes) of 9 people with 9 items: mine" in said
    assert "there is no value: every line is a like" in said
    assert "My shop (mine)" in done("data", "describe", "mine")
    assert document("data", "describe", "mine", "--json")["name"] == "My shop"


def test_the_command_as_json(scratch: Path) -> None:
    shop(scratch)
    lines = (scratch / "events.csv").read_bytes() + b"u1,,1,web,3,x\n"
    (scratch / "bad.csv").write_bytes(lines)
    words = ("data", "import", "bad.csv", "--map", "value=points", "--positive-above", "3")
    found = document(*words, "--skip-bad", "--json", "--out", "mine")
    assert {key: value for key, value in found.items() if key != "columns"} == {
        "data": "mine",
        "name": "mine",
        "people": 9,
        "people_without_lines": 0,
        "items": 9,
        "interactions": 9,
        "likes": 3,
        "interactions_to_test": None,
        "positive_above": 3.0,
        "positive_above_is": "given",
        "has_times": True,
        "ignored": ["channel", "memo"],
        "skipped": 1,
        "duplicates_dropped": 0,
        "warnings": [],
        "skipped_in": "mine/skipped.csv",
    }
    assert [use["became"] for use in found["columns"]][:3] == ["user", "item", "time"]


def test_odd_files_are_refused_in_one_line(scratch: Path, refused: Refused) -> None:
    (scratch / "cut.csv.gz").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0")
    assert "cut.csv.gz is damaged or cut off" in refused(
        "data", "import", "cut.csv.gz", "--out", "a"
    )
    (scratch / "a.jsonl").write_text('{"user": 1, "item": 2}\n[3]\n', encoding="utf-8")
    line = refused("data", "import", "a.jsonl", "--out", "a")
    assert "a.jsonl line 2 must be a JSON object on one line; got '[3]'" in line
    assert "a.csv/b.csv does not exist" in refused("data", "import", "a.csv/b.csv", "--out", "a")
