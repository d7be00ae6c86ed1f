import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from privrec.data.catalogue import Catalogue, from_json, to_json
from privrec.data.schema import Bag, Feature, Schema
from privrec.data.sources import load
from privrec.data.text import safe_text
from privrec.errors import DataError


def same(one: Catalogue, other: Catalogue) -> bool:
    """Return whether two catalogues are equal, including every bit of the weights."""
    plain = [
        (c.name, c.schema, list(c.item_ids), list(c.titles), c.positive_above, c.undeclared)
        for c in (one, other)
    ]
    assert plain[0] == plain[1]
    assert list(one.items) == list(other.items)
    for ours, theirs in zip(one.items.values(), other.items.values(), strict=True):
        assert theirs.codes.dtype == ours.codes.dtype == np.int32
        assert theirs.weights.dtype == ours.weights.dtype == np.float32
        assert theirs.codes.shape == ours.codes.shape
        assert theirs.weights.shape == ours.weights.shape
        assert theirs.codes.tobytes() == ours.codes.tobytes()
        assert theirs.weights.tobytes() == ours.weights.tobytes()
    return True


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
# All finite float32 numbers, including the smallest ones and negative zero.
weights = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    n, width = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    genres = Feature(
        name=draw(texts), side="item", kind="multi", values=tuple(draw(st.lists(texts, max_size=3)))
    )
    price = Feature(
        name="price",
        side="item",
        kind="numeric",
        mean=draw(finite),
        scale=draw(finite.filter(bool)),
    )
    bags = {
        feature.table: Bag(
            codes=draw(
                arrays.arrays(
                    np.int32,
                    (n, columns),
                    elements=st.integers(0, max(feature.rows - 1, 0)),
                )
            ),
            weights=draw(arrays.arrays(np.float32, (n, columns), elements=weights)),
        )
        for feature, columns in ((genres, width), (price, 1))
    }
    return Catalogue(
        name=draw(texts),
        schema=Schema(features=(genres, price)),
        item_ids=draw(st.lists(texts, min_size=n, max_size=n)),
        titles=[safe_text(title) for title in draw(st.lists(texts, min_size=n, max_size=n))],
        items=bags,
        positive_above=draw(finite),
        undeclared=tuple(draw(st.lists(texts, max_size=3))),
    )


@given(catalogues())
def test_a_catalogue_comes_back_from_its_json_to_the_last_bit(catalogue: Catalogue) -> None:
    text = to_json(catalogue)
    assert same(from_json(text, "here"), catalogue)
    assert same(from_json(text.encode(), "here"), catalogue)
    # The same catalogue is always the same file.
    assert to_json(from_json(text, "here")) == text


def test_every_kind_of_32_bit_weight_comes_back() -> None:
    # Random bit patterns; NaN and infinities are not valid weights.
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    weights = bits.view(np.float32)
    weights = weights[np.isfinite(weights)][:, None]
    n = len(weights)
    catalogue = Catalogue(
        name="bits",
        schema=Schema(features=(Feature(name="x", side="item", kind="numeric"),)),
        item_ids=[str(k) for k in range(n)],
        titles=[""] * n,
        items={"embed/item.x": Bag(codes=np.zeros((n, 1), np.int32), weights=weights)},
        positive_above=0.1,
    )
    assert same(from_json(to_json(catalogue), "here"), catalogue)


DOCUMENT = json.loads(to_json(load("synthetic:users=2,items=20").catalogue))


def test_it_holds_nothing_of_people() -> None:
    assert list(DOCUMENT) == [
        "name",
        "positive_above",
        "undeclared",
        "features",
        "items",
        "titles",
        "bags",
    ]
    assert list(DOCUMENT["bags"]) == ["embed/item.genres"]


@pytest.mark.parametrize("key", list(DOCUMENT))
def test_a_part_that_is_missing_is_refused_in_one_line(key: str) -> None:
    part = {name: value for name, value in DOCUMENT.items() if name != key}
    with pytest.raises(DataError, match=r"^over there is not a whole catalogue") as caught:
        from_json(json.dumps(part), "over there")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"text"', b"\xff\xfe"])
def test_what_is_no_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(DataError, match=r"^over there is not a whole catalogue"):
        from_json(text, "over there")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("positive_above", "much"),
        ("positive_above", None),
        ("undeclared", 3),
        ("features", 3),
        ("features", [{"name": "x"}]),
        ("features", [{"name": "x", "side": "item", "kind": "multi", "values": [], "more": 1}]),
        ("bags", []),
        ("bags", {"embed/item.genres": {"codes": [[0]]}}),
        ("bags", {"embed/item.genres": {"codes": [["a"]], "weights": [[1]]}}),
        ("bags", {"embed/item.genres": {"codes": [[0], [0, 1]], "weights": [[1], [1, 1]]}}),
        ("titles", ["one"]),
    ],
)
def test_a_part_of_the_wrong_kind_is_refused(key: str, value: Any) -> None:
    with pytest.raises(DataError, match=r"^over there is not a whole catalogue"):
        from_json(json.dumps({**DOCUMENT, key: value}), "over there")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("items", 5),
        ("titles", None),
        # More than 32 bits.
        ("bags", {"embed/item.genres": {"codes": [[10**20]] * 20, "weights": [[1]] * 20}}),
        # One row for twenty items; a row that the table of genres does not have.
        ("bags", {"embed/item.genres": {"codes": [[0]], "weights": [[1]]}}),
        ("bags", {"embed/item.genres": {"codes": [[99]] * 20, "weights": [[1]] * 20}}),
        ("bags", {}),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(key: str, value: Any) -> None:
    with pytest.raises(DataError, match=r"^over there is not a whole catalogue"):
        from_json(json.dumps({**DOCUMENT, key: value}), "over there")
