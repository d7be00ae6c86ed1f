import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privrec.data.schema import Feature, Schema, encode, encode_one, is_missing
from privrec.data.text import value_text
from privrec.errors import DataError

COLOUR = Feature(name="colour", side="item", kind="categorical", values=("red", "green", "blue"))
TAGS = Feature(name="tags", side="item", kind="multi", values=("a", "b", "c"))
SIZE = Feature(name="size", side="item", kind="numeric", mean=10.0, scale=2.0)


def test_a_category_is_one_code_of_weight_one() -> None:
    bag = encode(COLOUR, ["blue", "red", "green"])
    assert bag.codes.tolist() == [[2], [0], [1]]
    assert bag.weights.tolist() == [[1.0], [1.0], [1.0]]
    assert bag.codes.dtype == np.dtype(np.int32)
    assert bag.weights.dtype == np.dtype(np.float32)


def test_a_list_shares_weight_one_among_its_values() -> None:
    bag = encode(TAGS, [["c", "a"], ("b",), [], np.array(["a", "b", "c"])])
    assert bag.codes.shape == (4, 3)
    expected = np.array([[1 / 2, 1 / 2, 0], [1, 0, 0], [0, 0, 0], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(bag.weights, expected, rtol=1e-6)
    assert bag.codes[0, :2].tolist() == [2, 0]
    assert bag.codes[3].tolist() == [0, 1, 2]


def test_a_number_is_standardised() -> None:
    bag = encode(SIZE, [10, 14.0, "8", None, float("nan")])
    assert bag.codes.tolist() == [[0]] * 5
    assert bag.weights.tolist() == [[0.0], [2.0], [-1.0], [0.0], [0.0]]


@pytest.mark.parametrize("missing", [None, "", float("nan"), np.float32("nan"), np.float64("nan")])
@pytest.mark.parametrize("feature", [COLOUR, TAGS, SIZE])
def test_missing_values_weigh_nothing_even_when_strict(feature: Feature, missing: object) -> None:
    assert is_missing(missing)
    assert encode(feature, [missing], strict=True).weights.tolist() == [[0.0]]


def test_a_missing_value_in_a_list_does_not_dilute_the_others() -> None:
    assert encode(TAGS, [["a", None, ""]]).weights.tolist() == [[1.0]]


@pytest.mark.parametrize("present", [0, 0.0, False, "nan", " ", np.float32(0)])
def test_zero_and_words_are_not_missing(present: object) -> None:
    assert not is_missing(present)


def test_an_unknown_value_weighs_nothing_and_raises_when_strict() -> None:
    assert encode(COLOUR, ["gren"]).weights.tolist() == [[0.0]]
    assert encode(TAGS, [["a", "zz"]]).weights.tolist() == [[1.0, 0.0]]
    with pytest.raises(DataError, match=r"unknown value 'gren' .*'colour'; did you mean 'green'\?"):
        encode(COLOUR, ["gren"], strict=True)


@pytest.mark.parametrize("value", ["big", float("inf"), "-inf", "nan", True, ["1"]])
def test_a_numeric_feature_refuses_what_is_no_finite_number(value: object) -> None:
    with pytest.raises(DataError, match="item feature 'size' must be a finite number; got"):
        encode(SIZE, [1.0, value])


def test_one_and_one_point_zero_are_one_value() -> None:
    ages = Feature(name="age", side="user", kind="categorical", values=("1", "2.5", "true"))
    column = [1, 1.0, "1", np.int64(1), np.float32(1), 2.5, True, np.True_]
    assert encode(ages, column, strict=True).codes[:, 0].tolist() == [0, 0, 0, 0, 0, 1, 2, 2]


def test_no_rows_still_have_a_width() -> None:
    assert encode(TAGS, []).codes.shape == (0, 1)


def test_take_selects_rows_by_index_mask_and_slice() -> None:
    bag = encode(COLOUR, ["red", "green", "blue"])
    assert bag.take(np.array([2, 0])).codes.tolist() == [[2], [0]]
    assert bag.take(np.array([False, True, True])).codes.tolist() == [[1], [2]]
    assert bag.take(slice(0, 1)).codes.tolist() == [[0]]


def test_rows_and_table_names() -> None:
    assert [feature.rows for feature in (COLOUR, TAGS, SIZE)] == [3, 3, 1]
    assert COLOUR.table == "embed/item.colour"


SCHEMA = Schema(
    features=(
        Feature(name="gender", side="user", kind="categorical", values=("F", "M")),
        Feature(name="age", side="user", kind="numeric", mean=30.0, scale=10.0),
        COLOUR,
    )
)


def test_encode_one_fills_in_what_is_not_given() -> None:
    bags = encode_one(SCHEMA, "user", {"age": 50})
    assert list(bags) == ["embed/user.gender", "embed/user.age"]
    assert bags["embed/user.gender"].weights.tolist() == [[0.0]]
    assert bags["embed/user.age"].weights.tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gendr": "F"}, r"unknown user feature 'gendr'; did you mean 'gender'\?"),
        ({"colour": "red"}, r"unknown user feature 'colour' .*has: gender, age"),
        ({"gender": "f"}, r"unknown value 'f' .*did you mean 'F'\?"),
        ({"age": "old"}, r"'age' must be a finite number; got 'old'"),
    ],
)
def test_encode_one_names_what_is_wrong(values: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        encode_one(SCHEMA, "user", values)


words = st.sampled_from(["a", "b", "c", "zz", "", None])


@given(st.lists(st.one_of(words, st.lists(words, max_size=5))))
def test_any_mix_becomes_the_mean_of_its_known_values(column: list[object]) -> None:
    bag = encode(TAGS, column)
    assert bag.codes.shape == bag.weights.shape
    assert bag.codes.min(initial=0) >= 0
    assert bag.codes.max(initial=0) < TAGS.rows
    for row, raw in enumerate(column):
        entries = raw if isinstance(raw, list) else [raw]
        known = [word for word in entries if word in TAGS.values]
        share = np.zeros(TAGS.rows)
        np.add.at(share, bag.codes[row], bag.weights[row])
        expected = [known.count(value) / max(len(known), 1) for value in TAGS.values]
        np.testing.assert_allclose(share, expected, atol=1e-6)


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.text(), st.booleans()))
def test_value_text_is_stable(value: object) -> None:
    assert value_text(value_text(value)) == value_text(value)


@given(st.integers(min_value=-(2**53), max_value=2**53))
def test_value_text_does_not_see_whether_a_number_has_a_point(number: int) -> None:
    assert value_text(number) == value_text(float(number)) == value_text(str(number))
