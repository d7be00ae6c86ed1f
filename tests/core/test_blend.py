"""Two opinions that are added: against means and deviations by hand."""

import numpy as np

from privrec.core.tables import added, standardised


def test_rows_have_mean_zero_and_deviation_one() -> None:
    draw = np.random.default_rng(0)
    scores = draw.normal(size=(5, 40)) * draw.uniform(0.01, 100, (5, 1)) + draw.normal(size=(5, 1))
    found = standardised(scores)
    for row, before in zip(found, scores, strict=True):
        assert abs(sum(row) / 40) < 1e-12
        assert abs(sum(row**2) / 40 - 1) < 1e-12
        np.testing.assert_array_equal(np.argsort(row), np.argsort(before))


def test_equal_scores_say_nothing_whatever_they_are() -> None:
    """Their mean is rounded: a deviation that is a rounding error must not become an opinion."""
    for value in (0.0, 0.1, -3.7e5, 1 / 3):
        for kind in (np.float32, np.float64):
            found = standardised(np.full((2, 1_001), value, kind))
            assert found.dtype == kind
            assert not found.any()


def test_an_opinion_counts_by_its_order_and_not_by_its_unit() -> None:
    draw = np.random.default_rng(1)
    one, other = draw.normal(size=(3, 9)), draw.normal(size=(3, 9))
    found = added(one, other, 2.0)
    np.testing.assert_allclose(added(1e-3 * one + 7, 50 * other - 2, 2.0), found, atol=1e-9)
    by_hand = [
        [(a - x.mean()) / x.std() + 2 * (b - y.mean()) / y.std() for a, b in zip(x, y, strict=True)]
        for x, y in zip(one, other, strict=True)
    ]
    np.testing.assert_allclose(found, by_hand, atol=1e-12)


def test_who_has_no_second_opinion_keeps_the_order_of_the_first() -> None:
    first = np.array([[0.3, -0.1, 5.0, 0.2]])
    found = added(first, np.zeros((1, 4)), 2.0)
    np.testing.assert_array_equal(np.argsort(found), np.argsort(first))


def test_many_people_and_items_in_32_bits_are_as_in_64() -> None:
    draw = np.random.default_rng(2)
    one, other = (draw.normal(3, 2, (9, 40_981)).astype(np.float32) for _ in range(2))
    found = added(one, other, 0.15)
    assert found.dtype == np.float32
    wide = [table.astype(np.float64) for table in (one, other)]
    first, second = ((table - table.mean(1)[:, None]) / table.std(1)[:, None] for table in wide)
    np.testing.assert_allclose(found, first + 0.15 * second, atol=2e-6)
