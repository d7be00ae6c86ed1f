import csv
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing import put
from privrec.data.importing import ImportResult, import_files, write_import
from privrec.data.manifest import Manifest
from privrec.data.tables import read_folder, to_federation
from privrec.errors import DataError

RATINGS = "user,item,rating,timestamp\nann,7,5,100\nbob,7,3,90\nann,8,1.5,80\n"


def load(folder: Path, text: str | bytes, **settings: Any) -> ImportResult:
    source = put(folder, settings.pop("file", "ratings.csv"), text)
    return import_files(source, **{"mapping": {}, **settings})


def columns(frame: pl.DataFrame) -> dict[str, list[object]]:
    return frame.to_dict(as_series=False)


def test_a_plain_csv(tmp_path: Path) -> None:
    result = load(tmp_path, RATINGS)
    assert columns(result.tables.interactions) == {
        "user": ["ann", "bob", "ann"],
        "item": ["7", "7", "8"],
        "value": [5.0, 3.0, 1.5],
        "time": [100, 90, 80],
    }
    assert columns(result.tables.users) == {"id": ["ann", "bob"]}
    assert columns(result.tables.items) == {"id": ["7", "8"]}
    assert result.tables.manifest == Manifest(
        name="ratings",
        value="value",
        time="time",
        positive_above=3.0,
        population=result.tables.manifest.population,
    )
    assert result.skipped == []


@pytest.mark.parametrize(
    "header",
    ["user_id,movieId,score,ts", "UserID,Item ID,Rating,Timestamp", "uid,iid,stars,unix_time"],
)
def test_common_names_need_no_mapping(tmp_path: Path, header: str) -> None:
    plain = load(tmp_path, RATINGS).tables.interactions
    other = load(tmp_path, RATINGS.replace("user,item,rating,timestamp", header))
    assert other.tables.interactions.equals(plain)


def test_a_mapping_says_which_column_is_what(tmp_path: Path) -> None:
    text = "rating,who,what,when,user\n1,ann,7,100,x\n"
    mapping = {"user": "who", "item": "what", "time": "when"}
    assert columns(load(tmp_path, text, mapping=mapping).tables.interactions) == {
        "user": ["ann"],
        "item": ["7"],
        "value": [1.0],
        "time": [100],
    }


def test_without_a_header_the_place_decides(tmp_path: Path) -> None:
    text = "1::1193::5::978300760\n2::661::3::978302109\n"
    assert columns(load(tmp_path, text, file="ratings.dat").tables.interactions) == {
        "user": ["1", "2"],
        "item": ["1193", "661"],
        "value": [5.0, 3.0],
        "time": [978300760, 978302109],
    }
    swapped = load(tmp_path, text, mapping={"user": "2", "item": "1", "time": "3"})
    assert columns(swapped.tables.interactions) == {
        "user": ["1193", "661"],
        "item": ["1", "2"],
        "time": [5, 3],
    }


def test_users_and_items_bring_features_and_titles(tmp_path: Path) -> None:
    users = put(tmp_path, "users.csv", "user_id,age,height,zip\nann,25,1.7,02460\nbob,30,,10115\n")
    items = put(
        tmp_path, "items.csv", "id,name,genres\n7,Seven,Crime|Drama\n8,,War\n9,Nine,| Drama |\n"
    )
    tables = load(tmp_path, RATINGS, users=users, items=items).tables
    assert columns(tables.users) == {
        "id": ["ann", "bob"],
        "age": [25, 30],
        "height": [1.7, None],
        "zip": ["02460", "10115"],
    }
    assert columns(tables.items) == {
        "id": ["7", "8", "9"],
        "title": ["Seven", None, "Nine"],
        "genres": [["Crime", "Drama"], ["War"], ["Drama"]],
    }
    schema = to_federation(tables).schema
    assert {feature.name: feature.kind for feature in schema.features} == {
        "age": "categorical",
        "height": "numeric",
        "zip": "categorical",
        "genres": "multi",
    }


