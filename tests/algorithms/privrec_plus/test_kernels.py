"""Kernels of public features, against loops over items."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privrec.algorithms.privrec_plus.kernels import Kernels, kernels_of
from privrec.data.catalogue import Catalogue
from privrec.data.schema import Bag, Feature, Kind, Schema, encode
from privrec.types import F64

Column = tuple[Kind, Sequence[Any]]


def catalogue_of(
    size: int, columns: dict[str, Column] | None = None, titles: Sequence[str] | None = None
) -> Catalogue:
    """Return a catalogue with these columns; without titles, the ids are shown."""
    features, bags = [], {}
    for name, (kind, column) in (columns or {}).items():
        lists = [value if isinstance(value, list) else [value] for value in column]
        known = sorted({str(v) for values in lists for v in values if v is not None})
        feature = Feature(
            name=name, side="item", kind=kind, values=() if kind == "numeric" else tuple(known)
        )
        features.append(feature)
        bags[feature.table] = encode(feature, column)
    ids = [f"i{k}" for k in range(size)]
    return Catalogue(
        name="toy",
        schema=Schema(features=tuple(features)),
        item_ids=ids,
        titles=list(titles or ids),
        items=bags,
        positive_above=3.0,
    )


def whole(kernels: Kernels) -> dict[str, F64]:
    everything = np.arange(_size(kernels))
    return dict(zip(kernels.names, kernels.blocks(everything, everything), strict=True))


def _size(kernels: Kernels) -> int:
    first = kernels.features[0]
    parts = (first.numbers, first.embedding, first.vectors)
    return next(int(part.shape[0]) for part in parts if part is not None)


def by_values(values: Sequence[set[str]]) -> F64:
    """Return the cosine of weighted indicators, pair by pair."""
    n = len(values)
    weight = {
        v: 1 / math.sqrt(sum(v in some for some in values) / n + 0.02) for v in set().union(*values)
    }
    found = np.eye(n)
    for i in range(n):
        for k in range(n):
            lengths = [math.sqrt(sum(weight[v] ** 2 for v in values[j])) for j in (i, k)]
            if i != k and min(lengths) > 0:
                common = sum(weight[v] ** 2 for v in values[i] & values[k])
                found[i, k] = common / (lengths[0] * lengths[1])
    return found


def by_numbers(numbers: Sequence[float | None]) -> F64:
    """Return exp(-Δ²/2w²), pair by pair."""
    known = [number for number in numbers if number is not None]
    mean = sum(known) / len(known)
    width = 0.5 * math.sqrt(sum((number - mean) ** 2 for number in known) / len(known))
    found = np.eye(len(numbers))
    for i, one in enumerate(numbers):
        for k, other in enumerate(numbers):
            if i != k and one is not None and other is not None:
                found[i, k] = math.exp(-((one - other) ** 2) / (2 * width**2))
    return found


COLOURS = ["red", "blue", "red", None, "green", "blue", "red"]
GENRES: list[list[str]] = [["a", "b"], ["b"], ["a", "b", "c"], [], ["c"], ["d"], ["b", "a"]]
LENGTHS = [1.5, 2.0, -3.0, None, 1.5, 7.0, 2.25]
TEXTS = ["A red car", "a blue CAR!", "the red-blue sea", None, "sea", "one other thing", "car"]


def test_each_kernel_is_that_of_a_loop_over_items() -> None:
    columns: dict[str, Column] = {
        "colour": ("categorical", COLOURS),
        "genres": ("multi", GENRES),
        "length": ("numeric", LENGTHS),
        "text": ("categorical", TEXTS),
    }
    found = whole(kernels_of(catalogue_of(7, columns)))
    assert list(found) == ["colour", "genres", "length", "text", "all together"]
    wanted = {
        "colour": by_values([{colour} if colour else set() for colour in COLOURS]),
        "genres": by_values([set(some) for some in GENRES]),
        "length": by_numbers(LENGTHS),
    }
    words = [set(re.findall(r"\w+", (text or "").lower())) for text in TEXTS]
    # A word that one item alone has says nothing of two.
    often = {word for some in words for word in some if sum(word in w for w in words) > 1}
    wanted["text"] = by_values([some & often for some in words])
    wanted["all together"] = wanted["colour"] ** 2 * wanted["genres"] ** 2 * wanted["length"]
    for name, kernel in wanted.items():
        np.testing.assert_allclose(found[name], kernel, atol=1e-6, err_msg=name)


values = st.one_of(st.none(), st.sampled_from("abcdef"))
tables = st.integers(2, 9).flatmap(
    lambda n: st.tuples(
        st.lists(values, min_size=n, max_size=n),
        st.lists(st.lists(st.sampled_from("uvwxyz"), max_size=4), min_size=n, max_size=n),
        st.lists(st.one_of(st.none(), st.floats(-1e3, 1e3)), min_size=n, max_size=n),
        st.lists(st.text("ab (1985)", max_size=12), min_size=n, max_size=n),
    )
)


@given(table=tables)
def test_whatever_the_features_a_kernel_is_one(table: tuple[Any, Any, Any, Any]) -> None:
    """Symmetric, ones on the diagonal, positive semidefinite, and any block is a part of it."""
    one, many, numbers, titles = table
    columns: dict[str, Column] = {
        "one": ("categorical", one),
        "many": ("multi", many),
        "number": ("numeric", numbers),
    }
    n = len(one)
    kernels = kernels_of(catalogue_of(n, columns, titles))
    if not len(kernels):
        return
    left, right = np.arange(n)[::-1][: n // 2 + 1], np.arange(0, n, 2)
    weights = np.linspace(0.3, 1, len(kernels))
    mixed = np.zeros((n, n))
    blocks = kernels.blocks(left, right)
    for (name, kernel), block, weight in zip(whole(kernels).items(), blocks, weights, strict=True):
        np.testing.assert_allclose(kernel, kernel.T, atol=1e-12, err_msg=name)
        np.testing.assert_array_equal(np.diag(kernel), 1.0)
        assert np.linalg.eigvalsh(kernel).min() > -1e-9 * n
        assert kernel.min() >= 0
        assert kernel.max() <= 1 + 1e-9
        np.testing.assert_allclose(block, kernel[np.ix_(left, right)], atol=1e-12)
        mixed += weight * kernel
    found = kernels.mixed(weights, np.arange(n), np.arange(n))
    np.testing.assert_allclose(found, mixed, atol=1e-9)


@pytest.mark.parametrize(
    "column",
    [
        ("categorical", ["same"] * 6),
        ("categorical", list("abcdef")),
        ("categorical", [None] * 6),
        ("categorical", ["a", None, None, None, None, None]),
        ("multi", [["a", "b"]] * 6),
        ("multi", [[c, c.upper()] for c in "abcdef"]),
        ("numeric", [0.1] * 6),
        ("numeric", [0.7] * 6),
        ("numeric", [None] * 6),
        ("numeric", [None] * 5 + [3.0]),
        ("categorical", [f"word{k} other{k} third{k}" for k in range(6)]),
        ("categorical", ["one and the same"] * 6),
    ],
)
def test_what_is_the_same_or_different_for_all_is_left_out(column: Column) -> None:
    assert len(kernels_of(catalogue_of(6, {"it": column}))) == 0
    other: Column = ("categorical", list("aabbcc"))
    kernels = kernels_of(catalogue_of(6, {"it": column, "other": other}))
    assert kernels.names == ("other",)


def test_data_without_features_has_no_kernel() -> None:
    assert len(kernels_of(catalogue_of(5))) == 0
    assert kernels_of(catalogue_of(5)).names == ()


def test_years_come_from_titles() -> None:
    titles = [f"The film {k} ({1980 + 5 * (k % 3)})" for k in range(9)]
    found = whole(kernels_of(catalogue_of(9, titles=titles)))
    # The year is no word of the title: "the" and "film" are alike for all, numbers for none.
    assert list(found) == ["year"]
    np.testing.assert_allclose(found["year"], by_numbers([1980 + 5 * (k % 3) for k in range(9)]))


@pytest.mark.parametrize(("without", "is_there"), [(0, True), (2, True), (3, False)])
def test_years_need_most_of_the_titles(without: int, is_there: bool) -> None:
    titles = [f"red {k}" if k < without else f"red {k} ({1990 + k})" for k in range(10)]
    kernels = kernels_of(catalogue_of(10, {"c": ("categorical", list("aabbccddee"))}, titles))
    assert ("year" in kernels.names) == is_there
    if is_there:
        years = [None if k < without else 1990.0 + k for k in range(10)]
        np.testing.assert_allclose(whole(kernels)["year"], by_numbers(years))


def test_text_has_no_part_in_the_product_and_one_factor_makes_none() -> None:
    colour: Column = ("categorical", list("aabbcc"))
    titles = ["red car", "red sea", "blue car", "blue sea", "car", "sea"]
    assert kernels_of(catalogue_of(6, {"colour": colour}, titles)).names == ("colour", "title")
    both = kernels_of(catalogue_of(6, {"colour": colour, "size": ("numeric", range(1, 7))}, titles))
    found = whole(both)
    assert list(found) == ["colour", "size", "title", "all together"]
    np.testing.assert_allclose(found["all together"], found["colour"] ** 2 * found["size"])


def test_a_value_that_is_named_twice_counts_once() -> None:
    feature = Feature(name="g", side="item", kind="multi", values=("a", "b"))
    bag = Bag(np.array([[0, 0], [0, 1], [1, 0]]), np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]]))
    catalogue = Catalogue(
        name="toy",
        schema=Schema(features=(feature,)),
        item_ids=["x", "y", "z"],
        titles=["x", "y", "z"],
        items={feature.table: bag},
        positive_above=3.0,
    )
    [found] = whole(kernels_of(catalogue)).values()
    np.testing.assert_allclose(found, by_values([{"a"}, {"a", "b"}, {"b"}]))


def test_numbers_of_any_size_are_kernels() -> None:
    """Features are in 32 bits, where squares of large numbers are infinite."""
    column: Column = ("numeric", [3e38, -3e38, 1e38, 1.0, None])
    [found] = whole(kernels_of(catalogue_of(5, {"size": column}))).values()
    np.testing.assert_allclose(found, by_numbers(column[1]), atol=1e-6)


def columns_of(embedding: F64, stem: str = "text_", first: int = 0) -> dict[str, Column]:
    """Return the columns of an embedding (items, width); NaN is missing."""
    return {
        f"{stem}{first + k}": ("numeric", [None if np.isnan(v) else float(v) for v in column])
        for k, column in enumerate(embedding.T)
    }


def cosines(embedding: F64) -> F64:
    """Return the cosine of standardised numbers, pair by pair; a missing number is the mean."""
    standard = [[(v - c.mean()) / c.std() for v in c] for c in embedding.T]
    rows = list(zip(*standard, strict=True))
    size = len(rows)
    found = np.eye(size)
    for i in range(size):
        for k in range(size):
            product = sum(a * b for a, b in zip(rows[i], rows[k], strict=True))
            lengths = math.hypot(*rows[i]) * math.hypot(*rows[k])
            if i != k:
                found[i, k] = product / lengths
    return found


@pytest.mark.parametrize(("stem", "first"), [("text_", 0), ("e", 1), ("e.", 0)])
def test_numbered_columns_are_one_embedding(stem: str, first: int) -> None:
    embedding = np.random.default_rng(3).normal(2, 3, (12, 9))
    columns = columns_of(embedding, stem, first)
    columns = {name: columns[name] for name in reversed(columns)}  # In any order of the columns.
    columns |= {"colour": ("categorical", list("aabbcc" * 2)), "size": ("numeric", range(12))}
    kernels = kernels_of(catalogue_of(12, columns))
    name = stem.rstrip("_.")
    # The product is that of the others alone.
    assert kernels.names == ("colour", "size", name, f"{name}, close", "all together")
    found, wanted = whole(kernels), cosines(embedding)
    np.testing.assert_allclose(found[name], wanted, atol=1e-6)
    np.testing.assert_allclose(found[f"{name}, close"], np.maximum(wanted, 0) ** 2, atol=1e-6)
    rest = kernels_of(
        catalogue_of(12, {k: v for k, v in columns.items() if k in ("colour", "size")})
    )
    np.testing.assert_allclose(found["all together"], whole(rest)["all together"])


def test_few_numbers_or_numbers_with_a_gap_are_features_of_their_own() -> None:
    embedding = np.random.default_rng(3).normal(size=(6, 8))
    seven = kernels_of(catalogue_of(6, columns_of(embedding[:, :7])))
    assert seven.names == (*(f"text_{k}" for k in range(7)), "all together")
    columns = columns_of(embedding)
    columns["text_9"] = columns.pop("text_3")
    assert len(kernels_of(catalogue_of(6, columns)).features) == 8
    from_two = kernels_of(catalogue_of(6, columns_of(embedding, first=2)))
    assert len(from_two.features) == 8


def test_embeddings_of_nearly_the_same_name_are_both_embeddings() -> None:
    draw = np.random.default_rng(3)
    one, other = draw.normal(size=(6, 8)), draw.normal(size=(6, 8))
    kernels = kernels_of(catalogue_of(6, {**columns_of(one), **columns_of(other, "text")}))
    assert kernels.names == ("text", "text, close") * 2
    # To people an embedding is one feature.
    assert kernels.sources == ("text", "text")


def test_a_name_may_end_with_more_digits_than_python_reads() -> None:
    columns: dict[str, Column] = {"n" + "1" * 5000: ("numeric", range(6))}
    assert len(kernels_of(catalogue_of(6, columns))) == 1


def test_an_embedding_that_items_lack() -> None:
    embedding = np.random.default_rng(3).normal(size=(6, 8))
    embedding[2] = np.nan
    found = whole(kernels_of(catalogue_of(6, columns_of(embedding))))
    # An item without any number is like no other; of the others it changes nothing.
    np.testing.assert_array_equal(found["text"][2], np.eye(6)[2])
    others = np.delete(np.arange(6), 2)
    np.testing.assert_allclose(
        found["text"][np.ix_(others, others)], cosines(embedding[others]), atol=1e-6
    )
    nothing = np.full((6, 8), np.nan)
    nothing[0] = 1.0
    assert len(kernels_of(catalogue_of(6, columns_of(nothing)))) == 0


def test_items_that_come_later_do_not_change_an_embedding() -> None:
    embedding = np.random.default_rng(3).normal(size=(9, 8))
    embedding[6:] *= 100
    kernels = kernels_of(catalogue_of(9, columns_of(embedding)), 6)
    known = np.arange(6)
    block = next(kernels.blocks(known, known))
    np.testing.assert_allclose(block, cosines(embedding[:6]), atol=1e-6)
