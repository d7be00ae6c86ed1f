"""The device's halves of the two sums: one person's contribution, and a whole cohort's sum.

A contribution is computed from the person's row (`rows.py`) and a weight. Both depend only on her
own data and on what the server sent to all devices.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from privrec.algorithms.privrec_plus.rows import (
    Frequent,
    Regression,
    SparseRows,
    activity_weights,
    add_squares,
    columns_of,
    merged_items,
    row_lengths,
    rows_of,
    sum_of_rows,
    to_length_one,
    triangle,
    triangle_lengths,
)
from privrec.algorithms.privrec_plus.scoring import FREQUENCY, POPULARITY, Layout
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.phase import Cohort, DeviceHalf, Told
from privrec.data.clients import Clients
from privrec.privacy.aggregate import CohortTotal
from privrec.types import F64, IntArray, Leaf

SQUARES, PEOPLE, WEIGHT, TRIANGLE = "squares", "people", "weight", "triangle"
"""The names of the sums of the second phase: three for runs without noise, and the last for runs
under noise."""
Shares = tuple[SparseRows, F64]
"""People's transformed rows, and the weight of each person (people,)."""


def popularity_shares(rows: SparseRows, layout: Layout, dislike: float) -> Shares:
    """Return each person's likes and dislikes, and the weight that scales the row to length 1."""
    merged = merged_items(rows, layout, dislike)
    return merged, to_length_one(row_lengths(merged))


def popularity_contribution(row: SparseRows, layout: Layout, dislike: float) -> Contribution:
    """Return one person's contribution to popularity; `row` has one person."""
    merged, weights = popularity_shares(row, layout, dislike)
    values = np.asarray(merged.data, np.float64) * weights[0]
    ids = np.asarray(merged.indices, np.int64)
    return Contribution(rows={POPULARITY: TouchedRows(ids, values, layout.n_items)})


def popularity_of(parts: Iterable[SparseRows], layout: Layout, dislike: float) -> F64:
    """Return the popularity (n_items,). Each person adds a vector of L2 norm 1, or 0 if empty."""
    shares = (popularity_shares(rows, layout, dislike) for rows in parts)
    return sum_of_rows(shares, layout.n_items)


def history_shares(rows: SparseRows, layout: Layout, kept: IntArray, how: Regression) -> Shares:
    """Return each person's row over the input columns of the regression, and her weight.

    The weight depends on the number of all her likes, not only of likes of kept items.
    """
    columns = columns_of(layout, kept, how)
    scaled = sp.csr_array(rows[:, columns] * how.scales(layout)[columns][None, :])
    return scaled, activity_weights(rows, layout, how.activity)


def history_contribution(
    row: SparseRows, layout: Layout, kept: IntArray, how: Regression
) -> Contribution:
    """Return one person's contribution to Σ w·row·rowᵀ; `row` has one person."""
    scaled, weights = history_shares(row, layout, kept, how)
    vector = np.sqrt(weights[0]) * np.asarray(scaled.toarray()[0], np.float64)
    return Contribution(
        outer={SQUARES: vector}, dense={PEOPLE: np.float64(1.0), WEIGHT: weights[0]}
    )


def history_moments(
    parts: Iterable[SparseRows], layout: Layout, kept: IntArray, how: Regression
) -> dict[str, Leaf]:
    """Return three sums over people: `squares` Σ w·row·rowᵀ, `people` Σ 1, and `weight` Σ w."""
    people, weight = 0, 0.0
    size = len(columns_of(layout, kept, how))
    squares = np.zeros((size, size), np.float32)
    for rows in parts:
        shares, weights = history_shares(rows, layout, kept, how)
        people, weight = people + len(weights), weight + float(weights.sum())
        add_squares(squares, shares, weights)
    return {SQUARES: squares, PEOPLE: np.float64(people), WEIGHT: np.float64(weight)}


def taste_shares(rows: SparseRows, layout: Layout, items: Frequent, dislike: float) -> Shares:
    """Return each person's taste, and the weight that scales her contribution to norm 1.

    The taste is her row over the frequent items, without its component along popularity, which is
    known already. The contribution is the upper triangle of taste·tasteᵀ. Even with few frequent
    items, it is scaled to norm 1.
    """
    chosen = merged_items(rows, layout, dislike)[:, items.kept]
    taste = _without(sp.csr_array(chosen * items.power[None, :]).toarray(), items.common)
    return taste, to_length_one(triangle_lengths(taste))


