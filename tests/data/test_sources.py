from pathlib import Path

import numpy as np
import polars as pl
import pytest

from privrec.data.manifest import Manifest
from privrec.data.published import PUBLISHED
from privrec.data.sources import BUILT_IN, describe_data, is_here, load
from privrec.data.tables import Tables, write_folder
from privrec.errors import DataError, PrivrecError, SettingsError


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for published files, whatever files this machine has."""
    monkeypatch.setenv("PRIVREC_DATA", str(tmp_path / "published"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_tiny(folder: Path) -> None:
    tables = Tables(
        manifest=Manifest(name="tiny", value="stars", positive_above=3.0),
        interactions=pl.DataFrame(
            {
                "user": ["a", "a", "a", "b", "c", "c", "c", "c"],
                "item": ["x", "y", "x", "x", "x", "y", "z", "y"],
                "stars": [4.0, 3.0, 5.0, 1.0, 4.0, 4.0, 4.0, 2.0],
            }
        ),
        users=pl.DataFrame({"id": ["a", "b", "c"], "age": ["old", "young", "old"]}),
        items=pl.DataFrame({"id": ["x", "y", "z"], "year": [1.0, 2.0, 3.0]}),
    )
    write_folder(tables, folder)


def test_synthetic_takes_settings_behind_a_colon() -> None:
    federation = load("synthetic:users=30,items=40,longest=12,seed=7")
    assert (federation.n_clients, federation.n_items, federation.largest) == (30, 40, 12)
    other = load("synthetic:users=30,items=40,longest=12")
    people = np.arange(30)
    assert federation.take(people).item.tolist() != other.take(people).item.tolist()
    assert load("synthetic").n_clients == 2000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("synthetic:usres=5", "synthetic: unknown key 'usres'; did you mean 'users'?"),
        ("synthetic:users=many", "synthetic: `users` must be a whole number; got 'many'"),
        ("synthetic:users=-5", "synthetic: `users` must be >= 2; got -5"),
        ("synthetic:users=2.5", "synthetic: `users` must be a whole number; got '2.5'"),
        ("synthetic:users", "synthetic: `users` must be a whole number; got ''"),
        ("synthetic:items=0", "synthetic: `items` must be >= 20; got 0"),
    ],
)
def test_wrong_synthetic_settings_are_named(data: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(data)
    assert str(caught.value) == message


def test_a_made_up_population_has_the_name_that_loads_it() -> None:
    names = ["synthetic", "synthetic:users=60", "synthetic:users=60,items=40,longest=12,seed=7"]
    made = [load(name) for name in names]
    assert [federation.name for federation in made] == names
    # Two populations never share a ledger's name or a fingerprint.
    assert [federation.population for federation in made] == names
    assert len({federation.fingerprint for federation in made}) == 3
    assert [federation.people for federation in made] == [2000, 60, 60]
    assert made[2].catalogue.undeclared == ()


def test_a_superscript_is_not_a_whole_number() -> None:
    with pytest.raises(PrivrecError):
        load("synthetic:users=²")


def test_a_folder_is_a_data_set(nothing_here: Path) -> None:
    write_tiny(nothing_here / "mine")
    federation = load(str(nothing_here / "mine"))
    assert (federation.name, federation.n_clients, federation.n_items) == ("tiny", 3, 3)
    assert load("mine").name == "tiny"


def test_unknown_names_get_the_nearest_one() -> None:
    with pytest.raises(DataError, match=r"did you mean 'movielens-1m'\?"):
        load("movielens-1M ")
    with pytest.raises(DataError, match=r"is no built-in name and no folder; see 'privrec data"):
        load("qqq")


def test_a_file_is_not_a_folder(nothing_here: Path) -> None:
    (nothing_here / "ratings.csv").write_text("a,b\n")
    with pytest.raises(DataError, match=r"'ratings\.csv' is a file, not a data folder"):
        load("ratings.csv")


def test_a_published_set_that_is_not_here_says_where_to_get_it() -> None:
    for name, published in PUBLISHED.items():
        assert name in BUILT_IN
        assert not is_here(name)
        with pytest.raises(DataError) as caught:
            load(name)
        assert published.archive in str(caught.value)
        assert published.address in str(caught.value)
    assert is_here("synthetic")


@pytest.mark.parametrize("name", sorted(PUBLISHED))
@pytest.mark.parametrize("below", ["", "one"])
def test_is_here_sees_archives_and_unpacked_files(
    name: str, below: str, nothing_here: Path
) -> None:
    folder = nothing_here / "published" / below
    folder.mkdir(parents=True)
    for file in PUBLISHED[name].sums:
        assert not is_here(name)
        (folder / file).touch()
    assert is_here(name)
    for file in PUBLISHED[name].sums:
        (folder / file).unlink()
    (nothing_here / "published" / PUBLISHED[name].archive).touch()
    assert is_here(name)


def test_is_here_looks_as_deep_as_load_does(nothing_here: Path) -> None:
    folder = nothing_here / "published" / "frappe" / "frappe"
    folder.mkdir(parents=True)
    for file in PUBLISHED["frappe"].sums:
        (folder / file).touch()
    assert is_here("frappe")


def test_describe_counts_what_is_there(nothing_here: Path) -> None:
    write_tiny(nothing_here / "mine")
    assert describe_data("mine") == {
        "name": "tiny",
        "people": 3,
        "items": 3,
        "interactions": 8,
        "likes": 5,
        "a value is a like above": 3.0,
        "interactions per person, median": 3.0,
        "interactions per person, largest": 4,
        "people return to the same item": True,
        "lines have a time": False,
        "not declared public": [
            "the list of items and their features",
            "the value above which a rating is a like",
            "the number of people",
            "the values of 'age'",
        ],
        "features": [
            {"name": "age", "side": "user", "kind": "categorical", "values": 2},
            {"name": "year", "side": "item", "kind": "numeric", "values": 1},
        ],
    }


def test_describe_sweeps_everybody() -> None:
    # More people than one chunk.
    federation = load("synthetic:users=1500,items=20")
    clients = federation.take(np.arange(1500))
    described = describe_data("synthetic:users=1500,items=20")
    assert described["interactions"] == len(clients.item)
    assert described["likes"] == clients.liked.sum()
    assert not described["people return to the same item"]
