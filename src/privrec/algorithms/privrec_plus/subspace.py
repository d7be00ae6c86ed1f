"""The history tower without a matrix over items: subspace iteration over people.

The closed form needs M = Σ w·x·xᵀ, columns by columns, where x is a person's row (`sums.py:
history_moments`). A large catalogue has too many columns for that. Here a round sums M·Q alone, Q
(columns, d): a device sends w·x·(x·Q), which has rows for its own columns only. The server makes
the sum orthonormal and tells it in the next round: the power method. After the last round M is
known in d directions, and the regression of the closed form is solved within them
(`solve.py: regression_within`). No matrix over items exists anywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import solve_triangular

from privrec.algorithms.privrec_plus.fit import bias_of
from privrec.algorithms.privrec_plus.layout import LIKES, Layout
from privrec.algorithms.privrec_plus.moments import SparseRows
from privrec.algorithms.privrec_plus.rows import activity_weights, rows_of
from privrec.algorithms.privrec_plus.scoring import BIAS, FREQUENCY, MEAN_WEIGHT, OUT, POPULARITY
from privrec.algorithms.privrec_plus.solve import regression_within
from privrec.algorithms.privrec_plus.told import BASIS, SCALE, SUBSPACE, Regression
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.phase import Cohort, DeviceHalf, Phase, ServerState, Told
from privrec.data.clients import Clients
from privrec.data.federation import chunks
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.seeds import rng
from privrec.types import F32, F64, Array, IntArray, Params

_AT_ONCE = 2**24
"""Numbers in the products of some people with the basis; bounds the memory of a round."""
_TINY = 1e-20
"""The least that a square sum is taken for, where all are 0."""
_NEGLIGIBLE = 1e-10
"""Directions whose square sum is below this share of the largest are dropped as rounding errors."""


# --- the device's half -------------------------------------------------------------------------


def weighted_rows(rows: SparseRows, layout: Layout, how: Regression, scale: F32) -> SparseRows:
    """Return √w·x of each person: her row with weighted columns, and her own weight."""
    people = sp.diags_array(
        np.sqrt(activity_weights(rows, layout, how.activity)).astype(np.float32)
    )
    return sp.csr_array(people @ rows @ sp.diags_array(scale))


def subspace_device(layout: Layout, how: Regression) -> DeviceHalf:
    """Return the devices' half of a round of the power method: w·x·(x·Q) of each person."""

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        row = weighted_rows(rows_of(person, layout), layout, how, told[SCALE])
        taste = row @ told[BASIS]
        values = row.data[:, None] * taste
        ids = np.asarray(row.indices, np.int64)
        return Contribution(rows={BASIS: TouchedRows(ids, values, layout.size)})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        basis, scale = np.asarray(told[BASIS]), np.asarray(told[SCALE])
        total = np.zeros(basis.shape, np.float32)
        for people in cohort.parts(max(1, _AT_ONCE // basis.shape[1])):
            rows = weighted_rows(rows_of(people, layout), layout, how, scale)
            total += rows.T @ (rows @ basis)
        return CohortTotal({BASIS: total})

    return DeviceHalf(contribute=contribute, kernel=kernel)


# --- the server's half -------------------------------------------------------------------------


def orthonormal(sums: F32) -> F32:
    """Return an orthonormal basis of what the columns of `sums` (columns, d) span.

    With sumsᵀsums = LLᵀ it is sums·L⁻ᵀ, much faster than a QR decomposition. Where the columns
    span fewer than d directions, some columns of the result are nearly 0.
    """
    gram = _gram(sums, sums)
    least = _NEGLIGIBLE * max(float(np.trace(gram)), _TINY)
    lower = np.linalg.cholesky(gram + least * np.eye(len(gram)))
    return _times(sums, solve_triangular(lower, np.eye(len(gram)), lower=True).T)


def leading(basis: F32, sums: F32) -> tuple[F32, F64]:
    """Return V (columns, d), orthonormal, and λ (d,), such that M is about V diag(λ) Vᵀ.

    `sums` is M·`basis`. This is Nyström's approximation, M ≈ (MQ)(QᵀMQ)⁺(MQ)ᵀ: exact if M has
    rank d, and nearer to M than what the basis alone would give.
    """
    middle = _gram(basis, sums)
    half = _times(sums, _inverse_root((middle + middle.T) / 2))
    strength, directions = np.linalg.eigh(_gram(half, half))
    strength, directions = np.maximum(strength[::-1], 0.0), directions[:, ::-1]
    kept = strength > _NEGLIGIBLE * max(float(strength[0]), _TINY)
    lengths = np.where(kept, 1 / np.sqrt(np.where(kept, strength, 1.0)), 0.0)
    return _times(half, directions * lengths), np.where(kept, strength, 0.0)


def _gram(left: F32, right: F32) -> F64:
    """Return leftᵀ·right in 64 bits, some rows at a time."""
    total = np.zeros((left.shape[1], right.shape[1]))
    for rows in chunks(np.arange(len(left)), 8192):
        total += left[rows].astype(np.float64).T @ right[rows].astype(np.float64)
    return total


def _inverse_root(matrix: F64) -> F64:
    """Return R with R·Rᵀ the (pseudo-)inverse of a symmetric matrix without negative part."""
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > _NEGLIGIBLE * max(float(values[0]), _TINY)
    return np.asarray(vectors * np.where(kept, 1 / np.sqrt(np.where(kept, values, 1.0)), 0.0))


def _times(tall: F32, square: F64) -> F32:
    return np.asarray(tall @ square.astype(np.float32), np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """A regression within a subspace: the settings `how` of the one over all columns, and powers.

    A column is divided by its frequency to the power `power`, before the subspace is found; the
    scores of an item are divided by its frequency to the power `discount`.
    """

    how: Regression
    power: float
    discount: float

    def shrink(self, frequency: F64) -> F64:
        """Return what each column is multiplied by; 0 for a column that nobody has."""
        return _power(frequency, -self.power)


def _power(frequency: F64, power: float) -> F64:
    """Return frequency^power, and 0 where the frequency is 0."""
    seen = frequency > 0
    return np.where(seen, np.where(seen, frequency, 1.0) ** power, 0.0)


def subspace_tower(
    basis: F32,
    sums: F32,
    frequency: F64,
    layout: Layout,
    within: Within,
) -> dict[str, F32]:
    """Return the tower from the last round's basis and sum: `regression_within`."""
    how, shrink = within.how, within.shrink(frequency)
    kinds = how.scales(layout).astype(np.float64)
    vectors, strength = leading(basis, sums)
    out = regression_within(
        vectors,
        strength,
        frequency * (kinds * shrink) ** 2,
        shrink,
        n_items=layout.n_items,
        l2=how.l2,
        dropout=how.dropout,
        also=how.also(layout),
    )
    inside = vectors * (kinds * shrink)[:, None].astype(np.float32)
    items = frequency[: layout.n_items]
    usual = max(float(items.mean()), 1e-12)
    discount = _power(items / usual, -within.discount).astype(np.float32)
    return {**_blocks(inside, layout), OUT: out * discount[:, None]}


def subspace_phase(
    layout: Layout,
    within: Within,
    aggregator: Aggregator,
    *,
    population: IntArray,
    first: int,
    rounds: int,
    seed: int,
    kept: Callable[[Params | None], dict[str, Array]],
) -> Phase:
    """Return the rounds of the power method. During them the tower's blocks hold the basis."""

    def start(before: Params | None) -> ServerState:
        params = kept(before)
        shape = (layout.size, params[LIKES].shape[1])
        drawn = rng(seed, 0, "basis").standard_normal(shape, np.float32)
        blocks = {name: jnp.asarray(block) for name, block in _blocks(drawn, layout).items()}
        return ServerState(
            round_index=first,
            params={**params, **blocks},
            opt_state=(),
            clip_norm=aggregator.clip_norm,
        )

    def frequency_of(state: ServerState) -> F64:
        return np.asarray(state.params[FREQUENCY], np.float64)

    def tell(state: ServerState) -> Told:
        scale = within.how.scales(layout) * within.shrink(frequency_of(state))
        return {BASIS: _basis(state.params, layout), SCALE: scale.astype(np.float32)}

    def absorb(state: ServerState, published: Published) -> ServerState:
        sums = np.asarray(published.update[BASIS], np.float32)
        if state.round_index + 1 < first + rounds:
            found = _blocks(orthonormal(sums), layout)
        else:
            frequency = frequency_of(state)
            basis = _basis(state.params, layout)
            how = replace(within.how, l2=within.how.l2 * float(state.params[MEAN_WEIGHT]))
            found = subspace_tower(basis, sums, frequency, layout, replace(within, how=how))
            popularity = np.asarray(state.params[POPULARITY], np.float64)
            seen = np.flatnonzero(frequency[: layout.n_items] > 0)
            found[BIAS] = bias_of(popularity, seen)
        new = {name: jnp.asarray(array) for name, array in found.items()}
        return replace(state, params={**state.params, **new})

    return Phase(
        name=SUBSPACE,
        rounds=rounds,
        first=first,
        population=population,
        aggregator=aggregator,
        device=subspace_device(layout, within.how),
        start=start,
        tell=tell,
        absorb=absorb,
    )


def _basis(params: Params, layout: Layout) -> F32:
    return np.concatenate([np.asarray(params[name]) for name in layout.names])


def _blocks(table: npt.NDArray[np.float32], layout: Layout) -> dict[str, F32]:
    """Return the rows of each block of columns, by its name."""
    ends = np.cumsum(layout.sizes)
    blocks = zip(layout.names, layout.sizes, ends, strict=True)
    return {name: table[end - size : end] for name, size, end in blocks}