def taste_contribution(
    row: SparseRows, layout: Layout, items: Frequent, dislike: float
) -> Contribution:
    """Return one person's contribution to the moments of tastes; `row` has one person."""
    taste, weights = taste_shares(row, layout, items, dislike)
    return Contribution(triangle={TRIANGLE: np.sqrt(weights[0]) * taste.toarray()[0]})


def taste_moments(
    parts: Iterable[SparseRows], layout: Layout, items: Frequent, dislike: float
) -> F64:
    """Return the sum over people of the upper triangle of taste·tasteᵀ, as one vector."""
    total = np.zeros((len(items.kept), len(items.kept)))
    for rows in parts:
        add_squares(total, *taste_shares(rows, layout, items, dislike))
    return np.asarray(triangle(total), np.float64)


def _without(rows: npt.NDArray[np.float64], common: npt.NDArray[np.float64]) -> sp.csr_array:
    """Return the rows without their component along the unit vector `common`.

    A row that is nearly parallel to `common` becomes 0.
    """
    rest = rows - np.outer(rows @ common, common)
    small = np.linalg.norm(rest, axis=1) <= 1e-6 * np.linalg.norm(rows, axis=1)
    return sp.csr_array(np.where(small[:, None], 0.0, rest))


def popularity_device(
    layout: Layout, dislike: float, *, frequency: Regression | None = None
) -> DeviceHalf:
    """Return the device's half of the first sum: popularity.

    If `frequency` is given, devices also contribute to the frequency of each column, Σ w·row². The
    weight w of a person follows from `frequency.activity`.
    """

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        row = rows_of(person, layout)
        popularity = popularity_contribution(row, layout, dislike)
        if frequency is None:
            return popularity
        weight = activity_weights(row, layout, frequency.activity)[0]
        values = weight * np.asarray(row.data, np.float64) ** 2
        ids = np.asarray(row.indices, np.int64)
        columns = {FREQUENCY: TouchedRows(ids, values, layout.size)}
        dense = {PEOPLE: np.float64(1.0), WEIGHT: weight}
        return Contribution(dense=dense, rows={**popularity.rows, **columns})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        total: dict[str, Leaf] = {POPULARITY: np.zeros(layout.n_items)}
        if frequency is not None:
            total |= {FREQUENCY: np.zeros(layout.size), PEOPLE: np.zeros(()), WEIGHT: np.zeros(())}
        for rows in _rows(cohort, layout):
            total[POPULARITY] += popularity_of([rows], layout, dislike)
            if frequency is not None:
                weights = activity_weights(rows, layout, frequency.activity)
                total[FREQUENCY] += rows.multiply(rows).T @ weights
                total[PEOPLE], total[WEIGHT] = (
                    total[PEOPLE] + len(weights),
                    total[WEIGHT] + weights.sum(),
                )
        return CohortTotal(total)

    return DeviceHalf(contribute=contribute, kernel=kernel)


def history_device(layout: Layout, how: Regression) -> DeviceHalf:
    """Return the device's half of the second sum without noise."""

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        return history_contribution(rows_of(person, layout), layout, told["kept"], how)

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        return CohortTotal(history_moments(_rows(cohort, layout), layout, told["kept"], how))

    return DeviceHalf(contribute=contribute, kernel=kernel)


def taste_device(layout: Layout, dislike: float) -> DeviceHalf:
    """Return the device's half of the second sum under noise."""

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        items = Frequent.of_told(told)
        return taste_contribution(rows_of(person, layout), layout, items, dislike)

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        items = Frequent.of_told(told)
        return CohortTotal({TRIANGLE: taste_moments(_rows(cohort, layout), layout, items, dislike)})

    return DeviceHalf(contribute=contribute, kernel=kernel)


def _rows(cohort: Cohort, layout: Layout) -> Iterator[SparseRows]:
    """Yield the rows of a cohort's people, a few hundred people at a time."""
    return (rows_of(people, layout) for people in cohort.parts())
