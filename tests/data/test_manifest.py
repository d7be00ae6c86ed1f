from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privrec.data.manifest import Manifest, Public, manifest_text, read_manifest
from privrec.data.schema import Kind
from privrec.data.tables import Tables, to_federation
from privrec.errors import DataError


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "dataset.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 'x'\npositiv_above = 1", r"unknown key 'positiv_above'; .*'positive_above'\?"),
        ("[columns]\nusr = 'u'", r"unknown key 'usr'; did you mean 'user'\?"),
        ("[kinds]\nage = 'number'", "`kinds.age` must be .*'numeric'; got 'number'"),
        ("kinds = 3", "`kinds` must be a valid dictionary; got 3"),
        ("columns = ['user']", r"\[columns\] must be a table; got \['user'\]"),
        ("[columns]\nuser = 3", "`user` must be a valid string; got 3"),
        ("[columns]\ncontext = 'place'", "`context` must be a list of names; got 'place'"),
        ("[columns]\ncontext = [1]", r"`context` must be a list of names; got \[1\]"),
        ("positive_above = '3'", "`positive_above` must be a valid number; got '3'"),
        ("positive_above = true", "`positive_above` must be a valid number; got True"),
        ("positive_above = nan", "`positive_above` must be a finite number; got nan"),
        ("name = ", "cannot read .*dataset.toml"),
        ("population = 3", "`population` must be a valid string; got 3"),
        ("public = true", r"\[public\] must be a table; got True"),
        ("[public]\npeopel = 9", r"unknown key 'peopel'; did you mean 'people'\?"),
        ("[public]\npeople = 0", "`public.people` must be >= 1; got 0"),
        ("[public]\npeople = 10.0", r"`public.people` must be a valid integer; got 10\.0"),
        ("[public]\npeople = true", "`public.people` must be a valid integer; got True"),
        ("[public]\nitems = 1", "`public.items` must be a valid boolean; got 1"),
        ("[public]\nthreshold = 'yes'", "`public.threshold` must be a valid boolean; got 'yes'"),
        ("[public]\nitem_features = 'year'", "must be true, false or a list of names; got 'year'"),
        ("[public]\nvalues = ['a']", r"`public.values` must be a valid dictionary; got \['a'\]"),
        ("[public.values]\nage = 'old'", "`public.values.age` must be a list of names; got 'old'"),
        ("[public.values]\nage = []", r"age` must be a list of distinct texts; got \[\]"),
        ("[public.values]\nage = ['a', 'a']", "age` must be a list of distinct texts"),
        ("[public.numbers]\nage = 3", "`public.numbers.age` must be a valid tuple; got 3"),
        ("[public.numbers]\nage = [3]", r"`public.numbers.age.1` must be given; got \[3\]"),
        ("[public.numbers]\nage = [3, 0]", r"`public.numbers.age.1` must be > 0; got 0"),
        ("[public.numbers]\nage = [3, true]", "age.1` must be a valid number; got True"),
        ("[public.numbers]\nage = [nan, 1]", "age.0` must be a finite number; got nan"),
        ("[public.numbers]\nage = [1, 2, 3]", "age` Tuple should have at most 2 items"),
    ],
)
def test_a_wrong_manifest_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_manifest(write(tmp_path, text))
    assert str(tmp_path / "dataset.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_manifest_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, 'name = "Kätzchen"'.encode("latin-1"))
    with pytest.raises(DataError, match=r"cannot read .*dataset\.toml"):
        read_manifest(path)


def test_a_manifest_may_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert read_manifest(write(tmp_path / "mine", "")) == Manifest(name="mine")


# Surrogates are no characters: TOML cannot hold them.
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
kinds: st.SearchStrategy[Kind] = st.sampled_from(["categorical", "multi", "numeric"])
finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.builds(
        Manifest,
        name=texts,
        user=texts,
        item=texts,
        value=st.none() | texts,
        time=st.none() | texts,
        context=st.lists(texts, max_size=3).map(tuple),
        positive_above=finite,
        kinds=st.dictionaries(texts, kinds, max_size=3),
        population=st.just("") | texts,
        public=st.builds(
            Public,
            people=st.none() | st.integers(1, 10**9),
            items=st.booleans(),
            item_features=st.booleans() | st.lists(texts, max_size=3).map(tuple),
            threshold=st.booleans(),
            values=st.dictionaries(
                texts, st.lists(texts, min_size=1, max_size=3, unique=True).map(tuple), max_size=3
            ),
            numbers=st.dictionaries(
                texts, st.tuples(finite, finite.map(abs).filter(bool)), max_size=3
            ),
        ),
    )
)
def test_any_manifest_survives_the_folder(
    tmp_path_factory: pytest.TempPathFactory, manifest: Manifest
) -> None:
    path = write(tmp_path_factory.mktemp("data"), manifest_text(manifest))
    assert read_manifest(path) == manifest


