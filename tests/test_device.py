"""What is on a phone: a new person's likes change her list, and nothing of them is stored."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privrec
from privrec.algorithms.recipe import Plan
from privrec.core.scorer import Scores
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients
from privrec.data.manifest import Manifest
from privrec.data.tables import Tables, to_federation
from privrec.device import Device, Recommendation, find_item, new_device
from privrec.errors import DataError, ScorerError, SettingsError
from tiny import DATA, MODEL

TINY = {**MODEL, "rounds": 3, "validate_every": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> privrec.Run:
    return privrec.train("privrec", DATA, out=tmp_path_factory.mktemp("device") / "run", **TINY)


# --- finding, encoding and ranking, with scores that are given -------------------------------


def films() -> Catalogue:
    """Five films, two of one title; films 40 and 41 differ only in the case of their titles."""
    return to_federation(
        Tables(
            manifest=Manifest(name="films", value="value", context=("place",), positive_above=3.0),
            interactions=pl.DataFrame(
                {
                    "user": ["ann", "ann", "ben", "ben", "cem"],
                    "item": [10, 20, 30, 40, 41],
                    "value": [5, 1, 4, 2, 5],
                    "place": ["home", "bus", "bus", "home", None],
                }
            ),
            users=pl.DataFrame(
                {
                    "id": ["ann", "ben", "cem"],
                    "age": [20.0, 30.0, 40.0],
                    "town": ["Ulm", "Bern", "Ulm"],
                    "tags": [["x", "y"], ["z"], []],
                }
            ),
            items=pl.DataFrame(
                {"id": [10, 20, 30, 40, 41], "title": ["20", "Solaris", "Solaris", "It", "IT"]}
            ),
        )
    ).catalogue


class Scored:
    """A scorer that returns fixed scores and records its arguments."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = np.array([scores], np.float32)
        self.asked: list[tuple[Clients, Clients]] = []

    def __call__(self, first: Clients, lines: Clients) -> Iterator[Scores]:
        self.asked.append((first, lines))
        yield self.scores


def device(scores: list[float], **given: Any) -> tuple[Device, Scored]:
    scorer = Scored(scores)
    return new_device(films(), scorer, **given), scorer


def items(found: list[Recommendation]) -> list[str]:
    return [entry.item for entry in found]


def test_items_are_ranked_by_score_without_those_she_knows() -> None:
    me, _ = device([0.1, 0.5, 0.3, 0.9, 0.7], likes=["40"], dislikes=["30"])
    found = me.recommend(2)
    assert [(entry.item, entry.title) for entry in found] == [("41", "IT"), ("20", "Solaris")]
    assert [entry.score for entry in found] == pytest.approx([0.7, 0.5])
    assert items(me.recommend(1)) == ["41"]
    assert items(me.recommend(99)) == ["41", "20", "10"]
    with pytest.raises(SettingsError, match="`top` must be >= 1; got 0"):
        me.recommend(0)


def test_equal_scores_keep_the_order_of_the_catalogue_and_nothing_is_left_at_the_end() -> None:
    me, _ = device([0.5, 0.5, 0.5, 0.5, 0.5])
    assert items(me.recommend(5)) == ["10", "20", "30", "40", "41"]
    everything, _ = device([0.5] * 5, likes=["10", "20"], dislikes=["30", "40", "41"])
    assert everything.recommend(5) == []


def test_her_data_is_what_she_said() -> None:
    me, scorer = device(
        [0.0] * 5,
        likes=["30", "41"],
        dislikes=["10"],
        features={"age": 40, "town": "Ulm", "tags": ["z", "x"], "place": "bus"},
    )
    me.recommend()
    [(first, lines)] = scorer.asked
    assert first.item.tolist() == [2, 4, 0]
    assert first.liked.tolist() == [True, True, False]
    # A value counts as a like exactly when it is greater than the data set's threshold.
    assert (first.value > 3.0).tolist() == [True, True, False]
    assert first.offsets.tolist() == [0, 3]
    # Ages 20, 30, 40 have the mean 30 and the standard deviation sqrt(200 / 3).
    assert first.features["embed/user.age"].weights.tolist() == [[pytest.approx(1.5**0.5)]]
    assert first.features["embed/user.town"].codes.tolist() == [[1]]  # Bern, Ulm
    assert first.features["embed/user.tags"].codes.tolist() == [[2, 0]]  # x, y, z
    assert first.features["embed/user.tags"].weights.tolist() == [[0.5, 0.5]]
    # The given context applies to the list and to each of her likes.
    assert first.context["embed/context.place"].codes.tolist() == [[0], [0], [0]]  # bus, home
    assert lines.context["embed/context.place"].codes.tolist() == [[0]]
    assert (len(lines), lines.sizes.tolist()) == (1, [1])


