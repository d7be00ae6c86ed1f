"""What the columns of ordinary files become: of shops, of Excel, of older data sets."""

import datetime
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privrec
from commands import Refused, document, done
from packing import put
from privrec.data.columns import USUAL_NAMES, plain_column
from privrec.data.importing import ImportResult, import_files
from privrec.data.rawfiles import read_raw
from privrec.data.tables import to_federation
from privrec.errors import DataError, SettingsError

SECONDS = 1_600_000_000
EXCEL = (
    "Käufer;Artikel;Bewertung;Datum\r\n"
    "Jürgen;Bücher;4,5;31.12.2023\r\n"
    "Jürgen;Möbel;2;01.02.2023 08:30\r\n"
    "Zoë;Bücher;1,5;3.1.2023\r\n"
    "Zoë;Möbel;4,5;3.1.2023\r\n"
)
MAPPED = {"user": "Käufer", "item": "Artikel", "value": "Bewertung", "time": "Datum"}


def loaded(folder: Path, text: str, **settings: Any) -> ImportResult:
    return import_files(put(folder, "lines.txt", text), **{"mapping": {}, **settings})


def said(folder: Path, text: str, **settings: Any) -> str:
    """Return the message of an import that is refused."""
    with pytest.raises((DataError, SettingsError)) as caught:
        loaded(folder, text, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def became(result: ImportResult) -> dict[str, str]:
    return {use.column: use.became for use in result.uses}


def note(result: ImportResult, column: str) -> str:
    [use] = [use for use in result.uses if use.column == column]
    return use.note


def shop(folder: Path, **settings: Any) -> ImportResult:
    """Import lines whose time was once dropped without a word."""
    rows = [f"u{k % 9},p{k},{(SECONDS + 9 - k) * 1000},web,{k % 5 + 1},x{k}\n" for k in range(9)]
    header = "user_id,item,event_time_ms,channel,points,memo\n"
    source = put(folder, "events.csv", header + "".join(rows))
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
    assert note(result, "user_id") == note(result, "item") == "its name"
    assert note(result, "event_time_ms").endswith(f"{SECONDS + 1}000 to {SECONDS + 9}000")
    assert note(result, "channel") == "you said so; categorical, 1 values"
    # The order in time is known now: it is the reverse of that of the file.
    assert result.tables.manifest.time == "time"
    assert result.tables.interactions["time"].is_sorted(descending=True)


def test_a_mapping_wins_over_every_guess(tmp_path: Path) -> None:
    mapping = {"value": "points", "time": "points", "item": "memo"}
    with pytest.raises(SettingsError, match="must be different columns"):
        shop(tmp_path, mapping=mapping)
    result = shop(tmp_path, mapping={"time": "points", "item": "memo"})
    assert became(result)["points"] == "time"
    assert note(result, "memo") == "you said so"
    assert became(result)["event_time_ms"] == became(result)["item"] == "ignored"


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
    result = import_files(put(tmp_path, "a.csv", f"user,item,{name}\na,b,{value}\n"), mapping={})
    assert became(result)[name] == "time"
    assert result.warnings == ()


def test_a_column_that_is_only_called_like_a_time_is_none(tmp_path: Path) -> None:
    result = loaded(tmp_path, "user,item,created,play_time\na,b,yes,31\na,c,no,250\n")
    assert became(result)["created"] == became(result)["play_time"] == "ignored"
    assert result.tables.manifest.time is None
    # One wrong value does not make it something else: it is a bad row.
    text = "user,item,created\na,b,2020-01-01\na,c,2020-01-02\na,d,never\n"
    assert "line 4: 'created' must be a time:" in said(tmp_path, text)


@pytest.mark.parametrize("time", ["1700000000", "2023-12-31", "12/31/2023", "31.12.23"])
def test_an_unknown_time_is_warned_of(tmp_path: Path, time: str) -> None:
    [warning] = loaded(tmp_path, f"user,item,zeit,cart_id\na,b,{time},{SECONDS}\n").warnings
    assert "no column is the time, so lines stay in the order of the file; 'zeit'" in warning
    frame = pl.DataFrame({"user": ["a"], "item": [1], "zeit": [time]})
    with pytest.warns(UserWarning, match=r"^the frame: no column .*a time \(time=…\)$"):
        privrec.load(frame)


def test_what_is_no_date_is_not_warned_of(tmp_path: Path) -> None:
    assert loaded(tmp_path, "user,item,version\na,b,1.2.3\na,c,1.2.4\n").warnings == ()


def test_dates_of_several_ways_have_one_order(tmp_path: Path) -> None:
    dates = [
        "2020-01-03",
        "2020-01-02T10:00:00Z",
        "2020-01-02 09:00:00",
        "2020-01-02T12:30:00+02:00",
        "2020-01-02T10:00:00.5Z",
    ]
    tables = loaded(tmp_path, dated(*dates)).tables
    assert tables.interactions.sort("time")["item"].to_list() == ["2", "1", "4", "3", "0"]


def test_files_of_people_and_items_are_listed_too(tmp_path: Path) -> None:
    source = put(tmp_path, "lines.txt", "1::2\n1::3\n2::3\n")
    users = put(tmp_path, "users.csv", "user_id,age,height,none\n1,30,1.5,\n2,40,1.6,\n3,,,\n")
    items = put(tmp_path, "items.csv", "id,name,genres\n2,It,a|b\n3,Up,a\n")
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
    assert note(result, "1") == "its place"
    assert note(result, "age") == "categorical, 2 values"
    assert note(result, "height") == "numeric"
    assert note(result, "none") == "empty"
    assert note(result, "genres") == "multi-valued, 2 values"
    assert result.as_json()["people_without_lines"] == 1


USUAL = {
    "user": "user user_id uid customerId Member-ID username account",
    "item": "item item_id movieId ISBN parent_asin asin product StockCode sku",
    "value": "value rating Score stars label Book-Rating review_score",
    "time": "time ts date created_at createdOn orderPurchaseTimestamp unixReviewTime epoch_ms"
    " event.time.utc invoice_date started-at created",
}


@pytest.mark.parametrize("ours", USUAL)
def test_a_usual_name_has_one_meaning(ours: str) -> None:
    for name in USUAL[ours].split():
        fitting = [
            role
            for role in USUAL
            for pattern in USUAL_NAMES[role]
            if re.fullmatch(pattern, plain_column(name))
        ]
        assert set(fitting) == {ours}, name


@pytest.mark.parametrize(
    "name", ["birth_date", "release_date", "signup time", "id", "genre", "price", "userage"]
)
def test_other_names_have_none(name: str) -> None:
    patterns = [pattern for role in USUAL for pattern in USUAL_NAMES[role]]
    assert not any(re.fullmatch(pattern, plain_column(name)) for pattern in patterns)


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
        "warnings": [],
        "skipped_in": "mine/skipped.csv",
    }
    assert [use["became"] for use in found["columns"]][:3] == ["user", "item", "time"]


