"""The history model for large catalogues: subspace iteration over people.

The closed form needs the matrix M = Σ w·x·xᵀ (columns, columns), where x is a person's row and w
her weight (`sums.py: history_moments`). It is too large for a large catalogue. Here a round sums
M·Q, where the basis Q has the shape (columns, d). A device sends w·x·(x·Q), of which only the rows
of the person's own columns are nonzero. The server makes the sum orthonormal and sends it as the
basis of the next round (power method). After the last round, M is known in d directions, and the
regression of the closed form is solved in these directions (`solve.py: regression_within`).

Under noise, each round is one release (a noised power method). A person contributes x·(x·Q), scaled
to length 1, where x is her row over the frequent items (`sums.py: taste_shares`). The basis Q has
no component along popularity, which is known already. The noise grows with items × directions and
not with items squared. So for large catalogues the result is better than from one noisy matrix
(docs/results.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import solve_triangular

from privrec.algorithms.privrec_plus.rows import (
    BASIS,
    SCALE,
    SUBSPACE,
    Frequent,
    Regression,
    SparseRows,
    activity_weights,
    merged_items,
    row_lengths,
    rows_of,
    to_length_one,
)
from privrec.algorithms.privrec_plus.scoring import (
    BIAS,
    DISLIKES,
    FREQUENCY,
    LIKES,
    MEAN_WEIGHT,
    OUT,
    POPULARITY,
    Layout,
)
from privrec.algorithms.privrec_plus.solve import bias_of, frequent, gram, regression_within
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.phase import Cohort, DeviceHalf, Phase, ServerState, Told
from privrec.data.clients import Clients
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.seeds import rng
from privrec.types import F32, F64, Array, IntArray, Params

_AT_ONCE = 2**24
"""The number of entries in a product of people's rows with the basis. It bounds the memory."""
_COLUMNS = 128
"""The number of directions that are multiplied at a time. A product for all directions would be as
large as the basis."""
_TINY = 1e-20
"""A lower limit for sums of squares, for the case that all of them are 0."""
_NEGLIGIBLE = 1e-10
"""Directions whose sum of squares is below this share of the largest one are rounding errors."""


# --- the device's half -------------------------------------------------------------------------


def weighted_rows(rows: SparseRows, layout: Layout, how: Regression, scale: F32) -> SparseRows:
    """Return √w·x of each person: her row x with weighted columns, times the root of weight w."""
    people = sp.diags_array(
        np.sqrt(activity_weights(rows, layout, how.activity)).astype(np.float32)
    )
    return sp.csr_array(people @ rows @ sp.diags_array(scale))


def subspace_device(layout: Layout, how: Regression) -> DeviceHalf:
    """Return the device's half of a round of the power method: w·x·(x·Q) for each person."""

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
            for start in range(0, basis.shape[1], _COLUMNS):
                some = slice(start, start + _COLUMNS)
                total[:, some] += rows.T @ (rows @ np.ascontiguousarray(basis[:, some]))
        return CohortTotal({BASIS: total})

    return DeviceHalf(contribute=contribute, kernel=kernel)


# --- the server's half -------------------------------------------------------------------------


def orthonormal(sums: F32) -> F32:
    """Return an orthonormal basis of what the columns of `sums` (columns, d) span.

    The basis is sums·L⁻ᵀ, where sumsᵀsums = LLᵀ, which is much faster than a QR decomposition. If
    the columns span fewer than d directions, some columns of the result are nearly 0.
    """
    square = gram(sums)
    least = _NEGLIGIBLE * max(float(np.trace(square)), _TINY)
    lower = np.linalg.cholesky(square + least * np.eye(len(square)))
    return _times(sums, solve_triangular(lower, np.eye(len(square)), lower=True).T)


def leading(basis: F32, sums: F32) -> tuple[F32, F64]:
    """Return V (columns, d), orthonormal, and λ (d,), such that M is about V diag(λ) Vᵀ.

    `sums` is M·Q, where Q is `basis`. The result is Nyström's approximation M ≈ (MQ)(QᵀMQ)⁺(MQ)ᵀ.
    It is exact if M has rank d, and nearer to M than the projection of M on the basis.
    """
    middle = gram(basis, sums)
    half = _times(sums, _inverse_root((middle + middle.T) / 2))
    strength, directions = np.linalg.eigh(gram(half))
    strength, directions = np.maximum(strength[::-1], 0.0), directions[:, ::-1]
    kept = strength > _NEGLIGIBLE * max(float(strength[0]), _TINY)
    lengths = np.where(kept, 1 / np.sqrt(np.where(kept, strength, 1.0)), 0.0)
    return _times(half, directions * lengths), np.where(kept, strength, 0.0)