def test_what_she_does_not_say_has_no_weight() -> None:
    me, scorer = device([0.0] * 5)
    assert len(me.recommend()) == 5
    [(first, lines)] = scorer.asked
    assert first.item.tolist() == []
    for bag in (*first.features.values(), *lines.context.values()):
        assert not np.asarray(bag.weights).any()


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({"agee": 3}, "unknown feature 'agee'; did you mean 'age'?"),
        ({"age": "old"}, "must be a finite number; got 'old'"),
        ({"age": float("inf")}, "must be a finite number"),
        ({"town": "Ulmm"}, "did you mean 'Ulm'?"),
        ({"town": ["Ulm", "Bern"]}, "'town' takes one value"),
        ({"place": "hom"}, "did you mean 'home'?"),
        ({"tags": ["x", "w"]}, "unknown value 'w'"),
        ({"plase": "home"}, "unknown feature 'plase'; did you mean 'place'?"),
        ({"town": "Ulmm"}, "did you mean 'Ulm'? (it takes: "),
        ({"title": "It"}, "unknown feature 'title'"),
    ],
)
def test_a_wrong_feature_is_named(features: dict[str, object], words: str) -> None:
    with pytest.raises(DataError) as caught:
        device([0.0] * 5, features=features)
    assert words in str(caught.value)


def test_items_are_found_by_id_then_title_then_title_in_any_case() -> None:
    catalogue = films()
    assert find_item(catalogue, "20") == 1  # an id, although film 10 has it for a title
    assert find_item(catalogue, "It") == 3
    assert find_item(catalogue, "IT") == 4
    with pytest.raises(DataError, match="2 items are called 'it': give an id, of 40, 41"):
        find_item(catalogue, "it")
    with pytest.raises(DataError, match="2 items are called 'SOLARIS': give an id, of 20, 30"):
        find_item(catalogue, "SOLARIS")
    with pytest.raises(DataError, match="unknown item 'Solari'; did you mean 'Solaris'"):
        find_item(catalogue, "Solari")
    accents = replace(catalogue, titles=["Amélie", "STRASSE", "千と千尋", "[/]", "x"])
    assert [find_item(accents, name) for name in ("AMÉLIE", "straße", "千と千尋", "[/]")] == [
        *(0, 1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"likes": ["40"], "dislikes": ["40"]}, "'It' was given more than once"),
        ({"likes": ["40", "It"]}, "'It' was given more than once"),
        ({"likes": ["Stalker"]}, "unknown item 'Stalker'"),
    ],
)
def test_a_wrong_item_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError) as caught:
        device([0.0] * 5, **given)
    assert words in str(caught.value)


def test_one_title_is_no_list_of_titles() -> None:
    with pytest.raises(SettingsError, match="`likes` must be a list of items; got 'It'"):
        device([0.0] * 5, likes="It")


def test_what_is_no_score_is_not_ranked() -> None:
    for number in (np.nan, np.inf, -np.inf):
        me, _ = device([0.1, number, 0.3, 0.9, 0.7], likes=["20"])
        with pytest.raises(ScorerError, match="scores are not numbers"):
            me.recommend(2)

    def unsolvable(first: Clients, lines: Clients) -> Iterator[Scores]:
        yield np.linalg.solve(np.zeros((5, 5)), np.zeros((1, 5)).T).T

    with pytest.raises(ScorerError, match="scores are not numbers"):
        new_device(films(), unsolvable, likes=["20"]).recommend(2)


# --- a trained model -------------------------------------------------------------------------


def test_however_an_item_is_named_it_is_the_same_like(run: privrec.Run) -> None:
    lists = [
        run.device(likes=likes, dislikes=["i2"], features={"age": "18-29"}).recommend(40)
        for likes in (["i0", "i17"], ["The Silent Harbour", "The Golden Garden"])
    ]
    lists.append(
        run.device(
            likes=["the silent HARBOUR", "i17"],
            dislikes=["THE BROKEN HARBOUR"],
            features={"age": "18-29"},
        ).recommend(40)
    )
    assert lists[0] == lists[1] == lists[2]


def test_what_she_knows_is_never_recommended(run: privrec.Run) -> None:
    me = run.device(likes=["i0", "i5", "i39"], dislikes=["i7", "i8"])
    found = me.recommend(1000)
    assert sorted(items(found)) == sorted(f"i{k}" for k in range(40) if k not in {0, 5, 39, 7, 8})
    assert items(me.recommend(5)) == items(found)[:5]
    scores = [entry.score for entry in found]
    assert scores == sorted(scores, reverse=True)
    assert np.isfinite(scores).all()


def test_likes_dislikes_and_features_all_count(run: privrec.Run) -> None:
    def scores(**given: Any) -> dict[str, float]:
        return {entry.item: entry.score for entry in run.device(**given).recommend(40)}

    plain = scores()
    assert len(plain) == 40
    for given in (
        {"likes": ["i3"]},
        {"dislikes": ["i3"]},
        {"features": {"age": "18-29"}},
        {"features": {"region": "north"}},
    ):
        others = scores(**given)
        assert any(abs(others[item] - plain[item]) > 1e-6 for item in others), given
    assert scores(likes=["i3"]) != scores(dislikes=["i3"])