def test_headerless_users_and_items_with_a_title_by_place(tmp_path: Path) -> None:
    ratings = "10::7::1::5\n20::8::2::3\n"
    users = put(tmp_path, "users.dat", "10::F\n20::M\n")
    items = put(tmp_path, "movies.dat", "7::Seven (1995)::A|B\n8::Eight (1996)::A\n")
    mapping = {"title": "2", "value": "4", "time": "3"}
    tables = load(tmp_path, ratings, users=users, items=items, mapping=mapping).tables
    assert tables.interactions["value"].to_list() == [5.0, 3.0]
    assert columns(tables.users) == {"id": ["10", "20"], "2": ["F", "M"]}
    assert columns(tables.items) == {
        "id": ["7", "8"],
        "title": ["Seven (1995)", "Eight (1996)"],
        "3": [["A", "B"], ["A"]],
    }


def test_a_place_mapped_in_the_ratings_means_nothing_in_headerless_users(tmp_path: Path) -> None:
    users = put(tmp_path, "users.dat", "10::25\n20::30\n")
    mapping = {"user": "2", "item": "1"}
    tables = load(tmp_path, "7::10\n8::20\n", users=users, mapping=mapping).tables
    assert columns(tables.users) == {"id": ["10", "20"], "2": [25, 30]}


def test_the_id_column_has_the_mapped_name_of_user_item_or_id(tmp_path: Path) -> None:
    ratings = "who,what\nann,7\nbob,8\n"
    users = put(tmp_path, "users.csv", "id,who\n1,ann\n2,bob\n")
    items = put(tmp_path, "items.csv", "code,colour\n7,red\n8,blue\n")
    mapping = {"user": "who", "item": "what"}
    with pytest.raises(DataError, match=r"users\.csv: the column 'id' is in the way, as 'who'"):
        load(tmp_path, ratings, users=users, mapping=mapping)
    with pytest.raises(DataError, match=r"items\.csv has no column 'id'.*--map id="):
        load(tmp_path, ratings, items=items, mapping=mapping)
    tables = load(tmp_path, ratings, items=items, mapping={**mapping, "id": "code"}).tables
    assert columns(tables.items) == {"id": ["7", "8"], "colour": ["red", "blue"]}


def test_only_named_columns_become_context(tmp_path: Path) -> None:
    text = "user,item,place,mood,date\nann,7,home,1.5,may\nbob,8,,2,june\n"
    tables = load(tmp_path, text, context=["place", "mood", "date"]).tables
    assert tables.manifest.context == ("place", "mood", "date")
    assert tables.manifest.time is None
    assert columns(tables.interactions) == {
        "user": ["ann", "bob"],
        "item": ["7", "8"],
        "place": ["home", None],
        "mood": [1.5, 2.0],
        "date": ["may", "june"],
    }


ATOMIC = {
    "ml.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\tmood:token\n"
    "1\t7\t4\t10\tok\n2\t8\t2.5\t20.5\tsad\n",
    "ml.user": "user_id:token\tage:token\tscore:float\n1\t25\t3\n2\t025\t\n",
    "ml.item": "item_id:token\tmovie_title:token_seq\tclass:token_seq\tpos:float\n"
    "7\tToy Story\tAnimation Comedy\t1.5\n8\tHeat\t\t3\n",
}


@pytest.mark.parametrize("given_as", ["ml.inter", "."])
def test_recbole_files_are_read_together(tmp_path: Path, given_as: str) -> None:
    for name, text in ATOMIC.items():
        put(tmp_path, name, text)
    tables = import_files(tmp_path / given_as, mapping={}, context=["mood"]).tables
    assert tables.manifest.name == "ml"
    assert columns(tables.interactions) == {
        "user": ["1", "2"],
        "item": ["7", "8"],
        "value": [4.0, 2.5],
        "time": [10.0, 20.5],
        "mood": ["ok", "sad"],
    }
    assert columns(tables.users) == {"id": ["1", "2"], "age": ["25", "025"], "score": [3.0, None]}
    assert columns(tables.items) == {
        "id": ["7", "8"],
        "title": ["Toy Story", "Heat"],
        "class": [["Animation", "Comedy"], None],
        "pos": [1.5, 3.0],
    }
    assert to_federation(tables).schema.named("pos", "item").kind == "numeric"


