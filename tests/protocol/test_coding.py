"""Fixed-point sums: the error is as stated, one person's part stays bounded, nothing overflows."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privrec.errors import SettingsError
from privrec.protocol.coding import MOST_PEOPLE, Coding, SumLayout
from privrec.types import Norm
from rounding import coding_error

BOUNDS = st.floats(1e-6, 1e6)
NORMS = st.sampled_from(["l1", "l2"])


def length(vector: Any, norm: Norm) -> float:
    return float(np.linalg.norm(vector, ord=1 if norm == "l1" else 2))


def within(vector: Any, bound: float, norm: Norm) -> Any:
    """The vector, made as long as the bound or a little less; one close to zero stays."""
    found = length(vector, norm)
    return vector * (bound / found * (1 - 1e-12)) if found > 1e-30 else vector


def test_the_unit_is_a_power_of_two_close_to_the_bound() -> None:
    """A logarithm in float64 would be wrong just below a power of two."""
    assert Coding(size=1, bound=1.0, people=1).unit == 2.0**-32
    assert Coding(size=1, bound=np.nextafter(8.0, 0.0), people=1).unit == 2.0**-30
    assert Coding(size=1, bound=8.0, people=1).unit == 2.0**-29
    assert Coding(size=1, bound=math.inf, people=1).unit == 2.0**-32


@given(
    parts=hnp.arrays(np.float64, (5, 7), elements=st.floats(-1, 1)),
    bound=BOUNDS,
    norm=NORMS,
    people=st.integers(5, MOST_PEOPLE),
)
def test_the_decoded_sum_is_within_the_stated_error(
    parts: Any, bound: float, norm: Norm, people: int
) -> None:
    coding = Coding(size=7, bound=bound, people=people, norm=norm)
    parts = np.stack([within(part, bound, norm) for part in parts])
    total = sum((coding.encode(part, 1) for part in parts), np.zeros(7, np.uint64))
    true = np.array([math.fsum(column) for column in parts.T])
    found = np.abs(coding.decode(total) - true)
    assert (found <= [coding_error(coding, 5, abs(value)) for value in true]).all()


def test_the_stated_error_is_not_far_too_large() -> None:
    coding = Coding(size=100, bound=1.0, people=10)
    assert coding_error(coding, 10, 10.0) < 1e-6
    vector = np.full(100, 0.5 * coding.unit)
    assert coding_error(coding, 1, float(vector[0])) < coding.unit


@given(
    others=hnp.arrays(np.float64, 9, elements=st.floats(-50, 50)),
    person=hnp.arrays(np.float64, 9, elements=st.floats(-1, 1)),
    bound=BOUNDS,
    norm=NORMS,
)
def test_one_person_moves_the_coded_sum_by_the_bound_at_most(
    others: Any, person: Any, bound: float, norm: Norm
) -> None:
    coding = Coding(size=9, bound=bound, people=1000, norm=norm)
    others = others * (bound / 9)
    both = others + within(person, bound, norm)
    moved = (coding.encode(both, 101) - coding.encode(others, 100)).view(np.int64)
    # The sum of two doubles is itself rounded, by up to 2^-52 of 51 bounds or 2^39 units.
    assert (
        length(moved.astype(np.float64), norm) <= bound / coding.unit * (1 + 1e-12) + 9 * 2.0**-13
    )


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_rounding_cannot_move_a_person_beyond_the_bound_even_in_the_worst_case(norm: Norm) -> None:
    """Every coordinate is rounded in the same direction, which only `shrink` makes up for."""
    size = 10_000
    coding = Coding(size=size, bound=1.0, people=10, norm=norm)
    step = within(np.ones(size), 1.0, norm)[0]
    starts = np.arange(1000) / 1000 * coding.unit
    line = Coding(size=1000, bound=1.0, people=10, norm=norm)
    # The same factor as for the long vector, so that the search is for its coordinates.
    scaled = coding.shrink / line.shrink
    moved = line.encode((starts + step) * scaled, 2) - line.encode(starts * scaled, 1)
    worst = int(moved.max())
    assert worst == math.ceil(step * coding.shrink / coding.unit)
    assert worst > step * coding.shrink / coding.unit
    assert length(np.full(size, worst), norm) <= 1.0 / coding.unit
    plain = math.ceil(step / coding.unit)
    assert length(np.full(size, plain), norm) > 1.0 / coding.unit, "shrink would not be needed"


def test_a_sum_beyond_the_range_is_cut_off_in_proportion_to_its_people() -> None:
    coding = Coding(size=3, bound=1.0, people=100)
    coded = coding.encode(np.array([1e300, -1e300, 0.0]), 7)
    most = 7 * (2**62 // 100)
    assert coded.view(np.int64).tolist() == [most, -most, 0]
    assert coding.encode(np.array([1.0, -1.0, 0.0]), 0).tolist() == [0, 0, 0]


@pytest.mark.parametrize("bound", [1.0, float(np.nextafter(2.0, 0.0))])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_no_overflow_and_no_cut_with_the_most_people_at_the_bound(
    bound: float, sign: float
) -> None:
    """2^29 people at nearly 2^33 units each: 2^62 of the 2^63 that a signed word holds."""
    coding = Coding(size=1, bound=bound, people=MOST_PEOPLE)
    half = MOST_PEOPLE // 2
    coded = coding.encode(np.array([sign * half * bound]), half)
    noise = np.array([int(sign) * 2**61], np.int64).view(np.uint64)
    true = sign * 2 * half * bound + sign * 2.0**61 * coding.unit
    found = float(coding.decode(coded + coded + noise)[0])
    assert abs(found - true) <= coding_error(coding, 2, abs(true))


@given(st.integers(-(2**62), 2**62))
def test_decoding_is_twos_complement(value: int) -> None:
    coding = Coding(size=1, bound=1.0, people=1)
    assert coding.decode(np.array([value % 2**64], np.uint64))[0] == float(value) * 2.0**-32


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Coding(size=2, bound=1.0, people=1).encode(np.array([0.0, wrong]), 1)


def test_wrong_shapes_and_counts_are_refused() -> None:
    coding = Coding(size=2, bound=1.0, people=5)
    with pytest.raises(ValueError, match="shape"):
        coding.encode(np.zeros(3), 1)
    with pytest.raises(ValueError, match="people"):
        coding.encode(np.zeros(2), 6)
    with pytest.raises(ValueError, match="coded"):
        coding.decode(np.zeros(3, np.uint64))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"size": 0}, "`size` must be >= 1; got 0"),
        ({"size": 2**27, "norm": "l1"}, "`size` is too large"),
        ({"size": 2**60}, "`size` is too large"),
        ({"bound": -1.0}, "`bound` must be > 0; got -1.0"),
        ({"bound": math.nan}, "`bound` must be > 0; got nan"),
        ({"people": MOST_PEOPLE + 1}, "`people` must be in"),
        ({"people": 0}, "`people` must be in"),
    ],
)
def test_settings_without_a_sound_code_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Coding(**{"size": 10, "bound": 1.0, "people": 10, **changed})


def test_a_plain_count_moves_by_no_more_than_its_people() -> None:
    layout = SumLayout(shapes={"w": ("dense", (3,))}, count_weight=0.1)
    clipped, was_long = layout.clipped(np.array([0.0, 0, 0, -40 * 0.1]), 1.0, 15, "l2")
    assert was_long
    assert clipped[3] == pytest.approx(-7.5 * 0.1)
    clipped, was_long = layout.clipped(np.array([100.0, 100, 100, 0]), 1.0, 15, "l2")
    assert was_long
    assert np.linalg.norm(clipped) == pytest.approx(15.0)
    within = np.array([1.0, 0, 0, 0.7])
    clipped, was_long = layout.clipped(within, 1.0, 15, "l2")
    assert not was_long
    assert np.array_equal(clipped, within)


def test_a_symmetric_sum_is_clipped_by_the_length_of_the_whole_matrix() -> None:
    layout = SumLayout(shapes={"m": ("outer", (2,))})
    clipped, _ = layout.clipped(np.array([3.0, 4.0, 5.0]), 1.0, 1, "l2")
    whole = layout.total(clipped).update["m"]
    assert np.linalg.norm(whole) == pytest.approx(1.0)