def test_odd_files_are_refused_in_one_line(scratch: Path, refused: Refused) -> None:
    (scratch / "cut.csv.gz").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0")
    assert "cut.csv.gz is damaged or cut off" in refused(
        "data", "import", "cut.csv.gz", "--out", "a"
    )
    (scratch / "a.jsonl").write_text('{"user": 1, "item": 2}\n', encoding="utf-8")
    line = refused("data", "import", "a.jsonl", "--out", "a")
    assert "a.jsonl is JSON, which is not read: use CSV or Parquet, or a frame in Python" in line
    assert "a.csv/b.csv does not exist" in refused("data", "import", "a.csv/b.csv", "--out", "a")


@pytest.mark.parametrize("header", ["rating,timestamp", "weight,rating"])
def test_an_empty_column_is_not_used(tmp_path: Path, header: str) -> None:
    result = loaded(tmp_path, f"user,item,{header}\na,b,3,\na,c,4,\n")
    name = header.partition(",")[2]
    assert (became(result)[name], note(result, name)) == ("ignored", "empty")


def test_times_of_a_day_are_no_times() -> None:
    lines = pl.DataFrame({"user": ["a", "b"], "item": [1, 2], "time": [datetime.time(9)] * 2})
    with pytest.raises(DataError, match="'time' must be times with a date; got times of a day"):
        privrec.load(lines)