def films(public: Public, kinds: Mapping[str, Kind] | None = None, **columns: Any) -> Tables:
    """Two people with an age in years, a town and hobbies, who watched in a place."""
    people = {"id": ["ann", "cem"], "age": [20.0, 40.0], "town": ["Ulm", "Bonn"]}
    people |= {"hobbies": [["chess"], ["golf", "chess"]]}
    places = {"place": columns.pop("place", ["home", "bus"])}
    return Tables(
        manifest=Manifest(
            name="films",
            value="stars",
            context=("place",),
            positive_above=3.0,
            kinds=dict(kinds or {}),
            public=public,
        ),
        interactions=pl.DataFrame(
            {"user": ["ann", "cem"], "item": [7, 8], "stars": [5, 4]} | places
        ),
        users=pl.DataFrame(people | columns),
        items=pl.DataFrame({"id": [7, 8], "year": [1.0, 2.0], "town": ["Rome", "Oslo"]}),
    )


DECLARED = Public(
    people=1000,
    items=True,
    item_features=True,
    threshold=True,
    values={
        "town": ("Bonn", "Köln", "Ulm"),
        "hobbies": ("chess", "golf", "music"),
        "place": ("home", "bus"),
    },
    numbers={"age": (30.0, 20.0)},
)


def test_a_declared_vocabulary_fixes_the_shape_whoever_is_there() -> None:
    tables = [
        films(DECLARED),
        films(DECLARED, town=["Rome", None], hobbies=[["sudoku"], None], place=[None, "moon"]),
        films(DECLARED, town=["Ulm", "Ulm"], age=[None, 1e6], place=["bus", "bus"]),
    ]
    features = [to_federation(one).schema.features for one in tables]
    assert features[0] == features[1] == features[2]
    found = {(f.side, f.name): (f.values, f.mean, f.scale) for f in features[0]}
    assert found["user", "town"][0] == ("Bonn", "Köln", "Ulm")
    assert found["context", "place"][0] == ("home", "bus")
    assert found["user", "age"] == ((), 30.0, 20.0)
    # An item's feature of the same name belongs to the catalogue and is not affected.
    assert found["item", "town"][0] == ("Oslo", "Rome")


def test_a_value_that_is_not_declared_counts_as_missing() -> None:
    tables = films(
        DECLARED,
        town=["Rome", "Köln"],
        hobbies=[["sudoku", "golf"], ["sudoku"]],
        place=["moon", "bus"],
    )
    clients = to_federation(tables).take(np.arange(2))
    town, hobbies = clients.features["embed/user.town"], clients.features["embed/user.hobbies"]
    assert (town.weights.tolist(), int(town.codes[1, 0])) == ([[0], [1]], 1)
    assert hobbies.weights.sum(1).tolist() == [1, 0]
    assert int(hobbies.codes[0, 0]) == 1
    place = clients.context["embed/context.place"]
    assert (place.weights.tolist(), int(place.codes[1, 0])) == ([[0], [1]], 1)
    # (20 - 30) / 20 and (40 - 30) / 20, not the people's own mean and spread.
    assert clients.features["embed/user.age"].weights.tolist() == [[-0.5], [0.5]]