@pytest.mark.slow
def test_there_may_be_nobody_to_rank_for(tmp_path: Path) -> None:
    """In a small data set the validation or test people may have too few likes."""
    lines = pl.DataFrame({"user": ["a", "b", "c", "d"], "item": ["x", "x", "y", "z"]})
    ids = {name: pl.DataFrame({"id": lines[name].unique().sort()}) for name in ("user", "item")}
    data = to_federation(
        Tables(
            manifest=Manifest(name="few"),
            interactions=lines,
            users=ids["user"],
            items=ids["item"],
        )
    )
    settings = {**TINY, "rounds": 1, "cohort": 1, "validation_share": 0.4, "validate_every": 1}
    # A seed for which some of the four train, some validate and some are tested.
    run = privrec.train("privrec", data, out=tmp_path / "run", **settings, seed=1)
    assert len(run.prepared.task.split.validation) == 1
    with pytest.raises(DataError, match="none of the 1 test people has two likes"):
        run.evaluate()
    assert not run.folder.evaluation_path.exists()
    assert len(run.device(likes=["x"]).recommend()) == 2


def test_recommending_leaves_no_trace(run: privrec.Run) -> None:
    """Not in the run folder, and not in the model that the next person gets."""

    def state() -> dict[Path, tuple[int, bytes]]:
        folder = run.folder.path
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in folder.rglob("*")
        }

    def asked() -> Plan:
        raise AssertionError("a newcomer's device asked for the data")

    before = state()
    alone = replace(run, load_prepared=asked)
    mine: dict[str, Any] = {"likes": ["i1", "i2"], "features": {"age": "18-29"}}
    first = alone.device(**mine).recommend(20)
    other = alone.device(likes=["i30"], dislikes=["i4", "i5", "i6"]).recommend(20)
    assert alone.device(**mine).recommend(20) == first
    assert other != first
    opened = privrec.open_run(run.folder.path)
    assert opened.device(**mine).recommend(20) == first
    assert state() == before


@pytest.mark.slow
def test_likes_of_one_genre_bring_more_of_it(tmp_path: Path) -> None:
    """Each of eight new people likes eight items of one genre; the genres are not given."""
    data = privrec.load("synthetic:users=400,items=200,longest=40")
    settings = {**TINY, "rounds": 50, "cohort": 40, "negatives": 6, "adapt_negatives": 6}
    settings |= {"embedding_size": 16, "tower_size": 16, "hidden": [16]}
    settings |= {"server_lr": 0.01, "adapt_epochs": 30}
    run = privrec.train("privrec", data, out=tmp_path / "run", **settings)
    bag = data.items["embed/item.genres"]
    n_genres = len(data.schema.named("genres", "item").values)
    has = np.zeros((200, n_genres), np.bool_)
    for item in range(200):
        has[item, bag.codes[item][bag.weights[item] > 0]] = True
    shown = np.zeros((n_genres, n_genres))  # genre shown (row), genre liked (column)
    for genre in range(n_genres):
        purest = sorted(np.flatnonzero(has[:, genre]), key=lambda item: has[item].sum())[:8]
        found = run.device(likes=[f"i{item}" for item in purest]).recommend(20)
        shown[:, genre] = has[[int(entry.item[1:]) for entry in found]].sum(0)
    to_lovers = np.trace(shown)
    to_others = (shown.sum() - to_lovers) / (n_genres - 1)
    # 1 if likes changed nothing; measured: 1.7.
    assert to_lovers > 1.3 * to_others


@pytest.mark.slow
def test_the_moment_counts_too(tmp_path: Path) -> None:
    """At home people like the first ten items, on the bus the others; the context must count."""
    rows = [
        (f"u{user}", f"i{item:02d}", "home" if item < 10 else "bus")
        for user in range(40)
        for item in range(20)
        if (user + item) % 3
    ]
    lines = pl.DataFrame(rows, schema=["user", "item", "place"], orient="row")
    ids = {name: pl.DataFrame({"id": lines[name].unique().sort()}) for name in ("user", "item")}
    manifest = Manifest(name="moments", context=("place",))
    data = to_federation(
        Tables(manifest=manifest, interactions=lines, users=ids["user"], items=ids["item"])
    )
    settings = {**TINY, "rounds": 60, "cohort": 16, "server_lr": 0.02, "local_lr": 0.3}
    settings |= {"embedding_size": 8, "tower_size": 8, "hidden": [8], "negatives": 3}
    run = privrec.train("privrec", data, out=tmp_path / "run", **settings)
    for place, known in (("home", range(10)), ("bus", range(10, 20))):
        found = run.device(features={"place": place}).recommend(10)
        right = {entry.item for entry in found} & {f"i{item:02d}" for item in known}
        assert len(right) >= 8, (place, found)