def test_dates_among_numbers_are_named(tmp_path: Path) -> None:
    text = dated("2023-12-31", "1700000000", "1700000001")
    assert "must be a time: a finite number, as others of the" in said(tmp_path, text)


def test_an_error_names_some_of_many_columns() -> None:
    with pytest.raises(DataError, match=r"\(it has: a0, a1, .*, a11 and 2,988 more\)"):
        privrec.load(pl.DataFrame({f"a{k}": [1] for k in range(3000)}))


LINES = "user,item,rating,time\n" + "".join(f"u{k % 4},i{k % 6},{k % 5},{k}\n" for k in range(12))


def test_lines_that_are_there_twice_are_warned_of(tmp_path: Path) -> None:
    text = LINES + "u0,i0,0,0\nu0,i0,1,0\nu1,i1,2,99\n"
    [warning] = loaded(tmp_path, text).warnings
    assert warning.startswith("1 of the 15 lines are the same as another one")
    # Without a time these may be two visits.
    assert loaded(tmp_path, "user,item\na,b\na,b\n").warnings == ()


def test_lines_to_be_tested_that_train_are_warned_of(tmp_path: Path) -> None:
    test = put(tmp_path, "test.csv", LINES.replace("u3,", "u2,"))
    assert loaded(tmp_path, LINES, test=test).warnings == (
        "9 of the 12 lines to be tested are also among those to train on",
    )


def test_the_command_tells_of_values_that_are_all_likes(scratch: Path) -> None:
    put(scratch, "lines.csv", "user,item,rating\nu,1,20\nu,1,20\nv,1,40\n")
    answer = done("data", "import", "lines.csv", "--out", "shop")
    assert "every line is one, and --positive-above sets another limit" in answer
    answer = done("data", "import", "lines.csv", "--out", "b", "--positive-above", "30")
    assert "every line" not in answer


@pytest.mark.parametrize(("kind", "least"), [(np.float64, 2**53), (np.float32, 2**24)])
def test_ids_that_have_lost_digits_are_refused(kind: Any, least: int) -> None:
    ids = np.array([3, least + 2], kind)
    lines = pl.DataFrame({"user": ids, "item": ["a", "b"]})
    with pytest.raises(DataError, match=f"row 1: 'user' must .* below {least:,} in .* digits are"):
        privrec.load(lines)


def test_ids_of_any_length_are_text() -> None:
    pandas = pytest.importorskip("pandas")
    lines = pandas.DataFrame({"user": [2**200, 2**200 + 1, 3], "item": ["a", "b", "c"]})
    assert privrec.load(lines).names == [str(2**200), str(2**200 + 1), "3"]


def test_sets_in_a_frame_are_one_line() -> None:
    pandas = pytest.importorskip("pandas")
    lines = pandas.DataFrame({"user": ["a", "b"], "item": [1, 2], "tags": [{"x"}, {"y"}]})
    with pytest.raises(DataError, match="'tags' must be plain values or lists; got Object"):
        privrec.load(lines, context=["tags"])


def test_numbers_of_numpy_are_numbers_and_texts_no_truth() -> None:
    lines = pl.DataFrame({"user": ["a", "b"], "item": [1, 2], "rating": [2, 5]})
    found = privrec.load(lines, positive_above=np.int64(4))  # type: ignore[arg-type]
    assert "2 people, 2 items, likes above 4, no times" in repr(found)
    assert "every line a like" in repr(privrec.load(lines.drop("rating")))
    with pytest.raises(privrec.PrivrecError, match="`skip_bad` must be True or False; got 'no'"):
        privrec.load(lines, skip_bad="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8", "utf-8-sig"])
def test_a_csv_file_of_excel(tmp_path: Path, encoding: str) -> None:
    path = put(tmp_path, "export.csv", EXCEL, encoding)
    result = import_files(
        path,
        mapping=MAPPED,
        decimal=",",
        dates="day-first",
        encoding="cp1252" if encoding == "cp1252" else "utf-8",
    )
    lines = result.tables.interactions
    assert lines["value"].to_list() == [4.5, 2.0, 1.5, 4.5]
    assert [f"{time}" for time in lines["time"]] == [
        "2023-12-31 00:00:00",
        "2023-02-01 08:30:00",
        "2023-01-03 00:00:00",
        "2023-01-03 00:00:00",
    ]
    assert lines["user"].to_list() == ["Jürgen", "Jürgen", "Zoë", "Zoë"]