def _inverse_root(matrix: F64) -> F64:
    """Return R such that R·Rᵀ is the pseudo-inverse of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > _NEGLIGIBLE * max(float(values[0]), _TINY)
    return np.asarray(vectors * np.where(kept, 1 / np.sqrt(np.where(kept, values, 1.0)), 0.0))


def _times(tall: F32, square: F64) -> F32:
    return np.asarray(tall @ square.astype(np.float32), np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """The settings of a regression within a subspace.

    `how` has the settings of the regression over all columns. Before the subspace iteration, a
    column is divided by its frequency to the power `power`. After the regression, the scores of an
    item are divided by its frequency to the power `discount`.
    """

    how: Regression
    power: float
    discount: float

    def shrink(self, frequency: F64) -> F64:
        """Return the factor of each column, shape (columns,); 0 for a column of frequency 0."""
        return _power(frequency, -self.power)


def _power(frequency: F64, power: float) -> F64:
    seen = frequency > 0
    return np.where(seen, np.where(seen, frequency, 1.0) ** power, 0.0)


def subspace_tower(
    basis: F32,
    sums: F32,
    frequency: F64,
    layout: Layout,
    within: Within,
) -> dict[str, F32]:
    """Return the history model from the last round's basis and sum (`regression_within`)."""
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
    vectors *= (kinds * shrink)[:, None].astype(np.float32)
    items = frequency[: layout.n_items]
    usual = max(float(items.mean()), 1e-12)
    out *= _power(items / usual, -within.discount).astype(np.float32)[:, None]
    return {**_blocks(vectors, layout), OUT: out}


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
    """Return the phase of the power method; meanwhile, the model's parameters hold the basis."""

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
            tower = _blocks(orthonormal(sums), layout)
        else:
            frequency = frequency_of(state)
            basis = _basis(state.params, layout)
            how = replace(within.how, l2=within.how.l2 * float(state.params[MEAN_WEIGHT]))
            tower = subspace_tower(basis, sums, frequency, layout, replace(within, how=how))
            popularity = np.asarray(state.params[POPULARITY], np.float64)
            seen = np.flatnonzero(frequency[: layout.n_items] > 0)
            tower[BIAS] = bias_of(popularity, seen)
        # One array is converted at a time, so that there are never two copies of all.
        new = {name: jnp.asarray(tower.pop(name)) for name in list(tower)}
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
    blocks = [np.asarray(params[name]) for name in layout.names]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _blocks(table: npt.NDArray[np.float32], layout: Layout) -> dict[str, F32]:
    """Return the rows of a table (columns, d) that belong to each block of columns, by name."""
    ends = np.cumsum(layout.sizes)
    blocks = zip(layout.names, layout.sizes, ends, strict=True)
    return {name: table[end - size : end] for name, size, end in blocks}


_LEAST = 1e-9
"""If less than this share of a person's row is inside the basis, she adds nothing. Otherwise a
rounding error would be scaled up."""
_LEAST_RIDGE = 0.02
"""The smallest ridge, as a share of the largest singular value. Chosen by hand; not tuned."""


# --- the device's half -------------------------------------------------------------------------


def taste_shares(
    rows: SparseRows, layout: Layout, told: Told, dislike: float
) -> tuple[SparseRows, F64]:
    """Return each person's row x, scaled to length 1, and x·Q, scaled to length 1.

    The outer product of the two vectors is the person's contribution.
    """
    basis, scale = (np.asarray(told[name], np.float64) for name in (BASIS, SCALE))
    chosen = sp.csr_array(merged_items(rows, layout, dislike) @ sp.diags_array(scale))
    chosen.eliminate_zeros()
    unit = sp.csr_array(sp.diags_array(to_length_one(row_lengths(chosen))) @ chosen)
    taste = np.asarray(unit @ basis, np.float64)
    lengths = np.linalg.norm(taste, axis=1)
    lengths[lengths < _LEAST * max(float(np.abs(basis).max(initial=0.0)), _LEAST)] = 0.0
    taste *= to_length_one(lengths)[:, None]
    return unit, taste


def taste_subspace_device(layout: Layout, dislike: float) -> DeviceHalf:
    """Return the device's half of a noised round: x·(x·Q), scaled to length 1, for each person."""

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        unit, taste = taste_shares(rows_of(person, layout), layout, told, dislike)
        values = unit.data[:, None] * taste[0]
        ids = np.asarray(unit.indices, np.int64)
        return Contribution(rows={BASIS: TouchedRows(ids, values, layout.n_items)})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        total = np.zeros(np.shape(told[BASIS]))
        for people in cohort.parts(8192):
            rows = rows_of(people, layout)
            unit, taste = taste_shares(rows, layout, told, dislike)
            total += unit.T @ taste
        return CohortTotal({BASIS: total})

    return DeviceHalf(contribute=contribute, kernel=kernel)


