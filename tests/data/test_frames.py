"""Frames as data: the federation that an import has, and what is wrong with some frames."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import privrec
from commands import invoke
from privrec.data.sources import load
from privrec.errors import DataError, PrivrecError, SettingsError
from privrec.runs.folder import RunFolder

RATINGS = pl.DataFrame(
    {
        "user_id": [7, 7, 7, 8, 8, 8, 9, 9, 9, 4, 4, 4],
        "movie_id": ["a", "b", "c", "a", "c", "d", "b", "c", "d", "d", "a", "b"],
        "rating": [5, 4, 1, 5, 2, 4, 5, 4, 3, 5, 1, 4],
        "when": [3, 1, 2, 6, 5, 4, 9, 8, 7, 12, 11, 10],
        "mood": ["calm", "wild"] * 6,
    }
)
PEOPLE = pl.DataFrame({"user_id": [4, 7, 8, 9], "age": ["old", "young", "old", "young"]})
MOVIES = pl.DataFrame(
    {
        "movie_id": ["a", "b", "c", "d"],
        "title": ["Alpha", "Beta", "Gamma", "Delta"],
        "genre": [["x", "y"], ["x"], [], ["y"]],
        "length": [90.5, None, 100.0, 80.25],
    }
)
ALL: dict[str, Any] = {
    "time": "when",
    "context": ["mood"],
    "users": PEOPLE,
    "items": MOVIES,
    "positive_above": 3,
    "name": "films",
}


def as_pandas(frame: pl.DataFrame) -> Any:
    return pd.DataFrame(frame.to_dict(as_series=False))


def test_a_frame_is_the_federation_that_an_import_of_the_same_table_gives(tmp_path: Path) -> None:
    for name, frame in (("r", RATINGS), ("u", PEOPLE), ("i", MOVIES)):
        frame.write_parquet(tmp_path / f"{name}.parquet")
    words: list[str | Path] = [
        "data",
        "import",
        tmp_path / "r.parquet",
        "--out",
        tmp_path / "films",
    ]
    words += ["--users", tmp_path / "u.parquet", "--items", tmp_path / "i.parquet"]
    words += ["--map", "time=when", "--context", "mood", "--positive-above", "3"]
    assert invoke(*words, "--name", "films").exit_code == 0
    # An import gives the people a random name, which is a part of the fingerprint.
    manifest = tmp_path / "films" / "dataset.toml"
    lines = manifest.read_text().splitlines()
    [population] = [line.split('"')[1] for line in lines if line.startswith("population")]
    imported = load(str(tmp_path / "films"))
    ours = privrec.load(RATINGS, population=population, **ALL)
    assert ours.fingerprint == imported.fingerprint
    assert ours.population == population
    assert ours.catalogue.undeclared == imported.catalogue.undeclared
    assert privrec.load(RATINGS, **ALL).population == "films"


KINDS: dict[str, Callable[[pl.DataFrame], Any]] = {
    "lazy": lambda frame: frame.lazy(),
    "pandas": as_pandas,
    "an index of users": lambda frame: as_pandas(frame).set_index("user_id"),
    "two indices": lambda frame: as_pandas(frame).set_index(["user_id", "movie_id"]),
    "objects": lambda frame: as_pandas(frame).astype(object),
    "nullable": lambda frame: as_pandas(frame).convert_dtypes(),
    "categories": lambda frame: as_pandas(frame).astype(
        {"user_id": "category", "movie_id": "category", "mood": "category"}
    ),
    "ids as floats": lambda frame: as_pandas(frame).astype({"user_id": float}),
    "small numbers": lambda frame: as_pandas(frame).astype({"rating": np.float16}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_frame_is_the_same_data(kind: str) -> None:
    whole = {key: ALL[key] for key in ("time", "context", "positive_above")}
    assert (
        privrec.load(KINDS[kind](RATINGS), **whole).fingerprint
        == privrec.load(RATINGS, **whole).fingerprint
    )
    features = {**whole, "users": as_pandas(PEOPLE), "items": as_pandas(MOVIES)}
    theirs = {**whole, "users": PEOPLE, "items": MOVIES}
    assert (
        privrec.load(KINDS[kind](RATINGS), **features).fingerprint
        == privrec.load(RATINGS, **theirs).fingerprint
    )


def test_times_of_pandas_order_a_persons_lines() -> None:
    frame = as_pandas(RATINGS)
    plain = privrec.load(frame, time="when")
    dates = pd.to_datetime(frame["when"], unit="D")
    seconds = dates.astype("datetime64[s]")  # As some versions of pandas make them.
    zoned = dates.dt.tz_localize("Europe/Rome")
    for when in (dates, seconds, zoned, dates.dt.strftime("%Y-%m-%d")):
        dated = privrec.load(frame.assign(when=when), time="when")
        for position in range(4):
            mine, same = (data.take(np.array([position])) for data in (plain, dated))
            assert mine.item.tolist() == same.item.tolist()
    assert plain.has_times
    first = plain.take(np.array([0]))
    assert [plain.catalogue.item_ids[k] for k in first.item] == ["b", "c", "a"]


FAULTS: list[tuple[Callable[[], object], type[PrivrecError], str]] = [
    (lambda: load(None), SettingsError, "`data` must be a built-in name.*; got None"),
    (lambda: load([1, 2]), SettingsError, r"`data` must be .*; got \[1, 2\]"),
    (lambda: load(np.zeros((9, 9))), SettingsError, "`data` must be .*; got a ndarray"),
    (lambda: load(RATINGS.rename({"user_id": "usr"})), DataError, "did you mean 'usr'"),
    (lambda: load(RATINGS.rename({"user_id": "who"})), DataError, "say which it is with user=…"),
    (lambda: load(RATINGS, user="userid"), DataError, "no column 'userid'; did you mean 'user_id'"),
    (lambda: load(RATINGS, user=3.5), SettingsError, "`user` must be the name of a column"),  # type: ignore[arg-type]
    (lambda: load(RATINGS, item="user_id", user="user_id"), SettingsError, "different columns"),
    (lambda: load(RATINGS.clear()), DataError, "^the frame has no rows$"),
    (lambda: load(as_pandas(RATINGS)[:0]), DataError, "^the frame has no rows$"),
    (lambda: load(pl.DataFrame()), DataError, "^the frame has no rows$"),
    (lambda: load(RATINGS, context="mood"), SettingsError, "`context` must be a list"),
    (lambda: load(RATINGS, context=["moods"]), DataError, "did you mean 'mood'"),
    (lambda: load(RATINGS, positive_above="3"), SettingsError, "`positive_above` must be a number"),  # type: ignore[arg-type]
    (lambda: load(RATINGS, positive_above=7), DataError, "nobody likes anything"),
    (lambda: load(RATINGS, users=[1]), DataError, "frame of users must be a frame of polars"),
    (
        lambda: load(RATINGS, users=PEOPLE[1:]),
        DataError,
        "row 9: 'user_id' must be one of the users",
    ),
    (lambda: load(RATINGS, items=MOVIES.rename({"movie_id": "m"})), DataError, "no column 'id'"),
    (lambda: load(RATINGS, title="name"), SettingsError, "^`title` is about the items"),
    (lambda: load(RATINGS, name="frappe"), SettingsError, "`name` must not be that of built-in"),
    (lambda: load("synthetic", user="u"), SettingsError, "`user` is about a frame"),
    (lambda: load(RATINGS.lazy().select("nothing")), DataError, "the frame cannot be collected"),
    (
        lambda: load(as_pandas(RATINGS).assign(rating=[2.5, "a"] * 6)),
        DataError,
        "'rating' must have values of one kind; got float, str",
    ),
    (
        lambda: load(pd.concat([as_pandas(RATINGS)] * 2, axis=1)),
        DataError,
        "column 'user_id' more than once",
    ),
]


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_what_is_wrong_with_a_frame_is_said_in_the_words_of_python(number: int) -> None:
    wrong, kind, words = FAULTS[number]
    with pytest.raises(kind, match=words) as caught:
        wrong()
    assert "--" not in str(caught.value)


@pytest.mark.parametrize("missing", [None, ""])
@pytest.mark.parametrize("convert", [pl.DataFrame, as_pandas])
def test_a_row_without_an_id_is_named_or_left_out(missing: str | None, convert: Any) -> None:
    frame = RATINGS.with_columns(
        movie_id=pl.Series([missing, *RATINGS["movie_id"][1:]], dtype=pl.String)
    )
    with pytest.raises(DataError, match=r"^the frame row 0: 'movie_id' must .*skip_bad=True"):
        load(convert(frame))
    with pytest.warns(UserWarning, match="^1 bad row was left out; the first: the frame row 0"):
        assert load(convert(frame), skip_bad=True).take(np.arange(4)).sizes.sum() == 11


def test_a_feature_that_nearly_names_people_is_warned_of() -> None:
    many = pl.DataFrame({"user": range(30), "item": [k % 5 for k in range(30)]})
    people = pl.DataFrame({"user": range(30), "phone": [f"+{k}" for k in range(30)]})
    with pytest.warns(UserWarning, match="'phone' has 30 values for 30 people"):
        load(many, users=people)


def test_a_run_on_a_frame_goes_on_with_the_frame_and_says_so(tmp_path: Path) -> None:
    twice = pl.concat([RATINGS.with_columns(pl.col("user_id") + 100 * k) for k in range(10)])
    run = privrec.train("popularity", twice, out=tmp_path / "run", validation_share=0.0)
    assert run.config.data == "frame"
    everybody = run.recommend_many(top=1)
    assert everybody["user"].to_list() == [
        str(100 * k + u) for k in range(10) for u in (7, 8, 9, 4)
    ]
    again = privrec.open_run(tmp_path / "run")
    assert len(again.device(likes=["a"]).recommend(2)) == 2
    with pytest.raises(DataError, match=r"no folder here; .*privrec.open_run\(path, data=frame\)"):
        again.evaluate()
    same = privrec.open_run(tmp_path / "run", data=as_pandas(twice))
    assert same.evaluate().as_json() == run.evaluate().as_json()
    with pytest.raises(PrivrecError, match="the data has changed"):
        privrec.open_run(tmp_path / "run", data=twice[1:])
    done = privrec.train("popularity", twice, out=tmp_path / "run", resume=True)
    assert done.rounds == run.rounds


def test_recommendations_are_a_list_and_a_frame(trained: Path) -> None:
    found = privrec.open_run(trained).device().recommend(3)
    assert isinstance(found, list)
    assert [one.item for one in found] == found.frame()["item"].to_list()
    assert found.frame().columns == ["rank", "item", "title", "score", "better_than"]
    assert found.to_pandas().to_dict("list") == found.frame().to_dict(as_series=False)
    assert type(found)().frame().schema == found.frame().schema


def test_the_history_has_a_row_for_each_round(trained: Path) -> None:
    run = privrec.open_run(trained)
    history = run.history
    assert history["round"].to_list() == [0, 1, 2]
    assert history["loss"].to_list() == [line.loss for line in run.figures]
    looks = [line.validation.get("20") for line in run.figures]
    assert any(looks)
    assert history["validation@20"].to_list() == looks


def test_a_comparison_has_the_figures_of_its_runs(evaluated: tuple[Path, Any]) -> None:
    path, found = evaluated
    both = privrec.compare({"mine": path, "<script>alert(1)</script>": privrec.open_run(path)})
    frame = both.frame()
    # Two runs of the same seed are two lines.
    ours = frame.filter(pl.col("kind") == "ours")
    assert ours["name"].to_list() == ["mine", "<script>alert(1)</script>"]
    assert ours["hits@20"].to_list() == [found["hits"]["20"]] * 2
    popular = frame.filter(pl.col("name").str.starts_with("popularity"))
    assert popular["hits@20"].to_list() == [found["references"]["popularity"]["hits"]["20"]]
    assert repr(both).splitlines()[2].split()[:2] == ["mine", f"{found['hits']['5']:.3f}"]
    assert list(privrec.compare([path, path]).evaluations) == [
        str(path),
        f"{path} (2)",
    ]
    for wrong in (str(path), [], [3], 3):
        with pytest.raises(SettingsError, match="`runs` must"):
            privrec.compare(wrong)  # type: ignore[arg-type]


def test_an_evaluation_is_a_frame(copy: RunFolder) -> None:
    frame = privrec.open_run(copy.path).evaluate(references=["popularity"]).frame()
    assert frame["k"].to_list() == [5, 10, 20, 30] * 2
    assert frame["name"].unique(maintain_order=True).to_list() == ["privrec", "popularity"]
    assert set(frame.columns) >= {"hits", "ndcg", "list_ndcg", "new_only", "low", "high"}
    assert (frame["low"] <= frame["hits"]).all()