def test_each_refusal_of_a_csv_file_of_excel_offers_what_to_say(
    scratch: Path, refused: Refused
) -> None:
    """A newcomer follows the messages, one after the other, and gets there."""
    put(scratch, "export.csv", EXCEL, "cp1252")
    words = ["data", "import", "export.csv", "--out", "shop"]
    assert "--encoding cp1252" in refused(*words)
    words += ["--encoding", "cp1252"]
    assert "--map user=… --map item=…" in refused(*words)
    words += ["--map", "user=Käufer", "--map", "item=Artikel"]
    answer = document(*words, "--json")
    assert answer["ignored"] == ["Bewertung", "Datum"]
    assert "'Datum' looks like a time (--map time=…)" in answer["warnings"][0]
    words[4] = "shop-2"
    words += ["--map", "value=Bewertung", "--map", "time=Datum"]
    assert "(--decimal , reads a decimal comma); got '4,5'" in refused(*words)
    words += ["--decimal", ","]
    assert "--dates day-first reads 31.12.2023" in refused(*words)
    done(*words, "--dates", "day-first")


def test_a_point_is_no_decimal_comma(tmp_path: Path) -> None:
    """1.234 may be a thousand and more: it is not guessed."""
    text = "user;item;rating\nu;1;2,5\nu;2;1.234\n"
    assert "with a decimal comma; got '1.234'" in said(tmp_path, text, decimal=",")
    assert "(--decimal , reads a decimal comma); got '2,5'" in said(tmp_path, text)


def test_decimal_commas_of_features(tmp_path: Path) -> None:
    items = put(tmp_path, "items.csv", "id;Preis;Jahr\n1;2,50;1999\n2;13;2001\n")
    found = loaded(tmp_path, "user;item\nu;1\nu;2\n", items=items, decimal=",").tables.items
    assert found["Preis"].to_list() == [2.5, 13.0]
    assert found["Jahr"].to_list() == [1999, 2001]
    [warning] = loaded(tmp_path, "user;item\nu;1\nu;2\n", items=items).warnings
    assert "'Preis' has decimal commas, and so its numbers are read as words" in warning
    assert "--decimal ," in warning


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("u;1;4,5\nu;2;3,5\n", [("u", "1", 4.5), ("u", "2", 3.5)]),
        ("u 1 4,5\nu 2 3,5\n", [("u", "1", 4.5), ("u", "2", 3.5)]),
        ('u,1,"4,5"\nu,2,"3,5"\n', [("u", "1", 4.5), ("u", "2", 3.5)]),
        ("user;item;rating\nu;1;4,5\nu;2;3\n", [("u", "1", 4.5), ("u", "2", 3.0)]),
    ],
)
def test_a_decimal_comma_is_no_separator(
    tmp_path: Path, text: str, rows: list[tuple[str, str, float]]
) -> None:
    assert loaded(tmp_path, text, decimal=",").tables.interactions.rows() == rows


def dated(*dates: str) -> str:
    return "user,item,date\n" + "".join(f"u,{k},{date}\n" for k, date in enumerate(dates))


@pytest.mark.parametrize(
    ("dates", "date", "found"),
    [
        ("day-first", "31.12.2023", "2023-12-31 00:00:00"),
        ("day-first", "3/4/23", "2023-04-03 00:00:00"),
        ("day-first", "03-04-2023 7:05", "2023-04-03 07:05:00"),
        ("month-first", "12/31/2023", "2023-12-31 00:00:00"),
        ("month-first", "3/4/2023 12:05:09 AM", "2023-03-04 00:05:09"),
        ("month-first", "3/4/2023 12:05 pm", "2023-03-04 12:05:00"),
        ("month-first", "3/4/2023 1:05 PM", "2023-03-04 13:05:00"),
        ("day-first", "2023-12-31", "2023-12-31 00:00:00"),
        ("day-first", "31.12.69", "2069-12-31 00:00:00"),
        ("day-first", "31.12.99", "1999-12-31 00:00:00"),
        ("iso", "2023-12-31 7:05", "2023-12-31 07:05:00"),
        ("iso", "2023-12-31T07:05:09.25+02:00", "2023-12-31 05:05:09.250000"),
        ("iso", "2023-12-31 07:05:09 UTC", "2023-12-31 07:05:09"),
    ],
)
def test_dates_with_the_day_or_the_month_first(
    tmp_path: Path, dates: str, date: str, found: str
) -> None:
    lines = loaded(tmp_path, dated(date), dates=dates).tables.interactions
    assert f"{lines['time'][0]}" == found


