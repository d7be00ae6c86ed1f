"""The order of a catalogue says nothing about who has what."""

import csv
import json
import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import privrec
from commands import document, done, invoke
from privrec.data.importing import import_files
from privrec.data.manifest import Manifest
from privrec.data.tables import Tables, to_federation, write_folder

PEOPLE, ITEMS, LINES = 60, 3_000, 30


def lists_of_people() -> dict[str, list[str]]:
    """Return people whose items were drawn at random, with ids that tell nothing."""
    draw = np.random.default_rng(0)
    ids = draw.permutation(10 * ITEMS)[:ITEMS]
    return {
        f"p{person}": [f"{ids[k]}" for k in draw.choice(ITEMS, LINES, replace=False)]
        for person in range(PEOPLE)
    }


def neighbours_of_one_person(order: Sequence[str], people: dict[str, list[str]]) -> float:
    """Return the share of neighbours in a catalogue that are both in the list of some person."""
    owners: dict[str, set[str]] = {item: set() for item in order}
    for person, items in people.items():
        for item in items:
            owners[item].add(person)
    return float(np.mean([bool(owners[one] & owners[next_]) for one, next_ in pairwise(order)]))


def in_lines(people: dict[str, list[str]]) -> list[str]:
    """Return the items in the order in which they appear first."""
    return list(dict.fromkeys(item for items in people.values() for item in items))


def write_lines(path: Path, people: dict[str, list[str]]) -> Path:
    with path.open("w", newline="") as file:
        write = csv.writer(file).writerow
        write(("user", "item"))
        for person, items in people.items():
            for item in items:
                write((person, item))
    return path