def test_a_users_file_by_name_goes_before_the_one_beside(tmp_path: Path) -> None:
    for name, text in ATOMIC.items():
        put(tmp_path, name, text)
    users = put(tmp_path, "mine.csv", "id,colour\n1,red\n2,blue\n")
    tables = import_files(tmp_path, mapping={}, users=users).tables
    assert tables.users.columns == ["id", "colour"]
    assert "title" in tables.items.columns


def test_an_inter_file_may_stand_alone_or_be_one_too_many(tmp_path: Path) -> None:
    put(tmp_path, "a.inter", ATOMIC["ml.inter"])
    assert columns(import_files(tmp_path, mapping={}).tables.items) == {"id": ["7", "8"]}
    put(tmp_path, "b.inter", ATOMIC["ml.inter"])
    with pytest.raises(DataError, match=r"must hold one \.inter file.* holds a\.inter, b\.inter"):
        import_files(tmp_path, mapping={})


def test_parquet_of_numbers_lists_and_dates(tmp_path: Path) -> None:
    when = [datetime(2020, 1, 2), datetime(2020, 1, 1)]
    pl.DataFrame(
        {"user": [1.0, 2.0], "item": [7, 8], "liked": [True, False], "ts": when}
    ).write_parquet(tmp_path / "log.parquet")
    pl.DataFrame(
        {"item": [7, 8], "tags": [["a"], []], "more": ["x|y", "z"], "n": ["1", "2"]}
    ).write_parquet(tmp_path / "items.pq")
    tables = import_files(
        tmp_path / "log.parquet", mapping={"value": "liked"}, items=tmp_path / "items.pq"
    ).tables
    assert columns(tables.interactions) == {
        "user": ["1", "2"],
        "item": ["7", "8"],
        "value": [1.0, 0.0],
        "time": when,
    }
    assert tables.manifest.positive_above == 0.5
    assert columns(tables.items) == {
        "id": ["7", "8"],
        "tags": [["a"], []],
        "more": [["x", "y"], ["z"]],
        "n": ["1", "2"],
    }
    assert to_federation(tables).take(np.array([0])).liked.tolist() == [True]


@pytest.mark.parametrize("form", ["{}", "{} 10:00", "{}T10:00:00Z", "{} 10:00:00.5"])
def test_iso_dates_are_times(tmp_path: Path, form: str) -> None:
    days = ["someday", form.format("2020-01-02"), "2020-13-45", form.format("2020-01-01")]
    text = "user,item,time\n" + "".join(f"1,{item},{day}\n" for item, day in enumerate(days))
    result = load(tmp_path, text, skip_bad=True)
    assert [row.line for row in result.skipped] == [2, 4]
    federation = to_federation(result.tables)
    assert list(federation.catalogue.item_ids) == ["1", "3"]
    assert federation.take(np.array([0])).item.tolist() == [1, 0]


@pytest.mark.parametrize("day", ["2020-13-45", "01/02/2020"])  # invalid, and ambiguous
def test_other_dates_are_no_times(tmp_path: Path, day: str) -> None:
    with pytest.raises(DataError, match="line 2: 'time' must be a time"):
        load(tmp_path, f"user,item,time\n1,7,{day}\n")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (None, 0.0),
        ([0, 1], 0.5),
        ([1, 1], 0.5),
        ([1, 5], 3.0),
        ([0.5, 3.5], 3.0),
        ([0, 10], 6.0),
        ([1, 3], 0.0),
        ([1, 5.5], 0.0),
        ([1, 250], 0.0),
        ([0.25, 4], 0.0),
        ([-1, 4], 0.0),
    ],
)
def test_when_a_value_counts_as_positive(
    tmp_path: Path, values: list[float] | None, expected: float
) -> None:
    rows = ["1,7", "1,8"] if values is None else [f"1,7,{values[0]}", f"1,8,{values[1]}"]
    text = "\n".join(["user,item" if values is None else "user,item,value", *rows])
    assert load(tmp_path, text).tables.manifest.positive_above == expected
    given_by_hand = load(tmp_path, text, positive_above=-2).tables.manifest.positive_above
    assert given_by_hand == -2.0


