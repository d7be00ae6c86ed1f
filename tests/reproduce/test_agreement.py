"""Sentences on agreement, by rule, on made-up numbers."""

import pytest

from privrec.reproduce import agreement
from privrec.reproduce.agreement import PRINTED_NDCG, impossible_ndcg, most_ndcg
from privrec.reproduce.results import Number


def number(
    row: str,
    value: float | None,
    arm: float = 0.01,
    printed: float | None = None,
    column: str = "20",
) -> Number:
    low, high = (None, None) if value is None else (value - arm, value + arm)
    return Number(
        panel="p", row=row, column=column, value=value, low=low, high=high, printed=printed
    )


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (0.217, "PrivRec: 0.290, above the printed 0.217 by 0.073 ± 0.010"),
        (0.350, "PrivRec: 0.290, below the printed 0.350 by 0.060 ± 0.010"),
        (0.285, "PrivRec: 0.290 (0.280 to 0.300) agrees with the printed 0.285"),
        (0.2999, "PrivRec: 0.290 (0.280 to 0.300) agrees with the printed 0.300"),
        (None, ""),
    ],
)
def test_a_number_is_above_below_or_agrees(printed: float | None, said: str) -> None:
    assert agreement.beside_printed(number("PrivRec", 0.29, 0.01, printed)) == said


def test_a_number_without_an_interval_agrees_only_where_it_is_the_same() -> None:
    bare = Number(panel="p", row="x", column="20", value=0.5, printed=0.5)
    assert "agrees with the printed" in agreement.beside_printed(bare)
    other = bare.model_copy(update={"printed": 0.52})
    assert agreement.beside_printed(other) == "x: 0.500, below the printed 0.520 by 0.020"


def test_the_order_is_counted_over_pairs() -> None:
    two = [number("a", 0.3, printed=0.4), number("b", 0.2, printed=0.1)]
    assert agreement.order_of(two) == "the order of the two agrees"
    turned = [two[0], number("b", 0.35, printed=0.1)]
    assert agreement.order_of(turned) == "the order of the two does not agree"
    three = [*turned, number("c", 0.1, printed=0.05), number("d", 0.9)]
    assert agreement.order_of(three) == "the order agrees in 2 of 3 pairs"
    assert agreement.order_of([two[0], number("b", 0.3, printed=0.4)]) == ""


def test_two_numbers_are_level_unless_their_difference_is_clear() -> None:
    ours = number("a", 0.30, 0.03)
    assert agreement.compared(ours, number("b", 0.20, 0.04)).endswith("above it by 0.100 ± 0.050")
    assert agreement.compared(ours, number("b", 0.40, 0.04)).endswith("below it by 0.100 ± 0.050")
    assert "level (difference 0.020" in agreement.compared(ours, number("b", 0.28, 0.04))
    assert agreement.compared(ours, None) == ""


def test_a_claim_agrees_or_not() -> None:
    assert agreement.claim("it rises", True) == "“it rises”: agrees"
    assert agreement.claim("it rises", False) == "“it rises”: does not agree"
    assert agreement.claim("it rises", None) == ""


def test_a_curve_is_flat_where_it_changes_less_than_its_intervals() -> None:
    values = {"5": 0.1, "40": 0.200, "60": 0.205, "80": 0.195}
    curve = [number("r", value, 0.02, column=x) for x, value in values.items()]
    assert agreement.is_flat(curve, "r", 40) is True
    assert agreement.is_flat(curve, "r", 5) is False
    assert agreement.is_flat(curve, "r", 80) is None
    assert agreement.rise(curve, "r") == "r: 0.100 at 5, 0.195 at 80, best 0.205 at 60"


def test_printed_epsilons_are_cut_off_and_not_rounded() -> None:
    def cell(value: float) -> Number:
        return Number(panel="p", row="r", column="5", value=value, printed=1.7439)

    assert agreement.same_as_printed([cell(1.74398), cell(1.7439), cell(1.74401)]) == (2, 3)


def test_hits_bound_the_ndcg_that_is_printed() -> None:
    """The bound is reached where every hit stands as high as its group allows; others are lower."""
    assert most_ndcg({"5": 1.0, "10": 1.0}, 10) == 1.0
    assert most_ndcg({"5": 0.0, "10": 1.0}, 10) == pytest.approx(1 / 2.807355)  # log2(7)
    wrong, cells = impossible_ndcg()
    assert cells == sum(len(by_k) for part in PRINTED_NDCG.values() for by_k in part.values()) == 56
    assert wrong > 28  # Only those at 5 are possible for most systems.
