"""Subspace iteration under noise: a noised power method, one release for each round.

A person's share of a round is x·(x·Q), scaled to length 1, where x is her row over the frequent
items, as in the noised sum of the closed form (`sums.py: taste_shares`). The basis Q has no
component along popularity, which is known already. Scaling to length 1 makes the most of a person
whose taste is mostly outside of the basis, as it is at the beginning. The noise grows with items ×
directions and not with items squared, so for large catalogues it beats the one noisy matrix
(docs/results.md).
"""

import math
from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from privrec.algorithms.privrec_plus.fit import bias_of, frequent
from privrec.algorithms.privrec_plus.layout import DISLIKES, LIKES, Layout
from privrec.algorithms.privrec_plus.moments import SparseRows, row_lengths, to_length_one
from privrec.algorithms.privrec_plus.rows import merged_items, rows_of
from privrec.algorithms.privrec_plus.scoring import BIAS, OUT, POPULARITY
from privrec.algorithms.privrec_plus.told import BASIS, SCALE, SUBSPACE, Frequent
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.phase import Cohort, DeviceHalf, Phase, ServerState, Told
from privrec.data.clients import Clients
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.seeds import rng
from privrec.types import F32, F64, Array, IntArray, Params

_LEAST = 1e-9
"""A person whose taste is within the basis by less than this share adds nothing: it would be a
rounding error that is scaled up."""
_LEAST_RIDGE = 0.02
"""The smallest ridge, as a share of the largest singular value. Chosen by hand; not tuned."""


# --- the device's half -------------------------------------------------------------------------


def taste_shares(
    rows: SparseRows, layout: Layout, told: Told, dislike: float
) -> tuple[SparseRows, F64]:
    """Return each person's x, and x·Q scaled such that their outer product has length 1 (or 0)."""
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
    """Return the devices' half of a round: x·(x·Q) of length 1."""

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
    """Return the left singular vectors and values of a sum, over the frequent items.

    What is along popularity is taken out.
    """
    sums = published[items.kept]
    sums = sums - np.outer(items.common, items.common @ sums)
    vectors, strength, _ = np.linalg.svd(sums, full_matrices=False)
    return vectors, strength


def noisy_subspace_tower(
    published: F64, layout: Layout, items: Frequent, *, noise_scale: float
) -> dict[str, F32]:
    """Return the vectors of likes and of items, shape (n_items, d + 1), from the last sum (…, d).

    Noise of scale s alone has singular values up to edge = s(√m + √d). A direction of the singular
    value y counts √(1 - (edge/y)²) · y/(y + ridge), and nothing below the edge; the ridge is the
    edge or, if that is larger, `_LEAST_RIDGE` times the largest y. The last entry is popularity.
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
    """Return the rounds of the noised power method, after popularity.

    `most` limits the frequent items. All columns of the likes but the last hold the basis.
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
        found = noisy_subspace_tower(sums, layout, items, noise_scale=scale)
        if DISLIKES in state.params:
            found[DISLIKES] = np.float32(dislike) * found[LIKES]
        found[BIAS] = bias_of(np.asarray(state.params[POPULARITY], np.float64), items.kept)
        return replace(state, params={**state.params, **_on_device(found)})

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