def test_a_vocabulary_may_name_numbers_as_text() -> None:
    public = replace(DECLARED, values={**DECLARED.values, "age": ("20", "30")}, numbers={})
    clients = to_federation(films(public, {"age": "categorical"})).take(np.arange(2))
    assert clients.features["embed/user.age"].weights.tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"items": False}, ["the list of items and their features"]),
        ({"item_features": False}, ["the features of items ('year', 'town')"]),
        ({"item_features": ("town",)}, ["the features of items ('year')"]),
        ({"item_features": ("town", "year")}, []),
        ({"items": False, "item_features": False}, ["the list of items and their features"]),
        ({"threshold": False}, ["the value above which a rating is a like"]),
        ({"people": None}, ["the number of people"]),
        ({"numbers": {}}, ["the values of 'age'"]),
        (
            {"values": {"town": ("Ulm",)}},
            ["the values of 'hobbies'", "the values of 'place'"],
        ),
    ],
)
def test_what_is_not_declared_is_listed(change: dict[str, Any], said: list[str]) -> None:
    federation = to_federation(films(replace(DECLARED, **change)))
    assert list(federation.catalogue.undeclared) == said


def test_a_declared_feature_of_items_must_be_there() -> None:
    with pytest.raises(DataError, match=r"item_features names 'yaer', .*did you mean 'year'\?"):
        to_federation(films(replace(DECLARED, item_features=("yaer",))))


def test_data_of_before_the_declaration_has_the_same_fingerprint() -> None:
    """A run that was begun with it goes on."""
    marks = {
        to_federation(films(replace(DECLARED, item_features=declared))).fingerprint
        for declared in (True, False, ("year",))
    }
    assert len(marks) == 1


def test_a_feature_that_nobody_has_a_value_of_is_listed_too() -> None:
    """It is not part of the model, but would be if one person had a value."""
    federation = to_federation(films(DECLARED, colour=[None, None]))
    assert "colour" not in [feature.name for feature in federation.schema.features]
    assert federation.catalogue.undeclared == ("the values of 'colour'",)


def test_nothing_is_declared_unless_it_is_said() -> None:
    federation = to_federation(films(Public()))
    assert len(federation.catalogue.undeclared) == 7
    assert federation.people == 2
    assert to_federation(films(DECLARED)).people == 1000


def test_without_a_value_there_is_no_threshold_to_declare() -> None:
    tables = films(replace(DECLARED, threshold=False))
    tables = replace(tables, manifest=replace(tables.manifest, value=None, positive_above=0.0))
    assert to_federation(tables).catalogue.undeclared == ()


def test_the_population_has_the_name_of_the_data_unless_it_is_given() -> None:
    tables = films(DECLARED)
    assert to_federation(tables).population == "films"
    named = replace(tables, manifest=replace(tables.manifest, population="club"))
    assert to_federation(named).population == "club"


@pytest.mark.parametrize(
    ("public", "message"),
    [
        (Public(values={"twon": ("a",)}), r"\[public\.values\] names 'twon', .* mean 'town'\?"),
        (Public(values={"year": ("a",)}), "'year', which is no feature of people or moments"),
        (Public(numbers={"id": (0.0, 1.0)}), r"\[public\.numbers\] names 'id', which is no"),
        (Public(numbers={"town": (0.0, 1.0)}), "user feature 'town' must be numbers; got String"),
        (Public(numbers={"place": (0.0, 1.0)}), "context feature 'place' must be numbers; got"),
    ],
)
def test_a_declaration_that_fits_no_feature_is_refused(public: Public, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        to_federation(films(public))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "public", "message"),
    [
        ("numeric", Public(values={"age": ("a",)}), r"declare it in \[public\.numbers\]"),
        ("categorical", Public(numbers={"town": (0.0, 1.0)}), r"declare it in \[public\.values\]"),
    ],
)
def test_a_declaration_against_the_kind_is_refused(
    kind: Kind, public: Public, message: str
) -> None:
    tables = films(public)
    name = next(iter({**public.values, **public.numbers}))
    kinds = replace(tables, manifest=replace(tables.manifest, kinds={name: kind}))
    with pytest.raises(DataError, match=message):
        to_federation(kinds)
