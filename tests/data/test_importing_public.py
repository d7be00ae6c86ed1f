from collections.abc import Sequence
from pathlib import Path

import pytest

from privrec.data.importing import ImportResult, import_files, write_import
from privrec.data.manifest import Public
from privrec.data.tables import read_folder, to_federation, write_folder
from privrec.errors import SettingsError


def put(folder: Path, name: str, rows: Sequence[object]) -> Path:
    path = folder / name
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def rated(folder: Path, *people: Sequence[float]) -> ImportResult:
    """Import the ratings of some people, each of different items."""
    rows = [
        f"u{person},i{place},{value}"
        for person, values in enumerate(people)
        for place, value in enumerate(values)
    ]
    return import_files(put(folder, "ratings.csv", ["user,item,rating", *rows]), mapping={})


def test_each_import_is_a_population_of_its_own(tmp_path: Path) -> None:
    names = {rated(tmp_path, [5, 1]).tables.manifest.population for _ in range(3)}
    assert len(names) == 3
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names)


def test_the_folder_keeps_the_populations_name(tmp_path: Path) -> None:
    result = rated(tmp_path, [5, 1])
    write_import(result, tmp_path / "out")
    federation = to_federation(read_folder(tmp_path / "out"))
    assert federation.population == result.tables.manifest.population


@pytest.mark.parametrize("threshold", [None, 2.0])
@pytest.mark.parametrize("has_items", [True, False])
def test_what_is_given_is_public_and_what_is_found_is_not(
    tmp_path: Path, threshold: float | None, has_items: bool
) -> None:
    ratings = put(tmp_path, "ratings.csv", ["user,item,rating,place", "ann,7,5,home"])
    items = put(tmp_path, "items.csv", ["id,colour", "7,red"]) if has_items else None
    users = put(tmp_path, "users.csv", ["id,town,age", "ann,Ulm,20.5"])
    tables = import_files(
        ratings,
        mapping={},
        users=users,
        items=items,
        positive_above=threshold,
        context=["place"],
    ).tables
    given = threshold is not None
    assert tables.manifest.public == Public(items=has_items, threshold=given)
    assert list(to_federation(tables).catalogue.undeclared) == [
        "the features of items ('colour')" if has_items else "the list of items and their features",
        *([] if given else ["the value above which a rating is a like"]),
        "the number of people",
        "the values of 'age'",
        "the values of 'town'",
        "the values of 'place'",
    ]


def test_features_of_items_are_public_if_that_is_said(tmp_path: Path) -> None:
    ratings = put(tmp_path, "ratings.csv", ["user,item,rating", "ann,7,5"])
    items = put(tmp_path, "items.csv", ["id,title,colour", "7,Seven,red"])
    declared = import_files(ratings, mapping={}, items=items, public_item_features=True).tables
    assert declared.manifest.public.item_features is True
    assert not any("items" in part for part in to_federation(declared).catalogue.undeclared)
    write_folder(declared, tmp_path / "data")
    assert read_folder(tmp_path / "data").manifest.public.item_features is True
    with pytest.raises(SettingsError, match="`--public-item-features` is about the items file"):
        import_files(ratings, mapping={}, public_item_features=True)


FIVE_STARS: list[list[float]] = [[5, 1, 3], [4.5, 2], [1, 5], [4, 0.5]]
TEN_STARS: list[list[float]] = [[10, 1, 3], [9, 2], [1, 8], [7, 0.5]]
CLICKS: list[list[float]] = [[1, 0], [1, 1], [0, 1], [1]]


@pytest.mark.parametrize(
    ("people", "threshold"), [(FIVE_STARS, 3.0), (TEN_STARS, 6.0), (CLICKS, 0.5)]
)
@pytest.mark.parametrize("odd", [[10], [5], [1], [0, 1], [-1], [250], [0.25], [3.3, 1e9]])
def test_nobodys_odd_values_move_the_threshold(
    tmp_path: Path, people: list[list[float]], threshold: float, odd: list[float]
) -> None:
    assert rated(tmp_path, *people).tables.manifest.positive_above == threshold
    for everybody in ([odd, *people], [*people, odd]):
        assert rated(tmp_path, *everybody).tables.manifest.positive_above == threshold


def test_one_person_counts_once_however_much_she_rates(tmp_path: Path) -> None:
    busy = [10.0] * 50
    assert rated(tmp_path, *FIVE_STARS, busy).tables.manifest.positive_above == 3.0


def test_the_larger_part_decides(tmp_path: Path) -> None:
    mixed = [*FIVE_STARS[:2], *TEN_STARS]
    assert rated(tmp_path, *mixed).tables.manifest.positive_above == 6.0


def people_with(folder: Path, column: Sequence[object], name: str = "zip") -> tuple[str, ...]:
    users = put(
        folder, "users.csv", [f"id,{name}", *(f"u{k},{value}" for k, value in enumerate(column))]
    )
    lines = ["user,item", *(f"u{k},{k % 3}" for k in range(len(column)))]
    return import_files(put(folder, "ratings.csv", lines), mapping={}, users=users).warnings


def test_a_feature_that_nearly_names_people_is_warned_of(tmp_path: Path) -> None:
    [warning] = people_with(tmp_path, [f"D{k}" for k in range(1200)])
    assert warning.startswith("'zip' has 1,200 values for 1,200 people: a value nearly names")
    assert "\n" not in warning
    # Whole numbers are categories too: a birthday, a phone number.
    assert len(people_with(tmp_path, range(30))) == 1
    # The values of a list are counted one by one.
    assert len(people_with(tmp_path, [f"a|w{k}" for k in range(30)])) == 1


def test_five_people_a_value_are_the_bound(tmp_path: Path) -> None:
    assert people_with(tmp_path, [f"D{k % 6}" for k in range(30)]) == ()
    assert len(people_with(tmp_path, [f"D{k % 7}" for k in range(30)])) == 1


def test_numbers_with_a_point_name_nobody(tmp_path: Path) -> None:
    assert people_with(tmp_path, [k + 0.5 for k in range(30)], "height") == ()


def test_a_moments_feature_that_nearly_names_people_is_warned_of(tmp_path: Path) -> None:
    rows = [f"u{k % 20},{k},w{k % 2},here {k}" for k in range(60)]
    ratings = put(tmp_path, "ratings.csv", ["user,item,weather,place", *rows])
    # A column that is not a context is not in the model.
    assert import_files(ratings, mapping={}).warnings == ()
    [warning] = import_files(ratings, mapping={}, context=["weather", "place"]).warnings
    # 60 values of 20 people, not of 60 lines.
    assert warning.startswith("'place' has 60 values for 20 people:")