def test_the_folder_is_written_whole_with_the_rows_left_out(tmp_path: Path) -> None:
    text = RATINGS + 'ann,7,good,1\n"x,y",8,4,\n'
    result = load(tmp_path, text, skip_bad=True, name="mine")
    write_import(result, tmp_path / "deep" / "out")
    assert sorted(path.name for path in (tmp_path / "deep" / "out").iterdir()) == [
        "dataset.toml",
        "interactions.parquet",
        "items.parquet",
        "skipped.csv",
        "users.parquet",
    ]
    back = read_folder(tmp_path / "deep" / "out")
    assert back.manifest == result.tables.manifest
    assert back.manifest.name == "mine"
    assert back.interactions.equals(result.tables.interactions)
    with (tmp_path / "deep" / "out" / "skipped.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["file", "line", "column", "value", "reason"]
    assert [row[:4] for row in rows] == [
        [str(tmp_path / "ratings.csv"), "5", "rating", "good"],
        [str(tmp_path / "ratings.csv"), "6", "timestamp", ""],
    ]
    write_import(load(tmp_path, RATINGS), tmp_path / "clean")
    assert not (tmp_path / "clean" / "skipped.csv").exists()


def test_an_empty_folder_is_filled_and_a_full_one_is_left_alone(tmp_path: Path) -> None:
    result = load(tmp_path, RATINGS)
    out = tmp_path / "out"
    out.mkdir()
    write_import(result, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for taken in (out, tmp_path / "ratings.csv"):
        with pytest.raises(DataError, match="is in the way: it exists and is not an empty folder"):
            write_import(result, taken)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("step", [(pl.DataFrame, "write_parquet"), (Path, "replace")])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[type, str],
    failure: BaseException,
) -> None:
    result = load(tmp_path, RATINGS)
    before = sorted(tmp_path.iterdir())

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(*step, fail)
    with pytest.raises((DataError, KeyboardInterrupt)) as caught:
        write_import(result, tmp_path / "out")
    if isinstance(failure, OSError):
        assert str(caught.value).endswith("out: No space left on device")
    assert sorted(tmp_path.iterdir()) == before


# Text that is not a number, without outer spaces, that needs no quotes in a file.
names = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters=',"'), min_size=1
).filter(lambda name: not re.search(r"^[\d.+-]", name))


@given(
    rows=st.lists(
        st.tuples(names, names, st.sampled_from([1.0, 2.5, 5.0]), st.integers(0, 2**40)),
        min_size=1,
        max_size=8,
    )
)
def test_any_rows_come_through_to_the_federation(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, float, int]]
) -> None:
    folder = tmp_path_factory.mktemp("import")
    text = "".join(f"{user},{item},{value},{time}\r\n" for user, item, value, time in rows)
    result = load(folder, "user,item,rating,time\r\n" + text, positive_above=0)
    assert result.tables.interactions.rows() == rows
    write_import(result, folder / "out")
    federation = to_federation(read_folder(folder / "out"))
    assert federation.n_clients == len({user for user, *_ in rows})
    assert set(federation.catalogue.item_ids) == {item for _, item, *_ in rows}
    assert federation.n_items == len({item for _, item, *_ in rows})
    clients = federation.take(np.arange(federation.n_clients))
    assert sorted(clients.value.tolist()) == sorted(value for *_, value, _ in rows)
