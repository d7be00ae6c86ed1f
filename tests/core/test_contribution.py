"""What a device sends: no message moves a sum by more than its bound, and none ends in a crash."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privrec.core.bound import bounded
from privrec.core.contribution import (
    Contribution,
    TouchedRows,
    add_to,
    from_bytes,
    length,
    scaled,
    shapes_of,
    to_bytes,
)
from privrec.errors import WireError
from privrec.types import Norm

ITEMS, WIDTH, SIDE = 5, 3, 4
NUMBERS = st.floats(-1e6, 1e6)


def ids(*rows: int) -> Any:
    return np.array(rows, np.int64)


HONEST = Contribution(
    dense={"w": np.ones((2, 3))},
    rows={"t": TouchedRows(ids(1, 4), np.ones((2, WIDTH)), ITEMS)},
    outer={"o": np.ones(SIDE)},
    triangle={"r": np.ones(SIDE)},
)
EXPECTED = shapes_of(HONEST) or {}


def summed(*contributions: Contribution) -> np.ndarray:
    total: dict[str, Any] = {}
    for contribution in contributions:
        add_to(total, contribution)
    return np.concatenate([np.ravel(total[name]) for name in sorted(total)])


@given(
    hnp.arrays(np.float64, (2, 3), elements=NUMBERS),
    hnp.arrays(np.float64, (2, WIDTH), elements=NUMBERS),
    hnp.arrays(np.float64, SIDE, elements=NUMBERS),
    hnp.arrays(np.float64, SIDE, elements=NUMBERS),
    st.sampled_from(["l1", "l2"]),
)
def test_the_length_is_that_of_all_that_is_added(
    dense: Any, values: Any, outer: Any, triangle: Any, norm: Norm
) -> None:
    sent = Contribution(
        dense={"w": dense},
        rows={"t": TouchedRows(ids(0, 3), values, ITEMS)},
        outer={"o": outer},
        triangle={"r": triangle},
    )
    order = 1 if norm == "l1" else 2
    assert length(sent, norm) == pytest.approx(float(np.linalg.norm(summed(sent), order)), rel=1e-9)
    found = bounded(sent, 2.0, norm, expected=EXPECTED)
    assert np.linalg.norm(summed(found.contribution), order) <= 2.0
    assert found.was_long == (length(sent, norm) > 2)


@pytest.mark.parametrize("factor", [0.0, 0.25, 3.0])
def test_a_scaled_contribution_adds_so_many_times_as_much_to_every_sum(factor: float) -> None:
    assert summed(scaled(HONEST, factor)) == pytest.approx(factor * summed(HONEST))


ONE = np.ones(1)
HOSTILE: dict[str, Contribution] = {
    "a number for a matrix": HONEST._replace(dense={"w": ONE}),
    "a row for a matrix": HONEST._replace(dense={"w": np.ones(3)}),
    "narrow rows": HONEST._replace(rows={"t": TouchedRows(ids(1, 4), np.ones((2, 1)), ITEMS)}),
    "flat rows": HONEST._replace(rows={"t": TouchedRows(ids(1, 4), np.ones(2), ITEMS)}),
    "a larger table": HONEST._replace(rows={"t": TouchedRows(ids(1, 9), np.ones((2, WIDTH)), 10)}),
    "a huge table": HONEST._replace(rows={"t": TouchedRows(ids(), np.ones((0, WIDTH)), 2**50)}),
    "a row twice": HONEST._replace(rows={"t": TouchedRows(ids(1, 1), np.ones((2, WIDTH)), ITEMS)}),
    "a row before the first": HONEST._replace(
        rows={"t": TouchedRows(ids(-1, 1), np.ones((2, WIDTH)), ITEMS)}
    ),
    "a short outer vector": HONEST._replace(outer={"o": ONE}),
    "a matrix for an outer vector": HONEST._replace(outer={"o": np.ones((SIDE, 2))}),
    "a number for an outer vector": HONEST._replace(outer={"o": np.float64(1)}),
    "a short triangle": HONEST._replace(triangle={"r": ONE}),
    "a name in two parts": HONEST._replace(
        dense={"w": np.ones((2, 3)), "o": np.ones((SIDE, SIDE))}
    ),
    "one more name": HONEST._replace(dense={"w": np.ones((2, 3)), "x": ONE}),
    "one name less": HONEST._replace(dense={}),
    "complex numbers": HONEST._replace(dense={"w": np.ones((2, 3), np.complex64)}),
    "text": HONEST._replace(dense={"w": np.full((2, 3), "x")}),
    "no numbers": HONEST._replace(dense={"w": np.full((2, 3), math.nan)}),
    "endless": HONEST._replace(dense={"w": np.full((2, 3), math.inf)}),
    "an outer vector that overflows": HONEST._replace(outer={"o": np.full(SIDE, 1e200)}),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_hostile_contribution_adds_nothing(kind: str, norm: Norm) -> None:
    found = bounded(HOSTILE[kind], 1.0, norm, expected=EXPECTED)
    assert not found.is_finite
    moved = summed(HONEST, found.contribution) - summed(HONEST)
    assert not moved.any()


@pytest.mark.parametrize("kind", sorted(set(HOSTILE) - {"text", "no numbers", "endless"}))
def test_a_hostile_message_is_refused_before_anything_is_made_of_it(kind: str) -> None:
    if kind == "an outer vector that overflows":
        return  # Its message is sound; its bound drops it.
    with pytest.raises(WireError):
        from_bytes(to_bytes(HOSTILE[kind]), EXPECTED)


def message(dtype: str, shape: list[int], size: int) -> bytes:
    header = {"dense w": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 64,
        message("BF16", [2, 3], 12),
        message("F8_E4M3", [2, 3], 6),
        message("F64", [0, 2**62], 0),
        message("F64", [0] * 65, 0),
        message("Q7", [1], 8),
    ],
)
def test_bytes_that_are_no_message_are_refused(content: bytes) -> None:
    with pytest.raises(WireError):
        from_bytes(content, EXPECTED)


def test_an_honest_message_comes_back() -> None:
    assert to_bytes(from_bytes(to_bytes(HONEST), EXPECTED)) == to_bytes(HONEST)
