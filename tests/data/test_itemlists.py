"""Files with one line for each person: her number, then the numbers of her items."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import Refused, invoke
from packing import put
from privrec.data.importing import ImportResult, import_files, write_import
from privrec.data.rawfiles import looks_like_lists, split_lists
from privrec.data.sources import load
from privrec.errors import DataError, SettingsError

TRAIN = "0 5 7 6\n1 5\n2\n10 7 9\n"


def imported(folder: Path, text: str | bytes, **settings: Any) -> ImportResult:
    return import_files(put(folder, "train.txt", text), mapping={}, **settings)


def pairs(result: ImportResult) -> list[tuple[str, ...]]:
    return result.tables.interactions.rows()


@given(
    lists=st.dictionaries(st.integers(0, 10**12), st.lists(st.integers(0, 99)), min_size=1),
    between=st.sampled_from([" ", "\t", ",", ", ", "  ", " \t"]),
    end=st.sampled_from(["", "\n", " \n", "\n\n"]),
)
def test_every_person_and_item_is_read(lists: dict[int, list[int]], between: str, end: str) -> None:
    lines = [between.join(map(str, [person, *items])) for person, items in lists.items()]
    table = split_lists("\n".join(lines) + end, "some.txt")
    found: dict[int, list[int]] = {}
    for (person, item), line in zip(table.frame.iter_rows(), table.lines, strict=True):
        found.setdefault(int(person), []).extend([] if item is None else [int(item)])
        assert list(lists)[line - 1] == int(person)
    assert found == lists
    assert list(found) == list(lists)
    assert table.bad == ()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lists_become_a_data_folder(tmp_path: Path, end: str) -> None:
    result = imported(tmp_path, TRAIN.replace("\n", end))
    assert pairs(result) == [
        ("0", "5"),
        ("0", "7"),
        ("0", "6"),
        ("1", "5"),
        ("10", "7"),
        ("10", "9"),
    ]
    # Person 2 has no items and is one of the people all the same.
    assert result.tables.users["id"].to_list() == ["0", "1", "2", "10"]
    assert result.tables.items["id"].to_list() == ["5", "6", "7", "9"]
    write_import(result, tmp_path / "data")
    federation = load(str(tmp_path / "data"))
    assert federation.take(np.arange(4)).sizes.tolist() == [3, 1, 0, 2]
    assert federation.take(np.array([3])).item.tolist() == [2, 3]
    assert not federation.has_times


@pytest.mark.parametrize(
    ("text", "is_lists"),
    [
        (TRAIN, True),
        ("0 5 7\n1 5\n", True),
        ("0\t5\t7\n1\t5\n", True),
        ("0,5,7\n1,5\n", True),
        ("0 5 7\n\n1 5\n", True),
        # All rows of the same length: a person with one item each, or a table of two columns?
        ("0 5\n1 5\n", False),
        ("0 5 7\n1 5 6\n", False),
        # A table with one short row.
        ("1,10,5,100\n2,20,3,90\n3,20,4\n", False),
        # A person begins two lines: a table.
        ("1,10,5\n1,20\n", False),
        ("1,10,5\n2,2.5\n", False),
        ("1,10,-5\n2,2\n", False),
        ("user,item,rating\n1,10\n", False),
        ("0 5 7 6\n", False),
        ("", False),
    ],
)
def test_lists_are_recognised_where_they_can_be_nothing_else(text: str, is_lists: bool) -> None:
    assert looks_like_lists(text) == is_lists


def test_a_long_file_is_recognised_by_its_beginning() -> None:
    lines = "".join(f"{k} {'7 ' * (k % 50)}\n" for k in range(500))
    # The sample of 65,536 characters ends within "15", which is no second line of person 1.
    text = f"{lines}600 {'7' * (65535 - len(lines) - 5)}\n15 7\n"
    assert text[65535:65537] == "15"
    assert looks_like_lists(text)
    assert looks_like_lists(text + "and then words\n")
    assert not looks_like_lists("words " + text)


def test_a_file_that_may_be_a_table_must_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="say --format table or --format lists") as caught:
        imported(tmp_path, "0 5\n1 6\n")
    assert "\n" not in str(caught.value)
    assert pairs(imported(tmp_path, "0 5\n1 6\n", form="lists")) == [("0", "5"), ("1", "6")]
    short = "1,10,5,100\n2,20,3,90\n3,20,4\n"
    with pytest.raises(DataError, match="line 3 must have 4 columns"):
        imported(tmp_path, short)
    assert len(pairs(imported(tmp_path, short, form="lists"))) == 8
    # What could be nothing but lists is a table where somebody says so.
    with pytest.raises(DataError, match="line 2 must have 3 columns"):
        imported(tmp_path, "0,5,7\n1,5\n", form="table")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"0 5 7\n1 x7 8\n", "train.txt line 2 must be whole numbers: .*; got 'x7'"),
        (b"0 5 7\n\n1 7 8.5 z\n", "train.txt line 3 must be whole numbers: .*; got '8.5'"),
        (b"0 5 7\n-1 7\n", "train.txt line 2 must be whole numbers: .*; got '-1'"),
        (b"0 5 7\n\xff 7\n", "train.txt line 2 is not utf-8; got '� 7'"),
        (b"0 5\n1 6\n0 7\n", "train.txt line 3 must be the only line of its person; got '0'"),
        (b"0 5\n1 6\n0 seven\n", "train.txt line 3 must be whole numbers: .*; got 'seven'"),
        (b"0\n1\n", "train.txt has people but no items"),
        (b" \n", "train.txt is empty"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        imported(tmp_path, text, form="lists")
    assert "\n" not in str(caught.value)


def test_bad_lines_can_be_left_out_as_a_whole(tmp_path: Path) -> None:
    result = imported(tmp_path, "0 5 7\n1 6 x\n2 6\n0 6\n0 y 5\n", form="lists", skip_bad=True)
    assert pairs(result) == [("0", "5"), ("0", "7"), ("2", "6")]
    assert [(bad.line, bad.value) for bad in result.skipped] == [(2, "x"), (4, "0"), (5, "y")]
    assert result.tables.users["id"].to_list() == ["0", "2"]


def test_the_test_file_has_the_same_form(tmp_path: Path) -> None:
    # One item each: by itself this could be a table. Person 3 and item 8 are in no other file.
    test = put(tmp_path, "test.txt", "0 9\n2 5\n3 8\n")
    result = imported(tmp_path, TRAIN, test=test)
    write_import(result, tmp_path / "data")
    federation = load(str(tmp_path / "data"))
    assert federation.catalogue.item_ids == ["5", "6", "7", "8", "9"]
    assert federation.n_clients == 5
    assert federation.take_test is not None
    asked = federation.take_test(np.arange(5))
    assert asked.sizes.tolist() == [1, 0, 1, 0, 1]
    assert asked.item.tolist() == [4, 0, 3]
    assert federation.take(np.arange(5)).sizes.tolist() == [3, 1, 0, 2, 0]
    bad = put(tmp_path, "test.txt", "0 9\n2 5\n3 eight\n")
    with pytest.raises(DataError, match=r"test\.txt line 3 must be whole .*; got 'eight'"):
        imported(tmp_path, TRAIN, test=bad)


def test_the_test_file_of_a_table_is_a_table(tmp_path: Path) -> None:
    test = put(tmp_path, "test.txt", "0,5,7\n1,5\n")
    with pytest.raises(DataError, match=r"test\.txt line 2 must have 3 columns"):
        imported(tmp_path, "0,5,4\n1,6,5\n", test=test)


def test_listed_people_and_items_bind_lists_too(tmp_path: Path) -> None:
    users = put(tmp_path, "users.csv", "id\n0\n1\n10\n")
    with pytest.raises(DataError, match=r"train\.txt line 3: 'user' must be one of the users"):
        imported(tmp_path, TRAIN, users=users)
    items = put(tmp_path, "items.csv", "id\n5\n6\n7\n8\n")
    with pytest.raises(DataError, match=r"train\.txt line 4: 'item' must be one .*; got '9'"):
        imported(tmp_path, TRAIN, items=items)
    result = imported(tmp_path, TRAIN.replace("9", "8"), items=items)
    assert result.tables.items["id"].to_list() == ["5", "6", "7", "8"]


def test_the_command_asks_for_lists_by_name(scratch: Path, refused: Refused) -> None:
    put(scratch, "train.txt", "0 5\n1 6\n")
    line = refused("data", "import", "train.txt", "--format", "list", "--out", "data")
    assert "`--format` must be 'auto', 'table' or 'lists'; got 'list'" in line
    line = refused("data", "import", "train.txt", "--out", "data")
    assert "--format lists" in line
    result = invoke("data", "import", "train.txt", "--format", "lists", "--out", "data")
    assert result.exit_code == 0
    assert "imported 2 interactions" in result.stdout


def test_what_lists_do_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no column 'stars' \(it has: user, item\)"):
        import_files(put(tmp_path, "train.txt", TRAIN), mapping={"value": "stars"})
    with pytest.raises(SettingsError, match=r"`--format` must be .*; got 'list'.*'lists'\?"):
        imported(tmp_path, TRAIN, form="list")
    for name in ("a.parquet", "a.inter"):
        with pytest.raises(DataError, match="has columns, by its name"):
            import_files(put(tmp_path, name, TRAIN), mapping={}, form="lists")


def test_empty_cells_are_missing_values_of_a_table() -> None:
    lines = [f"{k},{k % 7},{3 if k % 2 else ''},{k if k % 4 < 2 else ''}" for k in range(100)]
    assert not looks_like_lists("\n".join(lines))