@pytest.mark.parametrize("date", ["31.12.2023", "12/31/2023", "1/2/2023"])
def test_a_date_that_can_be_two_days_is_never_guessed(tmp_path: Path, date: str) -> None:
    message = said(tmp_path, dated(date, "1/1/2023"))
    assert "--dates day-first reads 31.12.2023, --dates month-first 12/31/2023" in message
    assert f"; got '{date}'" in message


def test_a_date_that_is_none_is_a_bad_row(tmp_path: Path) -> None:
    for way, date in (
        ("day-first", "12/31/2023"),
        ("month-first", "31.12.2023"),
        ("day-first", "1.2.202"),
        ("day-first", "1.2.2023 25:00"),
        ("month-first", "1.2.2023 and more"),
    ):
        message = said(tmp_path, dated("1.2.2023", date), dates=way)
        assert f"line 3: 'date' must be a time: a finite number or a date with the {way[:-6]}" in (
            message
        )
        assert f"; got '{date}'" in message
    assert "; got '2023-13-01'" in said(tmp_path, dated("2023-13-01"))
    assert "`--dates` must be 'iso', 'day-first' or 'month-first'" in said(
        tmp_path, dated("1.2.2023"), dates="dayfirst"
    )
    assert "`--decimal` must be '.' or ','" in said(tmp_path, dated("1.2.2023"), decimal=";")


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("ann b1 5 100\nann b2 4 90\n", 4),
        ("  ann   b1    5  \n \nben    b22   4\n", 3),
        ("user item rating\nann b1 5\nben b1 4\n", 3),
        ("1 5 4\n1 6 3\n2 5 4\n", 3),
        ("1|A Film, The (1995)|x\n2|A Day, The|y\n3|Some|z\n", 3),
        ("1|A Film (1995)|0|1\n2|Days|1|0\n", 4),
    ],
)
def test_spaces_and_bars_separate(tmp_path: Path, text: str, width: int) -> None:
    table = read_raw(put(tmp_path, "lines.txt", text), form="auto")
    assert table.frame.width == width
    assert not table.bad


def test_numbers_with_spaces_may_be_lists(tmp_path: Path) -> None:
    text = "1 5 4\n2 6 3\n3 5 4\n"
    message = said(tmp_path, text)
    assert "--format lists" in message
    assert "--format table" in message
    assert loaded(tmp_path, text, form="table").tables.interactions.height == 3
    assert loaded(tmp_path, text, form="lists").tables.interactions.height == 6


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """Made-up files in the form of MovieLens-100K: no header, and genres as flags."""
    draw = np.random.default_rng(0)
    people, items, genres = 40, 30, 5
    lines = [
        f"{u}\t{i}\t{draw.integers(1, 6)}\t{880_000_000 + int(draw.integers(10**7))}"
        for u in range(1, people + 1)
        for i in draw.choice(items, 12, replace=False) + 1
    ]
    flags = draw.integers(0, 2, (items, genres))
    films = [
        f"{i}|{'Été' if i == 3 else 'Film'} {i}{', The' * (i % 2)} (19{60 + i})|01-Jan-19{60 + i}||"
        f"http://x/{i}|" + "|".join(map(str, flags[i - 1]))
        for i in range(1, items + 1)
    ]
    jobs = ("writer", "artist")
    users = [f"{u}|{20 + u % 3}|{'FM'[u % 2]}|{jobs[u % 2]}|{u:05}" for u in range(1, people + 1)]
    put(tmp_path, "u.data", "\n".join(lines) + "\n")
    put(tmp_path, "u.item", "\n".join(films) + "\n", "latin-1")
    put(tmp_path, "u.user", "\n".join(users) + "\n")
    return tmp_path