def exported_items(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as file:
        found: list[str] = json.loads(file.read("catalogue.json"))["items"]
    return found


def test_neighbours_in_an_exported_catalogue_are_no_more_of_one_person_than_by_chance(
    scratch: Path,
) -> None:
    people = lists_of_people()
    write_lines(scratch / "lines.csv", people)
    done("data", "import", "lines.csv", "--out", "shop")
    done("train", "popularity", "--data", "shop", "--out", "run")
    done("export", "run", "--out", "model.privrec")
    order = exported_items(scratch / "model.privrec")
    draw = np.random.default_rng(1)
    by_chance = [
        neighbours_of_one_person(draw.permutation(order).tolist(), people) for _ in range(50)
    ]
    assert neighbours_of_one_person(in_lines(people), people) > 0.9
    assert neighbours_of_one_person(order, people) <= max(by_chance) < 0.04
    assert order == sorted(order, key=int)


def folder_of_an_older_version(folder: Path, people: dict[str, list[str]]) -> Tables:
    """Write and return a data folder whose items stand in the order of people's lines."""
    lines = [(person, item) for person, items in people.items() for item in items]
    tables = Tables(
        manifest=Manifest(name=folder.name),
        interactions=pl.DataFrame(lines, schema=["user", "item"], orient="row"),
        users=pl.DataFrame({"id": list(people)}),
        items=pl.DataFrame({"id": in_lines(people)}).with_columns(title="film " + pl.col("id")),
    )
    write_folder(tables, folder)
    return tables


def test_a_folder_in_the_order_of_lines_is_loaded_in_another(tmp_path: Path) -> None:
    people = lists_of_people()
    folder_of_an_older_version(tmp_path / "shop", people)
    catalogue = privrec.load(tmp_path / "shop").catalogue
    assert neighbours_of_one_person(catalogue.item_ids, people) < 0.04
    assert list(catalogue.titles) == [f"film {item}" for item in catalogue.item_ids]


def test_a_frame_in_the_order_of_lines_is_loaded_in_another() -> None:
    people = lists_of_people()
    lines = [(person, item) for person, items in people.items() for item in items]
    frame = pl.DataFrame(lines, schema=["user", "item"], orient="row")
    data = privrec.load(frame)
    assert list(data.catalogue.item_ids) == sorted(in_lines(people), key=int)
    first = data.take(np.arange(1))
    assert {data.catalogue.item_ids[k] for k in first.item} == set(people["p0"])


def test_ids_that_are_numbers_stand_by_number_before_words_by_letter(tmp_path: Path) -> None:
    items = ["b", "10", "9", "a", "-1", "007", "7", "b1", "1000000000000000000000001"]
    (tmp_path / "lines.csv").write_text("user,item\n" + "".join(f"u,{item}\n" for item in items))
    wanted = ["-1", "007", "7", "9", "10", "1000000000000000000000001", "a", "b", "b1"]
    result = import_files(tmp_path / "lines.csv", mapping={})
    assert result.tables.items["id"].to_list() == wanted
    assert list(to_federation(result.tables).catalogue.item_ids) == wanted


def test_items_to_be_tested_alone_stand_among_the_others(tmp_path: Path) -> None:
    (tmp_path / "lines.csv").write_text("user,item\nu,3\nv,1\n")
    (tmp_path / "test.csv").write_text("user,item\nu,2\n")
    result = import_files(tmp_path / "lines.csv", mapping={}, test=tmp_path / "test.csv")
    assert result.tables.items["id"].to_list() == ["1", "2", "3"]


def test_vocabularies_stand_in_no_order_of_people(tmp_path: Path) -> None:
    """The first person has the last value of each feature."""
    (tmp_path / "lines.csv").write_text("user,item,mood\nu,1,sad\nv,1,glad\nw,1,10\nw,1,9\n")
    (tmp_path / "users.csv").write_text("id,town,likes\nu,z,y|x\nv,b,a|x\nw,a,b|c\n")
    result = import_files(
        tmp_path / "lines.csv", mapping={}, users=tmp_path / "users.csv", context=["mood"]
    )
    schema = to_federation(result.tables).catalogue.schema
    values = {feature.name: feature.values for feature in schema.features}
    assert values == {
        "town": ("a", "b", "z"),
        "likes": ("a", "b", "c", "x", "y"),
        "mood": ("9", "10", "glad", "sad"),
    }


def test_features_stand_in_no_order_of_people_either(tmp_path: Path) -> None:
    """A key that the first person alone has is not the first feature."""
    (tmp_path / "users.csv").write_text("id,zeal,town,age\nu,x,,\nv,,y,\nw,,,z\n")
    (tmp_path / "lines.csv").write_text("user,item\nu,1\nv,1\nw,1\n")
    result = import_files(tmp_path / "lines.csv", mapping={}, users=tmp_path / "users.csv")
    features = to_federation(result.tables).catalogue.schema.features
    assert [feature.name for feature in features] == ["age", "town", "zeal"]


@pytest.mark.parametrize("step", ["open", "resume"])
def test_a_run_of_an_older_version_opens_with_the_order_it_was_saved_with(
    step: str, scratch: Path
) -> None:
    people = lists_of_people()
    tables = folder_of_an_older_version(scratch / "shop", people)
    old = to_federation(tables, item_order=in_lines(people))
    privrec.train("popularity", old, out="run")
    if step == "resume":
        (scratch / "run" / "params.safetensors").unlink()
        done("train", "popularity", "--data", "shop", "--out", "run", "--resume")
    run = privrec.open_run("run")
    assert list(run.catalogue.item_ids) == in_lines(people)
    assert run.evaluate().hits[20] >= 0
    names = run.recommend_many(top=3).filter(user="p3")["item"].to_list()
    assert len(names) == 3
    assert not set(names) & set(people["p3"])
    liked = people["p0"][0]
    assert document("recommend", "run", "--like", f"film {liked}", "--top", "2", "--json")


def test_an_export_of_a_run_of_an_older_version_warns_of_its_order(scratch: Path) -> None:
    people = lists_of_people()
    tables = folder_of_an_older_version(scratch / "shop", people)
    privrec.train("popularity", to_federation(tables, item_order=in_lines(people)), out="run")
    assert "who has what: train again" in invoke("export", "run", "--out", "model").stderr
    assert exported_items(scratch / "model") == in_lines(people)


def test_ids_that_were_numbered_as_lines_came_are_warned_of(scratch: Path) -> None:
    """No order of the catalogue can hide what the ids tell."""
    people = lists_of_people()
    number = {item: f"{k}" for k, item in enumerate(in_lines(people))}
    write_lines(scratch / "plain.csv", people)
    write_lines(
        scratch / "told.csv", {who: [number[k] for k in items] for who, items in people.items()}
    )
    plain, told = (import_files(scratch / f"{name}.csv", mapping={}) for name in ("plain", "told"))
    assert plain.warnings == ()
    [warning] = told.warnings
    assert "numbered as people's lines came" in warning
    # A list of items that somebody gives does not depend on people.
    given = pl.DataFrame({"id": sorted(number.values(), key=int)})
    given.write_parquet(scratch / "items.parquet")
    items = scratch / "items.parquet"
    assert import_files(scratch / "told.csv", mapping={}, items=items).warnings == ()
