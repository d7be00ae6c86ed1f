"""What looks like data and is not, or is there twice: an import says it, or refuses it."""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privrec
from commands import done
from privrec.data.importing import ImportResult, import_files
from privrec.errors import DataError

LINES = [f"u{k % 4},i{k % 6},{1 + k % 5}" for k in range(12)]


def put(folder: Path, header: str, ends: Sequence[object], name: str = "lines.csv") -> Path:
    """Write lines of user, item and value, each with an end of its own."""
    rows = [f"{line},{end}" for line, end in zip(LINES, ends, strict=True)]
    path = folder / name
    path.write_text("\n".join([f"user_id,item_id,{header}", *rows]) + "\n")
    return path


def read(path: Path, **settings: Any) -> ImportResult:
    return import_files(path, **{"mapping": {}, **settings})


def why(result: ImportResult, column: str) -> tuple[str, str]:
    [use] = [use for use in result.uses if use.column == column]
    return use.became, use.why


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("created_at", "Tue Nov 14 10:00:00 2023"),
        ("bought", "2023/12/31 10:00"),
    ],
)
def test_dates_that_are_not_read_are_warned_of(tmp_path: Path, name: str, value: str) -> None:
    result = read(put(tmp_path, f"rating,{name}", [value] * 12))
    became, said = why(result, name)
    assert became == "ignored"
    assert "in a form that is not read" in said
    [warning] = result.warnings
    assert (
        f"{name!r} may be a time, in a form that is not read: write dates as 2023-12-31" in warning
    )


@pytest.mark.parametrize(
    ("name", "value", "dates"),
    [("purchase_date", "12/31/2023", "month-first"), ("bought", "31.12.23", "day-first")],
)
def test_dates_that_an_option_would_read_are_warned_of(
    tmp_path: Path, name: str, value: str, dates: str
) -> None:
    result = read(put(tmp_path, f"rating,{name}", [value] * 12))
    said = f"looks like a time: --map time={name} (--dates {dates} reads it)"
    assert why(result, name) == ("ignored", f"it {said}")
    [warning] = result.warnings
    assert warning.endswith(f"in the order of the file; {name!r} {said}")


def test_what_is_no_date_is_not_warned_of(tmp_path: Path) -> None:
    assert read(put(tmp_path, "rating,version", ["1.2.3"] * 12)).warnings == ()


def test_an_option_can_be_pasted(tmp_path: Path) -> None:
    result = read(put(tmp_path, "rating,bought at", range(1700000000, 1700000012)))
    assert why(result, "bought at")[1].endswith("--map 'time=bought at'")
    frame = pl.DataFrame({"user": ["a"] * 9, "item": range(9), "bought at": ["2023-12-31"] * 9})
    with pytest.warns(UserWarning, match=r"of the frame.*privrec\.load\(frame, time='bought at'\)"):
        privrec.load(frame)


@pytest.mark.parametrize("header", ["rating,timestamp", "weight,rating"])
def test_an_empty_column_is_not_used(tmp_path: Path, header: str) -> None:
    result = read(put(tmp_path, header, [""] * 12))
    assert why(result, header.partition(",")[2]) == ("ignored", "it is empty")


def test_columns_that_cannot_be_a_context_are_not_proposed(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": ["a", "b"], "item": [1, 2], "inner": [{"x": 1}, {"x": 2}]})
    frame.write_parquet(tmp_path / "lines.parquet")
    result = read(tmp_path / "lines.parquet")
    assert why(result, "inner") == ("ignored", "it has no plain values")


def test_times_of_a_day_are_no_times() -> None:
    lines = pl.DataFrame({"user": ["a", "b"], "item": [1, 2], "time": [datetime.time(9)] * 2})
    with pytest.raises(DataError, match="'time' must be times with a date; got times of a day"):
        privrec.load(lines)


def test_dates_among_numbers_are_named(tmp_path: Path) -> None:
    times = ["2023-12-31", *range(1700000000, 1700000011)]
    with pytest.raises(DataError, match="must be a time: a finite number, as others of the"):
        read(put(tmp_path, "rating,timestamp", times))


def test_numbers_without_a_unit_keep_their_digits(tmp_path: Path) -> None:
    result = read(put(tmp_path, "rating,date", range(20231201, 20231213)))
    [note] = [use.note for use in result.uses if use.column == "date"]
    assert note.endswith("20231201 to 20231212")


def test_an_error_names_some_of_many_columns() -> None:
    with pytest.raises(DataError, match=r"\(it has: a0, a1, .*, a11 and 2,988 more\); say"):
        privrec.load(pl.DataFrame({f"a{k}": [1] for k in range(3000)}))


def test_lines_that_are_there_twice_are_warned_of(tmp_path: Path) -> None:
    path = put(tmp_path, "rating,timestamp", range(12))
    text = path.read_text()
    path.write_text(text + "u0,i0,1,0\nu1,i1,2,99\n")
    [warning] = read(path).warnings
    assert warning.startswith("1 of the 14 lines are the same as another one")
    path.write_text("user,item\na,b\na,b\n")
    assert read(path).warnings == ()  # without a time these may be two visits


def test_lines_to_be_tested_that_train_are_warned_of(tmp_path: Path) -> None:
    path = put(tmp_path, "rating,timestamp", range(12))
    test = put(tmp_path, "rating,timestamp", [0, 1, *range(50, 60)], "test.csv")
    assert read(path, test=test).warnings == (
        "2 of the 12 lines to be tested are also among those to train on",
    )


def test_it_is_said_if_every_value_is_a_like(tmp_path: Path) -> None:
    path = put(tmp_path, "points,rating", [20 * k for k in range(1, 13)])
    said = done("data", "import", path, "--out", tmp_path / "a")
    assert "every line is one, and --positive-above sets another limit" in said
    said = done("data", "import", path, "--out", tmp_path / "b", "--positive-above", "90")
    assert "every line" not in said


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