def test_files_in_the_form_of_movielens_100k(hundred: Path) -> None:
    result = import_files(
        hundred / "u.data",
        mapping={},
        items=hundred / "u.item",
        users=hundred / "u.user",
        encoding="latin-1",
        flags={"genres": "6..10"},
        ignore=["5", "items:3"],
    )
    tables = result.tables
    assert tables.users.columns == ["id", "2", "3", "4"]
    assert tables.items.columns == ["id", "title", "4", "genres"]
    assert tables.items["title"][2] == "Été 3, The (1963)"
    assert tables.items["genres"].dtype == pl.List(pl.String)
    assert set(tables.items["genres"].explode()) == {"6", "7", "8", "9", "10"}
    uses = {(Path(use.file).name, use.column): use for use in result.uses}
    assert uses["u.item", "2"].became == "title"
    assert uses["u.item", "2"].note == "its place"
    assert uses["u.item", "genres"].note == "multi-valued, 5 values"
    assert uses["u.item", "5"].became == uses["u.user", "5"].became == "ignored"
    names = [feature.name for feature in to_federation(tables).catalogue.schema.features]
    assert names == ["2", "3", "4", "genres"]  # The empty column 4 of items is no feature.


def test_flags_with_names_become_values(tmp_path: Path) -> None:
    text = "id,title,Sci-Fi,Drama\n1,Heat,0,1\n2,Up,1,1\n3,It,,0\n"
    items = put(tmp_path, "items.csv", text)
    lines = "user,item\nu,1\nu,2\nu,3\n"
    found = loaded(tmp_path, lines, items=items, flags={"genres": "Sci-Fi..Drama"}).tables.items
    assert found["genres"].to_list() == [["Drama"], ["Sci-Fi", "Drama"], []]
    assert found.columns == ["id", "title", "genres"]
    bad = put(tmp_path, "bad.csv", text.replace("0,1", "0,2"))
    message = said(tmp_path, lines, items=bad, flags={"genres": "Sci-Fi..Drama"})
    assert "bad.csv line 2: 'Drama' must be 0 or 1; got '2'" in message
    assert "`--flags` must be NAME=FIRST..LAST" in said(
        tmp_path, lines, items=items, flags={"genres": "Drama"}
    )
    assert "no column 'Drma'; did you mean 'Drama'?" in said(
        tmp_path, lines, items=items, flags={"genres": "Sci-Fi..Drma"}
    )
    assert "`--flags` is about the items file" in said(tmp_path, lines, flags={"genres": "a..b"})


def test_a_column_to_ignore_must_be_there(tmp_path: Path) -> None:
    lines = "user,item,rating\nu,1,5\n"
    items = put(tmp_path, "items.csv", "id,price\n1,5\n")
    message = said(tmp_path, lines, items=items, ignore=["items:prise"])
    assert "no file of people or items has the column 'prise'; did you mean 'price'?" in message
    # A rating is not left out by a number that is meant for another file.
    assert "no file of people" in said(tmp_path, lines, items=items, ignore=["rating"])
    assert loaded(tmp_path, lines, items=items, ignore=["price"]).tables.items.columns == ["id"]


def test_from_files_of_movielens_100k_to_an_export(
    hundred: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hundred)
    words = ("--items", "u.item", "--users", "u.user", "--encoding", "latin-1", "--ignore", "5")
    done("data", "import", "u.data", "--out", "films", *words, "--flags", "genres=6..10")
    assert document("data", "describe", "films", "--json")["items"] == 30
    done("train", "ease", "--data", "films", "--out", "run")
    done("evaluate", "run")
    found = document("recommend", "run", "--like", "Été 3, The (1963)", "--top", "3", "--json")
    assert all("(19" in entry["title"] for entry in found)
    done("export", "run", "--out", "model.privrec")


def test_a_frame_is_not_offered_options_of_the_command() -> None:
    frame = pl.DataFrame({"user": ["u"], "item": ["1"], "rating": ["4,5"], "date": ["1.2.2023"]})
    for columns in (frame.drop("date"), frame.drop("rating")):
        with pytest.raises(DataError) as caught:
            privrec.load(columns)
        assert "decimal ," not in str(caught.value)
        assert "dates " not in str(caught.value)
    with pytest.raises(DataError, match=r"\(say which it is with user=…\)$"):
        privrec.load(frame.drop("user"))
