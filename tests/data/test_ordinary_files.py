"""Files as people have them: of Excel, of older data sets, and of one person alone."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privrec
from commands import Refused, document, done
from privrec.data.importing import ImportResult, import_files
from privrec.data.tables import to_federation
from privrec.errors import DataError, SettingsError

EXCEL = (
    "Käufer;Artikel;Bewertung;Datum\r\n"
    "Jürgen;Bücher;4,5;31.12.2023\r\n"
    "Jürgen;Möbel;2;01.02.2023 08:30\r\n"
    "Zoë;Bücher;1,5;3.1.2023\r\n"
    "Zoë;Möbel;4,5;3.1.2023\r\n"
)
MAPPED = {"user": "Käufer", "item": "Artikel", "value": "Bewertung", "time": "Datum"}


def put(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def loaded(folder: Path, text: str, **settings: Any) -> ImportResult:
    return import_files(put(folder, "lines.txt", text), **{"mapping": {}, **settings})


def said(folder: Path, text: str, **settings: Any) -> str:
    """Return the message of an import that is refused."""
    with pytest.raises((DataError, SettingsError)) as caught:
        loaded(folder, text, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- Excel -----------------------------------------------------------------------------------


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
    columns = {use["column"]: use["why"] for use in document(*words, "--json")["columns"]}
    assert "--map value=Bewertung (--decimal , reads it)" in columns["Bewertung"]
    assert "--map time=Datum (--dates day-first reads it)" in columns["Datum"]
    words[4] = "shop-2"
    words += ["--map", "value=Bewertung", "--map", "time=Datum"]
    assert "(--decimal , reads a decimal comma); got '4,5'" in refused(*words)
    words += ["--decimal", ","]
    assert "(--dates day-first reads it); got '31.12.2023'" in refused(*words)
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


# --- dates -----------------------------------------------------------------------------------


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
    ],
)
def test_dates_with_the_day_or_the_month_first(
    tmp_path: Path, dates: str, date: str, found: str
) -> None:
    lines = loaded(tmp_path, dated(date), dates=dates).tables.interactions
    assert f"{lines['time'][0]}" == found


@pytest.mark.parametrize(
    ("dates", "offered"),
    [
        (("31.12.2023", "1.2.2023"), "(--dates day-first reads it)"),
        (("1/2/2023", "12/31/2023"), "(--dates month-first reads it)"),
        (("1/2/2023", "2/1/2023"), "(say --dates day-first or --dates month-first)"),
    ],
)
def test_a_date_that_can_be_two_days_is_never_guessed(
    tmp_path: Path, dates: tuple[str, str], offered: str
) -> None:
    assert f"{offered}; got '{dates[0]}'" in said(tmp_path, dated(*dates))


def test_a_date_that_is_none_is_a_bad_row(tmp_path: Path) -> None:
    for way, date in (("day-first", "12/31/2023"), ("month-first", "31.12.2023")):
        message = said(tmp_path, dated("1.2.2023", date), dates=way)
        assert f"line 3: 'date' must be a time: a finite number or a date with the {way[:-6]}" in (
            message
        )
        assert f"; got '{date}'" in message
    assert "(--dates" not in said(tmp_path, dated("2023-13-01"))
    assert "`--dates` must be one of iso, day-first, month-first" in said(
        tmp_path, dated("1.2.2023"), dates="dayfirst"
    )
    assert "`--decimal` must be . or ," in said(tmp_path, dated("1.2.2023"), decimal=";")


# --- separators ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("ann b1 5 100\nann b2 4 90\n", 4),
        ("  ann   b1    5  \nben    b22   4\n", 3),
        ("user item rating\nann b1 5\nben b1 4\n", 3),
        ("1 5 4\n1 6 3\n2 5 4\n", 3),
        ("1|A Film, The (1995)|x\n2|A Day, The|y\n3|Some|z\n", 3),
        ("1|A Film (1995)|0|1\n2|Days|1|0\n", 4),
    ],
)
def test_spaces_and_bars_separate(tmp_path: Path, text: str, width: int) -> None:
    from privrec.data.rawfiles import read_raw

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


# --- one person, and lines that are there twice ----------------------------------------------


def test_the_history_of_one_person(tmp_path: Path) -> None:
    for text in ("title,date\nHeat,2023-01-01\nUp,2023-01-02\n", "Heat,1\nUp,2\n"):
        mapping = {"item": "title"} if text.startswith("title") else {}
        result = loaded(tmp_path, text, user="me", mapping=mapping)
        assert result.tables.users["id"].to_list() == ["me"]
        assert result.tables.interactions["item"].to_list() == ["Heat", "Up"]
    assert "(or --user NAME if all lines are of one person)" in said(tmp_path, "item\nHeat\n")
    assert loaded(tmp_path, "7\n9\n", user="me").tables.items["id"].to_list() == ["7", "9"]


def test_one_person_has_no_user_column(tmp_path: Path) -> None:
    two = "user,item\nann,1\nben,2\n"
    assert "'user' names 2 people" in said(tmp_path, two, user="me")
    assert "`--user`" in said(tmp_path, two, user="me", mapping={"user": "user"})
    assert "`--user`" in said(tmp_path, two, user="me", users=put(tmp_path, "u", "id\nme\n"))
    assert "`--user`" in said(tmp_path, two, user="")
    # An account's own export may name her in each line.
    mine = loaded(tmp_path, "profile,item\nann,1\nann,2\n", user="me")
    assert mine.tables.users["id"].to_list() == ["me"]


def test_lines_that_are_there_twice_are_dropped_where_asked(tmp_path: Path) -> None:
    text = "user,item,rating,time\nu,1,5,10\nu,1,5,10\nu,1,4,10\nv,1,5,10\n"
    [warning] = loaded(tmp_path, text).warnings
    assert "(--drop-duplicates keeps one of each)" in warning
    result = loaded(tmp_path, text, drop_duplicates=True)
    assert result.warnings == ()
    assert result.tables.interactions.height == 3
    assert result.as_json()["duplicates_dropped"] == 1


def test_the_command_counts_what_it_dropped(scratch: Path) -> None:
    put(scratch, "lines.csv", "user,item\nu,1\nu,1\nv,1\n")
    said = done("data", "import", "lines.csv", "--out", "shop", "--drop-duplicates")
    assert "dropped 1 line that was there already" in said


# --- MovieLens-100K's form -------------------------------------------------------------------


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
    became = {(Path(use.file).name, use.column): use for use in result.uses}
    assert became["u.item", "2"].became == "title"
    assert "guessed" in became["u.item", "2"].why
    assert became["u.item", "genres"].note == "multi-valued, 5 values"
    assert became["u.item", "5"].became == became["u.user", "5"].became == "ignored"
    names = [feature.name for feature in to_federation(tables).catalogue.schema.features]
    assert names == ["2", "3", "4", "genres"]  # The empty column 4 of items is no feature.


def test_columns_of_flags_are_pointed_out(hundred: Path) -> None:
    result = import_files(
        hundred / "u.data", mapping={}, items=hundred / "u.item", encoding="latin-1"
    )
    [warning] = [line for line in result.warnings if "--flags" in line]
    assert "5 columns of 0 and 1" in warning
    assert "--flags NAME=6..10" in warning


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


def test_a_column_that_may_be_the_title_is_pointed_out(tmp_path: Path) -> None:
    rows = "".join(f"{k};Buch {chr(97 + k)}\n" for k in range(20))
    items = put(tmp_path, "items.csv", f"id;Name des Buchs\n{rows}")
    [warning] = loaded(tmp_path, "user,item\nu,1\nu,2\n", items=items).warnings
    assert warning.endswith(
        "if it is their name, --map 'title=Name des Buchs'; else leave it out"
        " (--ignore 'items:Name des Buchs')"
    )


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
    with pytest.raises(DataError, match=r"say which it is with privrec\.load\(frame, user=.….\)$"):
        privrec.load(frame.drop("user"))