# --- the server's half -------------------------------------------------------------------------


def _directions(published: F64, items: Frequent) -> tuple[F64, F64]:
    """Return the left singular vectors and values of a sum's rows of frequent items.

    The component along popularity is removed first.
    """
    sums = published[items.kept]
    sums = sums - np.outer(items.common, items.common @ sums)
    vectors, strength, _ = np.linalg.svd(sums, full_matrices=False)
    return vectors, strength


def noisy_subspace_tower(
    published: F64, layout: Layout, items: Frequent, *, noise_scale: float
) -> dict[str, F32]:
    """Return the vectors of likes and of items, (n_items, d + 1), from the last sum (n_items, d).

    A matrix of noise alone, with standard deviation s, has singular values up to edge = s(√m + √d)
    for m items. A direction with the singular value y > edge has the weight √(1 - (edge/y)²) · y/(y
    + ridge); other directions have the weight 0. The ridge is the larger of the edge and
    `_LEAST_RIDGE` times the largest y. The last entry of each vector is for popularity.
    """
    vectors, strength = _directions(published, items)
    edge = noise_scale * (math.sqrt(len(vectors)) + math.sqrt(len(strength)))
    ratio = edge / np.maximum(strength, max(edge, 1e-12))
    ridge = max(edge, _LEAST_RIDGE * float(strength.max(initial=0.0)), 1e-12)
    share = np.sqrt(np.maximum(1 - ratio**2, 0.0)) * strength / (strength + ridge)
    shape, width = (layout.n_items, published.shape[1] + 1), len(strength) + 1
    tower = {name: np.zeros(shape) for name in (LIKES, OUT)}
    inside = np.column_stack([vectors * share, items.common])
    tower[LIKES][items.kept, :width] = inside * items.power[:, None]
    tower[OUT][items.kept, :width] = np.column_stack([vectors, items.common])
    return {name: array.astype(np.float32) for name, array in tower.items()}


def noisy_subspace_phase(
    layout: Layout,
    aggregator: Aggregator,
    *,
    dislike: float,
    most: int,
    population: IntArray,
    rounds: int,
    seed: int,
    kept: Callable[[Params | None], dict[str, Array]],
) -> Phase:
    """Return the phase of the noised power method, which follows the popularity phase.

    At most `most` items are frequent. All columns of `history/like` but the last hold the basis.
    """
    first, scale = 1, aggregator.noise_scale(aggregator.clip_norm)

    def asked(params: Params) -> Frequent:
        popularity = np.asarray(params[POPULARITY], np.float64)
        return Frequent.of(popularity, frequent(popularity, noise_scale=0.0, most=most))

    def start(before: Params | None) -> ServerState:
        params = kept(before)
        items = asked(params)
        shape = (layout.n_items, params[LIKES].shape[1] - 1)
        drawn, _ = _directions(rng(seed, 0, "basis").standard_normal(shape), items)
        return ServerState(
            round_index=first,
            params=_with_basis(params, drawn, items),
            opt_state=(),
            clip_norm=aggregator.clip_norm,
        )

    def tell(state: ServerState) -> Told:
        items, weights = asked(state.params), np.zeros(layout.n_items)
        weights[items.kept] = items.power
        return {BASIS: np.asarray(state.params[LIKES], np.float64)[:, :-1], SCALE: weights}

    def absorb(state: ServerState, published: Published) -> ServerState:
        sums, items = np.asarray(published.update[BASIS], np.float64), asked(state.params)
        if state.round_index + 1 < first + rounds:
            vectors, _ = _directions(sums, items)
            return replace(state, params=_with_basis(state.params, vectors, items))
        tower = noisy_subspace_tower(sums, layout, items, noise_scale=scale)
        if DISLIKES in state.params:
            tower[DISLIKES] = np.float32(dislike) * tower[LIKES]
        tower[BIAS] = bias_of(np.asarray(state.params[POPULARITY], np.float64), items.kept)
        return replace(state, params={**state.params, **_on_device(tower)})

    return Phase(
        name=SUBSPACE,
        rounds=rounds,
        first=first,
        population=population,
        aggregator=aggregator,
        device=taste_subspace_device(layout, dislike),
        start=start,
        tell=tell,
        absorb=absorb,
    )


def _on_device(arrays: dict[str, F32]) -> dict[str, Array]:
    return {name: jnp.asarray(array) for name, array in arrays.items()}


def _with_basis(params: Params, vectors: F64, items: Frequent) -> dict[str, Array]:
    table = np.zeros(params[LIKES].shape, np.float32)
    table[items.kept, : vectors.shape[1]] = vectors
    return {**params, LIKES: jnp.asarray(table)}
