"""A data folder's `test.parquet`: checked as the interactions are, and apart from them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from privrec.data.federation import Federation
from privrec.data.importing import import_files, write_import
from privrec.data.manifest import Manifest
from privrec.data.sources import describe_data, load
from privrec.data.tables import Tables, read_folder, to_federation, write_folder
from privrec.errors import DataError

MANIFEST = Manifest(
    name="toy",
    value="stars",
    time="when",
    context=("place", "hour"),
    positive_above=3.0,
)
TEST: dict[str, list[Any]] = {
    "user": ["ann", "tom"],
    "item": ["z", "y"],
    "stars": [5.0, 4.0],
    "when": [9, 9],
    "place": ["moon", "home"],
    "hour": [1000.0, 3.0],
}


def tables(**changed: Any) -> Tables:
    return Tables(
        manifest=MANIFEST,
        interactions=pl.DataFrame(
            {
                "user": ["ann", "ann", "bob"],
                "item": ["x", "y", "x"],
                "stars": [5.0, 1.0, 4.0],
                "when": [1, 2, 3],
                "place": ["home", "work", "home"],
                "hour": [1.0, 2.0, 3.0],
            }
        ),
        users=pl.DataFrame({"id": ["ann", "bob", "tom"]}),
        items=pl.DataFrame({"id": ["x", "y", "z"]}),
        test=pl.DataFrame({**TEST, **changed}),
    )


def asked_of(federation: Federation, person: int) -> list[int]:
    assert federation.take_test is not None
    return [int(item) for item in federation.take_test(np.array([person])).item]


def test_test_lines_are_apart_and_survive_the_disk(tmp_path: Path) -> None:
    write_folder(tables(), tmp_path / "data")
    federation = load(str(tmp_path / "data"))
    assert federation.take(np.arange(3)).item.tolist() == [0, 1, 0]
    assert federation.take(np.arange(3)).sizes.tolist() == [2, 1, 0]
    assert [asked_of(federation, k) for k in range(3)] == [[2], [], [1]]
    assert (federation.largest, federation.repeats) == (2, False)
    assert describe_data(str(tmp_path / "data"))["interactions in the test file"] == 2


def test_without_a_test_file_everything_is_as_it_was(tmp_path: Path) -> None:
    plain = replace(tables(), test=None)
    write_folder(plain, tmp_path)
    assert not (tmp_path / "test.parquet").exists()
    federation = to_federation(read_folder(tmp_path))
    assert federation.take_test is None
    assert "interactions in the test file" not in describe_data(str(tmp_path))
    # As it was before there were test files: run folders of then still fit their data.
    assert federation.fingerprint[:16] == "375152dfa5879679"


def test_the_test_file_does_not_shape_the_model() -> None:
    """Neither a vocabulary nor a scale comes from it; what training never saw is missing."""
    with_test, without = to_federation(tables()), to_federation(replace(tables(), test=None))
    assert with_test.schema == without.schema
    assert with_test.take_test is not None
    asked = with_test.take_test(np.arange(3))
    place, hour = asked.context["embed/context.place"], asked.context["embed/context.hour"]
    assert place.weights[:, 0].tolist() == [0.0, 1.0]
    known = with_test.take(np.array([1])).context
    assert place.codes[1].tolist() == known["embed/context.place"].codes[0].tolist()
    assert hour.weights[1].tolist() == known["embed/context.hour"].weights[0].tolist()


@pytest.mark.parametrize(
    "changed",
    [{"item": ["y", "y"]}, {"stars": [5.0, 5.0]}, {"user": ["ann", "bob"]}, {"hour": [1.0, 3.0]}],
)
def test_the_fingerprint_covers_the_test_file(changed: dict[str, Any]) -> None:
    marks = {to_federation(made).fingerprint for made in (tables(), tables(**changed))}
    assert len(marks) == 2
    assert to_federation(replace(tables(), test=None)).fingerprint not in marks


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (pl.DataFrame(TEST).clear(), "test has no rows"),
        (pl.DataFrame(TEST).drop("user"), r"test has no column 'user'.*it has: item"),
        (pl.DataFrame(TEST).drop("stars"), "test has no column 'stars'"),
        (pl.DataFrame(TEST).drop("when"), "test has no column 'when'"),
        (pl.DataFrame(TEST).drop("place"), "test has no column 'place'"),
        (pl.DataFrame({"a": [1], "b": [2]}), "test has no column 'user'"),
        (pl.DataFrame({**TEST, "user": ["ann", "eve"]}), "test row 1 names the user 'eve', whom"),
        (pl.DataFrame({**TEST, "item": ["q", "x"]}), "test row 0 names the item 'q', which"),
        (pl.DataFrame({**TEST, "stars": [5.0, None]}), "test row 1: stars must be a finite"),
        (pl.DataFrame({**TEST, "stars": [3.0, 1.0]}), "test: nobody likes anything: no value"),
        (pl.DataFrame({**TEST, "when": [None, 1]}), "test column 'when' has rows without"),
        (pl.DataFrame({**TEST, "hour": ["a", "b"]}), "context feature 'hour' must be numbers"),
    ],
)
def test_a_wrong_test_file_is_named(test: pl.DataFrame, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        to_federation(replace(tables(), test=test))
    assert "\n" not in str(caught.value)


def test_a_damaged_test_file_is_not_passed_over(tmp_path: Path) -> None:
    write_folder(tables(), tmp_path)
    (tmp_path / "test.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"test\.parquet: it is not a whole Parquet file"):
        load(str(tmp_path))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_importing_takes_a_test_file_under_the_same_checks(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", "user,item,rating\na,x,5\na,y,2\nb,x,4\n")
    # Another name for the same thing, another order, a person and an item of its own.
    test = write(tmp_path / "test.csv", "movieId,uid,score\nz,a,5\nx,c,1\n")
    result = import_files(train, mapping={}, test=test)
    write_import(result, tmp_path / "data")
    federation = load(str(tmp_path / "data"))
    assert federation.catalogue.item_ids == ["x", "y", "z"]
    assert federation.n_clients == 3
    assert [asked_of(federation, k) for k in range(3)] == [[2], [], [0]]
    # The threshold is read off the training lines.
    assert federation.catalogue.positive_above == 3.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,item\na,x\n", "must have the same columns as .*train.csv: user, item, value; got"),
        ("user,item,rating,time\na,x,5,1\n", "must have the same columns as"),
        ("foo,bar\n1,2\n", "has no column 'user'"),
        ("user,item,rating\na,x,bad\n", r"test\.csv line 2: 'rating' must be a finite number"),
        ("user,item,rating\n", "test.csv"),
        ("", "test.csv"),
    ],
)
def test_a_wrong_test_file_stops_the_import(tmp_path: Path, text: str, message: str) -> None:
    train = write(tmp_path / "train.csv", "user,item,rating\na,x,5\na,y,2\nb,x,4\n")
    test = write(tmp_path / "test.csv", text)
    with pytest.raises(DataError, match=message) as caught:
        import_files(train, mapping={}, test=test)
    assert "\n" not in str(caught.value)


def test_listed_people_and_items_bind_the_test_file_too(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", "user,item\na,x\n")
    items = write(tmp_path / "items.csv", "id\nx\ny\n")
    test = write(tmp_path / "test.csv", "user,item\na,q\na,y\n")
    with pytest.raises(
        DataError, match=r"test\.csv line 2: 'item' must be one of the items listed"
    ):
        import_files(train, mapping={}, items=items, test=test)
    result = import_files(train, mapping={}, items=items, test=test, skip_bad=True)
    assert result.tables.test is not None
    assert result.tables.test["item"].to_list() == ["y"]
    assert [bad.line for bad in result.skipped] == [2]
