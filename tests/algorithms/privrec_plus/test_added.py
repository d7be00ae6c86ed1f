"""Items that come after the release: their vectors and popularity against loops."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from privrec.algorithms.privrec_plus import added, kernels
from privrec.algorithms.privrec_plus.added import guessed_popularity, with_items
from privrec.algorithms.privrec_plus.kernels import Kernel, Kernels, kernels_of
from privrec.algorithms.privrec_plus.public import (
    Public,
    Trust,
    basis_of,
    public_of,
    through_kernel,
)
from privrec.algorithms.privrec_plus.scoring import BIAS, DISLIKES, LIKES, OUT, POPULARITY
from privrec.algorithms.privrec_plus.solve import bias_of
from privrec.algorithms.recipes import configure
from privrec.data.added import with_new_items
from privrec.data.catalogue import Catalogue
from privrec.data.manifest import Manifest
from privrec.data.tables import Tables, to_federation
from privrec.errors import DataError, RunFolderError
from privrec.types import F64

GENRES = [["a"], ["a", "b"], ["b"], ["c"], ["c", "a"], [], ["b", "c"], ["a"], ["c"], ["b"]]
YEARS: list[float | None] = [1990, 1991, 1995, None, 2001, 1999, 1999.5, 1980, 1985, 2004]
TEXTS = ["red car", "red sea", "blue car", "the sea", None, "car", "blue sea", "red", "sea", "car"]
NAMES = [f"{word} house ({1990 + k})" for k, word in enumerate("abcabcabca")]
MORE = pl.DataFrame(
    {
        "id": ["x", "i3", "w"],
        "title": ["a house (1993)", "another title (1800)", "zeppelin house (2040)"],
        "genres": [["a", "new"], ["a"], ["c"]],
        "year": [1991.5, 1.0, None],
        "text": ["red zeppelin car", "sea", "zeppelin"],
    }
)


def items_of() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "id": [f"i{k}" for k in range(10)],
            "title": NAMES,
            "genres": GENRES,
            "year": YEARS,
            "text": TEXTS,
        },
        strict=False,
    )


def catalogue_of(items: pl.DataFrame) -> Catalogue:
    tables = Tables(
        manifest=Manifest(name="toy"),
        interactions=pl.DataFrame({"user": ["u"], "item": [items["id"][0]]}),
        users=pl.DataFrame({"id": ["u"]}),
        items=items,
    )
    return to_federation(tables).catalogue


OLD = catalogue_of(items_of())
ALL = with_new_items(OLD, MORE, "more")


def test_new_items_come_after_the_known_ones_which_stay_as_they_are() -> None:
    assert ALL.item_ids == [*OLD.item_ids, "w", "x"]
    assert ALL.titles == [*OLD.titles, "zeppelin house (2040)", "a house (1993)"]
    genres, year, text = ALL.schema.of("item")
    assert genres.values == ("a", "b", "c", "new")
    assert (year.mean, year.scale) == (
        OLD.schema.of("item")[1].mean,
        OLD.schema.of("item")[1].scale,
    )
    assert text.values[-2:] == ("red zeppelin car", "zeppelin")
    bag = ALL.items[genres.table]
    assert [set(bag.codes[k][bag.weights[k] > 0].tolist()) for k in (10, 11)] == [{2}, {0, 3}]
    np.testing.assert_allclose(
        ALL.items[year.table].weights[10:, 0], [0, (1991.5 - year.mean) / year.scale], rtol=1e-6
    )
    for table, bag in OLD.items.items():
        np.testing.assert_array_equal(
            ALL.items[table].weights[:10, : bag.codes.shape[1]], bag.weights
        )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (MORE.filter(pl.col("id") == "i3"), "more has no new item: all of its 1 are in the model"),
        (MORE.drop("genres"), "more has no column 'genres'"),
        (MORE.drop("title"), "more has no column 'title'"),
        (MORE.with_columns(year=pl.lit("soon")), "more: item feature 'year' must be numbers"),
        (MORE.with_columns(text=pl.col("genres")), "more: item feature 'text' holds lists"),
    ],
)
def test_a_table_that_is_not_like_the_first_is_refused(table: pl.DataFrame, message: str) -> None:
    with pytest.raises(DataError, match=message):
        with_new_items(OLD, table, "more")


def test_known_items_are_as_alike_as_before_and_new_ones_by_the_same_measure() -> None:
    before, after = kernels_of(OLD), kernels_of(ALL, 10)
    assert (
        before.names == after.names == ("genres", "year", "text", "year", "title", "all together")
    )
    known, new = np.arange(10), np.array([10, 11])
    for one, other in zip(before.blocks(known, known), after.blocks(known, known), strict=True):
        np.testing.assert_array_equal(one, other)
    genres, year, text, in_title, title, _ = after.blocks(new, known)
    share = {v: sum(v in some for some in GENRES) / 10 for v in ("a", "b", "c", "new")}
    for k, values in enumerate(GENRES):
        assert genres[0, k] == pytest.approx(cosine({"c"}, set(values), share))
        assert genres[1, k] == pytest.approx(cosine({"a", "new"}, set(values), share))
    given = [y for y in YEARS if y is not None]
    deviation = float(np.std(given))
    for k, born in enumerate(YEARS):
        wanted = 0.0 if born is None else math.exp(-((born - 1991.5) ** 2) / (0.5 * deviation**2))
        assert year[1, k] == pytest.approx(wanted, rel=1e-4)
        assert year[0, k] == 0
    years = [1990 + k for k in range(10)]
    wide = 0.5 * float(np.std(years)) ** 2
    np.testing.assert_allclose(in_title[0], [math.exp(-((y - 2040) ** 2) / wide) for y in years])
    # "zeppelin" is in no text that was known, so it is no word.
    words = [set((t or "").split()) for t in TEXTS]
    share = {v: sum(v in some for some in words) / 10 for v in ("red", "blue", "car", "sea")}
    for k, some in enumerate(words):
        assert text[0, k] == 0
        assert text[1, k] == pytest.approx(cosine({"red", "car"}, some & set(share), share))
    letters = {v: 4 / 10 if v == "a" else 3 / 10 for v in "abc"} | {"house": 1.0}
    for k, name in enumerate(NAMES):
        assert title[1, k] == pytest.approx(cosine({"a", "house"}, {name[0], "house"}, letters))


def cosine(one: set[str], other: set[str], share: dict[str, float]) -> float:
    weight = {v: 1 / (s + 0.02) for v, s in share.items()}
    lengths = [math.sqrt(sum(weight[v] for v in some)) for some in (one, other)]
    common = sum(weight[v] for v in one & other)
    return common / (lengths[0] * lengths[1]) if min(lengths) > 0 else 0.0


POPULAR = np.array([40.0, 3, 25, 0.2, 8, 12, -4, 30, 2, 6])
WEIGHTS = np.array([0.3, 0.2, 0.1, 0.1, 0.2, 0.1])


def slow_guess(ridges: Sequence[float]) -> tuple[float, F64]:
    """Return the ridge with the least error on items left out one by one, and its guesses."""
    similar = kernels_of(ALL, 10).mixed(WEIGHTS, np.arange(12), np.arange(12))
    level = np.log(np.maximum(POPULAR, 1.0))
    mean = level.mean()

    def predict(rows: list[int], item: int, ridge: float) -> float:
        matrix = similar[np.ix_(rows, rows)] + ridge * np.eye(len(rows))
        return float(mean + similar[item, rows] @ np.linalg.solve(matrix, level[rows] - mean))

    def error(ridge: float) -> float:
        return math.fsum(
            (predict([k for k in range(10) if k != item], item, ridge) - level[item]) ** 2
            for item in range(10)
        )

    best = min(ridges, key=error)
    rows = list(range(10))
    return best, np.exp([min(max(predict(rows, k, best), 0), level.max()) for k in (10, 11)])


def test_popularity_is_guessed_from_items_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    found = kernels_of(ALL, 10)
    new = np.array([10, 11])
    ridge, wanted = slow_guess([float(r) for r in added._RIDGES])
    np.testing.assert_allclose(guessed_popularity(found, WEIGHTS, POPULAR, new), wanted)
    # The error decides: each ridge alone gives something else.
    monkeypatch.setattr(added, "_RIDGES", np.array([ridge * 10]))
    assert not np.allclose(guessed_popularity(found, WEIGHTS, POPULAR, new), wanted)


def params_of(trust: float) -> dict[str, Any]:
    known = kernels_of(OLD)
    weights = Trust(WEIGHTS if trust else np.zeros(6), trust)
    basis = basis_of(POPULAR, known, weights, 4)
    draw = np.random.default_rng(0)
    return {
        POPULARITY: POPULAR,
        LIKES: draw.normal(size=(10, 5)),
        DISLIKES: draw.normal(size=(10, 5)),
        BIAS: np.asarray(bias_of(POPULAR, np.arange(10))),
        **Public(weights, basis).params(10),
    }


def test_new_items_get_vectors_through_the_kernel_and_nothing_else_changes() -> None:
    settings = configure("dp-privrec-plus", "toy", {})
    params = params_of(0.8)
    found = with_items(settings, params, ALL, 10)
    assert found.keys() == params.keys()
    for name, array in params.items():
        known = found[name] if np.ndim(array) == 0 else found[name][: len(array)]
        np.testing.assert_allclose(known, array, rtol=1e-5, atol=1e-6, err_msg=name)
        assert found[name].dtype == np.float32
    _, guessed = slow_guess([float(r) for r in added._RIDGES])
    np.testing.assert_allclose(found[POPULARITY][10:], guessed, rtol=1e-5)
    assert not found[LIKES][10:].any()
    assert not found[DISLIKES][10:].any()
    # U_new = c^½ (1 - a) K(new, kept) diag(c^½) U / κ, pair by pair.
    kept = np.argsort(-POPULAR, kind="stable")
    counted = np.maximum(POPULAR[kept], 1.0)
    mean = counted.mean()
    vectors = np.asarray(params[OUT])[kept][:, :-1]
    strength = np.asarray(params["public/strength"])
    similar = kernels_of(ALL, 10).mixed(WEIGHTS, np.arange(12), np.arange(12))
    length = math.sqrt(sum((c / mean) ** 1.4 for c in counted))
    for row, item in enumerate((10, 11)):
        own = guessed[row] / mean
        for j in range(4):
            along = sum(
                similar[item, k] * math.sqrt(counted[m] / mean) * vectors[m, j]
                for m, k in enumerate(kept)
            )
            wanted = math.sqrt(own) * 0.7 * 0.8 * along / strength[j]
            assert found[OUT][item, j] == pytest.approx(wanted, rel=1e-3, abs=1e-5)
        assert found[OUT][item, -1] == pytest.approx(own**0.7 / length, rel=1e-5)


def test_in_a_large_catalogue_new_items_are_turned_as_the_known_ones_were() -> None:
    settings, params = configure("dp-privrec-plus", "toy", {}), params_of(0.8)
    wanted = with_items(settings, params, ALL, 10)
    turn = np.random.default_rng(1).normal(size=(5, 3))
    public = public_of(params)
    basis = np.column_stack([public.basis.vectors, public.basis.items.common])
    turned = np.zeros((10, 3))
    turned[public.basis.items.kept] = basis @ turn
    short: dict[str, Any] = {**params, **public.params(10, large=True), OUT: turned}
    short |= {name: np.zeros((10, 3)) for name in (LIKES, DISLIKES)}
    found = with_items(settings, short, ALL, 10)
    np.testing.assert_allclose(found[OUT][10:], wanted[OUT][10:] @ turn, rtol=1e-4, atol=1e-5)
    assert found[OUT].shape == found[LIKES].shape == (12, 3)


def test_a_model_that_features_did_not_make_takes_no_new_items() -> None:
    settings = configure("dp-privrec-plus", "toy", {})
    without = {name: a for name, a in params_of(0.8).items() if not name.startswith("public/")}
    with pytest.raises(RunFolderError, match="public features of items chose its basis"):
        with_items(settings, without, ALL, 10)
    with pytest.raises(RunFolderError, match="nothing says where a new item belongs"):
        with_items(settings, params_of(0.0), ALL, 10)


def test_of_very_many_words_those_stay_that_tell_most(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"the {'half' * (k % 2)} {'few' * (k < 2)} {'one' * (k == 0)} t{k}" for k in range(12)]
    items = pl.DataFrame({"id": [f"i{k}" for k in range(12)], "text": texts})
    [whole] = kernels_of(catalogue_of(items)).features
    assert whole.vectors is not None
    assert (whole.vectors.shape[1], whole.left_out) == (3, 0)
    monkeypatch.setattr(kernels, "_MOST_WORDS", 2)
    [found] = kernels_of(catalogue_of(items)).features
    # "the" is in every text, and tells nothing.
    assert (found.vectors.shape[1], found.left_out) == (2, 1)  # type: ignore[union-attr]
    without = items.with_columns(pl.col("text").str.replace("the ", ""))
    [wanted] = kernels_of(catalogue_of(without)).features
    everything = np.arange(12)
    np.testing.assert_allclose(
        found.between(everything, everything), wanted.between(everything, everything)
    )


def test_a_number_that_is_the_mean_is_not_missing() -> None:
    table = pl.DataFrame({"id": list("abcd"), "size": [1.0, 2.0, 3.0, None]})
    [found] = kernels_of(catalogue_of(table)).features
    alike = found.between(np.arange(4), np.arange(4))
    # The deviation is √(2/3), and the width half of it.
    near = math.exp(-1 / (2 * 0.25 * 2 / 3))
    np.testing.assert_allclose(alike[1], [near, 1, near, 0], rtol=1e-5)
    np.testing.assert_allclose(alike[3], [0, 0, 0, 1])
    catalogue = catalogue_of(table)
    assert replace(catalogue).items["embed/item.size"].weights[1, 0] > 0


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("public/weights", np.ones(len(WEIGHTS) + 1)),
        ("public/weights", None),
        ("public/strength", np.ones((4, 4))),
        ("public/strength", np.ones(3)),
        ("public/trust", np.ones(2)),
        (POPULARITY, np.ones(9)),
        (OUT, None),
    ],
)
def test_parameters_of_another_hand_take_no_items(name: str, other: Any) -> None:
    params = {**params_of(0.8), name: other}
    if other is None:
        del params[name]
    with pytest.raises(RunFolderError, match="the parameters do not fit the catalogue"):
        with_items(configure("dp-privrec-plus", "toy", {}), params, ALL, 10)


def test_where_the_kernel_is_negative_a_new_item_gets_nothing_instead_of_any_length() -> None:
    """Items on a circle: max(cosine, 0)² has negative eigenvalues there."""
    angles = np.concatenate([np.arange(200) * 2 * np.pi / 200, [0.3, 2.0]])
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    kernels = Kernels(features=(Kernel(name="text", embedding=circle, close=True),))
    trust, popularity = Trust(np.ones(1), 1.0), np.linspace(30.0, 10.0, 200)
    basis = basis_of(popularity, kernels, trust, 199)
    assert basis.strength.min() < 1e-6
    found = through_kernel(basis, trust, kernels, np.array([200, 201]), np.full(2, 20.0))
    assert np.linalg.norm(found, axis=1).max() < 1
    # Each is among its neighbours.
    nearest = np.abs(found[:, :-1] @ basis.vectors.T).argmax(1)
    between = angles[basis.items.kept[nearest]] - angles[200:]
    assert np.abs(np.angle(np.exp(1j * between))).max() < 0.1
