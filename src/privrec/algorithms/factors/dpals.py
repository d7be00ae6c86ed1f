"""Private alternating least squares (Chien et al., ICML 2021), weighted as by Krichene et al. 2023.

The first sum measures the popularity of items. Then, in each round, a device computes the vector x
of its person, of length 1, from the vectors of the items. It contributes to the sum G and, for each
of the person's items i, to B_i and A_i:

    B_i = Σ ω_ui x_u,   A_i = Σ ω_ui x_u x_uᵀ,   and for all items together G = Σ s_u x_u x_uᵀ

The weight is ω_ui = s_u w_i. The factor w_i = popularity^-μ gives rare items more of the budget.
The factor s_u scales the contribution of one person to length 1. The server adds noise to all sums
and computes the vectors of the items:

    v_i = (A_i + γ G + ridge·I)⁻¹ B_i

γ is the weight of the items that a person does not have.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Annotated, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from pydantic import Field

from privrec.algorithms.budgets import BOUND, popularity_and_sums, sampling_of
from privrec.algorithms.factors.fcf import Rated, rated, solve
from privrec.algorithms.recipe import Plan, Recipe, Task
from privrec.algorithms.settings import NoiseSettings
from privrec.core.bound import ROUNDING
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.phase import (
    TRAIN,
    Accepted,
    Cohort,
    DeviceHalf,
    Phase,
    ServerState,
    Told,
    positions,
    weights,
)
from privrec.core.scorer import Scorer, TableScorer
from privrec.core.tables import check_shapes
from privrec.data.clients import Clients, Split
from privrec.errors import SettingsError
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published, plain
from privrec.seeds import client_words, rng
from privrec.settings import Count, Positive, Size, Weight
from privrec.types import F32, F64, BoolArray, IntArray, Law, Leaf, Params

POPULARITY, VECTORS = "popularity", "items/vectors"
ITEM_SUMS, GRAM = "items/sums", "gram"
"""The sums of a round: one row per selected item (B_i, A_i), and one matrix for all items (G)."""
SHARED = 1.5
"""The weight of G in the contribution of a person. Values from 1 to 3 gave the same accuracy."""
_LARGEST_FACTOR = 1e4
"""The largest absolute number in item vectors that a device accepts. Honest numbers are smaller,
because the mean square of all numbers is 1/d."""
_FEWEST = 50
_ENOUGH = 2.0
"""An item is selected if its popularity is at least this number times the noise of its row."""
_RIDGE = 70.0
"""The ridge (L2 penalty) of item vectors, in units of the noise on one number of a sum."""
_LEAST_RIDGE = 1e-3
"""This number is added to the ridge, in units of the mean eigenvalue of γ G: with few people, G has
eigenvalues near 0."""
_LONGEST, _SHORTEST, _RANK = 40, 8, 26.0
_UNKNOWN = -1e3


class DpalsSettings(NoiseSettings):
    """The settings of DPALS (alternating least squares from noised sums)."""

    rank: Count = 0
    """Length of the vectors; 0 chooses a length from 8 (much noise) to 40 (little or none)."""
    rounds: Size = 3
    """Alternations: each one computes the vectors of people, then the vectors of items."""
    cohort: Size = 10**9
    """People in each sum; a number above the number of training people means everybody."""
    sampling: Law = "poisson"
    """How the people of a round are drawn: poisson, or fixed (a fixed number of people)."""
    items_per_person: Size = 150
    """Upper limit for the items to whose sums one person contributes; they are drawn at random."""
    item_power: Annotated[float, Field(ge=0, le=1)] = 0.12
    """The exponent μ of the item weight popularity^-μ: rare items get more of the bound."""
    item_squares: Weight = 0.0
    """Weight of A_i, relative to B_i, in the contribution of a person; 0 uses only G."""
    unseen: Weight = 1.0
    """The weight γ of the items that a person does not have."""
    l2: Positive = 5.0
    """The ridge (L2 penalty) of a person's vector."""
    dislike_input: Weight = 0.5
    """Weight of a disliked item; a liked item has weight 1."""

    def validates_after(self, played: int, rounds: int) -> bool:
        """Return True after every round, if there are validation people."""
        return self.validation_share > 0


class Asked(NamedTuple):
    """The m items that the server selects for a round.

    `kept` (m,) has their positions in the catalogue, `weight` (m,) their weights, and `vectors` (m,
    d) their vectors.
    """

    kept: IntArray
    weight: F64
    vectors: F64

    def told(self) -> dict[str, Leaf]:
        """Return the arrays that the server sends to devices."""
        kept = self.kept.astype(np.int32)
        return {"kept": kept, "weight": self.weight, "vectors": self.vectors}

    @staticmethod
    def accepts(n_items: int, rank: int) -> dict[str, Accepted]:
        """Return the rules by which a device checks these arrays."""
        return {
            "kept": positions(n_items, n_items),
            "weight": weights((None,)),
            "vectors": Accepted(shape=(None, rank), least=-_LARGEST_FACTOR, most=_LARGEST_FACTOR),
        }

    @classmethod
    def of_told(cls, told: Told) -> "Asked":
        """Return the selected items from the arrays that the server sent."""
        numbers = (np.asarray(told[name], np.float64) for name in ("weight", "vectors"))
        return cls(np.asarray(told["kept"], np.int64), *numbers)


def own_weights(people: Rated, dislike: float) -> F64:
    """Return the weight of each rated item: 1 for a like, `dislike` for a dislike."""
    return np.where(people.times > 0, 1.0, dislike)


def among(people: Rated, kept: IntArray, n_items: int) -> Rated:
    """Return people's ratings of the items in `kept`; `item` is then an index into `kept`."""
    place = np.full(n_items, -1, np.int64)
    place[kept] = np.arange(len(kept))
    chosen = place[people.item]
    return replace(people, item=chosen).only(chosen >= 0)


def person_vectors(settings: DpalsSettings, vectors: F64, people: Rated) -> F64:
    """Return the vector of each person, shape (people, d); `people.item` indexes `vectors`."""
    weights = own_weights(people, settings.dislike_input)
    common = settings.unseen * vectors.T @ vectors + settings.l2 * np.eye(vectors.shape[1])
    return solve(vectors, common, people, weights, weights)


class Shares(NamedTuple):
    """The contributions of some people; row k of each array belongs to person k.

    `weights` (people, m) has the weights ω of her items. Each weight multiplies her vector in
    `parts` (people, …). `shared` (people, d(d+1)/2) is her contribution to G.
    """

    weights: sp.csr_array
    parts: F64
    shared: F64


def shares(
    settings: DpalsSettings, asked: Asked, clients: Clients, n_items: int, round_index: int
) -> Shares:
    """Return the contribution of each person: numbers that form a vector of length `BOUND`.

    The contribution is 0 if the person has none of the selected items, or if her vector cannot be
    computed.
    """
    people = among(rated(clients, n_items), asked.kept, n_items)
    solved = person_vectors(settings, asked.vectors, people)
    norm = np.linalg.norm(solved, axis=1, keepdims=True)
    x = np.divide(solved, norm, out=np.zeros_like(solved), where=(norm > 0) & np.isfinite(norm))
    above = np.triu_indices(x.shape[1])
    squares = x[:, above[0]] * x[:, above[1]]
    few = people.only(_drawn(people, clients, asked.kept, settings, round_index))
    weight = own_weights(few, settings.dislike_input) * asked.weight[few.item]
    total = np.zeros(len(people))
    np.add.at(total, few.owner, weight**2)
    parts = np.column_stack([x, settings.item_squares * squares]) if settings.item_squares else x
    length = np.sqrt(total * (parts**2).sum(1) + SHARED**2 * (squares**2).sum(1) * (total > 0))
    usable = (length > 0) & np.isfinite(length)
    scale = np.divide(BOUND, length, out=np.zeros_like(length), where=usable)
    matrix = sp.csr_array(
        (weight * scale[few.owner], few.item, few.offsets), shape=(len(people), len(asked.kept))
    )
    return Shares(matrix, parts, scale[:, None] * SHARED * squares)


def _drawn(
    people: Rated, clients: Clients, kept: IntArray, settings: DpalsSettings, round_index: int
) -> BoolArray:
    """Return a mask of the ratings to use: at most `items_per_person` per person, at random."""
    owner = people.owner
    words = client_words(settings.seed, round_index, "items", clients.ids[owner], kept[people.item])
    order = np.lexsort((words, owner))
    rank = np.empty(len(owner), np.int64)
    rank[order] = np.arange(len(owner)) - people.offsets[owner[order]]
    return np.asarray(rank < settings.items_per_person)


def squares_device(settings: DpalsSettings, n_items: int) -> DeviceHalf:
    """Return the device's half of an alternation: the contributions to B_i, A_i and G."""

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        asked = Asked.of_told(told)
        weights, parts, shared = shares(settings, asked, person, n_items, round_index)
        ids = np.asarray(weights.indices, np.int64)
        values = np.outer(np.asarray(weights.data, np.float64), parts[0])
        rows = {ITEM_SUMS: TouchedRows(ids, values, len(asked.kept))}
        return Contribution(rows=rows, dense={GRAM: shared[0]})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        asked = Asked.of_told(told)
        width = asked.vectors.shape[1]
        triangle = width * (width + 1) // 2
        wide = width + (triangle if settings.item_squares else 0)
        items, gram, several = np.zeros((len(asked.kept), wide)), np.zeros(triangle), 0
        for people in cohort.parts(256):
            mine = shares(settings, asked, people, n_items, round_index)
            items += mine.weights.T @ mine.parts
            gram += mine.shared.sum(0)
            several += int((mine.shared != 0).any(1).sum())
        # Each contribution has length BOUND, so a smaller bound scales all by the same factor.
        scale = min(1.0, clip_norm / BOUND) * (1 - ROUNDING)
        clipped = several if clip_norm * (1 + ROUNDING) < BOUND else 0
        return CohortTotal({ITEM_SUMS: scale * items, GRAM: scale * gram}, clipped=clipped)

    return DeviceHalf(contribute=contribute, kernel=kernel)


def popularity_device(n_items: int, dislike: float) -> DeviceHalf:
    """Return the device's half of the first sum: a person's weighted items, scaled to length 1."""

    def rows(clients: Clients) -> sp.csr_array:
        people = rated(clients, n_items)
        weight, owner = own_weights(people, dislike), people.owner
        total = np.zeros(len(people))
        np.add.at(total, owner, weight**2)
        scaled = BOUND * weight / np.sqrt(np.maximum(total, 1e-300))[owner]
        return sp.csr_array((scaled, people.item, people.offsets), shape=(len(people), n_items))

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        row = rows(person)
        ids = np.asarray(row.indices, np.int64)
        values = np.asarray(row.data, np.float64)
        return Contribution(rows={POPULARITY: TouchedRows(ids, values, n_items)})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        total = np.zeros(n_items)
        for people in cohort.parts():
            total += rows(people).sum(0)
        return CohortTotal({POPULARITY: total})

    return DeviceHalf(contribute=contribute, kernel=kernel)


def _scale(aggregator: Aggregator) -> float:
    """Return the standard deviation of the noise on each number of a sum; 0 without noise."""
    return aggregator.noise_scale(BOUND) if aggregator.release.is_private else 0.0


def asked_of(settings: DpalsSettings, params: Params, first: float, second: float) -> Asked:
    """Return the items that the server selects: their popularity is well above the noise.

    `first` is the noise scale of the popularity, and `second` that of the later sums.
    """
    popularity = np.asarray(params[POPULARITY], np.float64)
    vectors = np.asarray(params[VECTORS], np.float64)
    least = _ENOUGH * math.sqrt(vectors.shape[1]) * second
    count = max(int((popularity > least).sum()), _FEWEST)
    kept = np.argsort(-popularity, kind="stable")[:count]
    floor = max(first, 1e-6 * float(popularity.max(initial=0)), 1e-12)
    weight = np.maximum(popularity[kept], floor) ** -settings.item_power
    return Asked(kept, weight / weight[0], vectors[kept])


def dpals_stages(task: Task[DpalsSettings]) -> tuple[Phase, ...]:
    """Return the two phases of DPALS: the popularity sum, then the alternations."""
    settings, split, n_items = task.settings, task.split, task.federation.n_items
    first, second, noise = split_budget(settings, split, n_items)
    rank = settings.rank or rank_for(noise)

    def start(round_index: int, aggregator: Aggregator, before: Params | None) -> ServerState:
        drawn = rng(settings.seed, 0, "items").standard_normal((n_items, rank))
        drawn[:, 0] = 1.0
        fresh = {VECTORS: drawn / math.sqrt(rank), POPULARITY: np.zeros(n_items)}
        params = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in fresh.items()}
        return ServerState(
            round_index=round_index,
            params={**params, **(before or {})},
            opt_state=(),
            clip_norm=aggregator.clip_norm,
        )

    def asked_in(state: ServerState) -> Asked:
        return asked_of(settings, state.params, _scale(first), _scale(second))

    def count(state: ServerState, published: Published) -> ServerState:
        popularity = jnp.asarray(published.update[POPULARITY], jnp.float32)
        return replace(state, params={**state.params, POPULARITY: popularity})

    def absorb(state: ServerState, published: Published) -> ServerState:
        asked, ridge = asked_in(state), _RIDGE * _scale(second)
        sums, gram = (np.asarray(published.update[k], np.float64) for k in (ITEM_SUMS, GRAM))
        vectors = np.zeros((n_items, rank), np.float32)
        vectors[asked.kept] = item_vectors(sums, gram, asked, settings, ridge=ridge)
        return replace(state, params={**state.params, VECTORS: jnp.asarray(vectors)})

    return (
        Phase(
            name="popularity",
            rounds=1,
            first=0,
            population=split.train,
            aggregator=first,
            device=popularity_device(n_items, settings.dislike_input),
            start=partial(start, 0, first),
            tell=lambda state: {},
            absorb=count,
            ranks=False,
        ),
        Phase(
            name=TRAIN,
            rounds=settings.rounds,
            first=1,
            population=split.train,
            aggregator=second,
            device=squares_device(settings, n_items),
            start=partial(start, 1, second),
            tell=lambda state: asked_in(state).told(),
            absorb=absorb,
            accepts=Asked.accepts(n_items, rank),
        ),
    )


def split_budget(
    settings: DpalsSettings, split: Split, n_items: int
) -> tuple[Aggregator, Aggregator, float]:
    """Return the aggregators of both phases, and a noise multiplier.

    One release with this noise multiplier costs as much as all releases of both phases.
    """
    users = len(split.train) if settings.sampling == "fixed" else split.public_train
    sampling = sampling_of(settings.sampling, min(settings.cohort, users), split)
    if settings.mechanism == "none":
        return plain(sampling), plain(sampling), 0.0
    if settings.clip_quantile:
        raise SettingsError("`clip_quantile` is not for sums that have a fixed bound")
    made = popularity_and_sums(settings, sampling, n_items, sums=settings.rounds)
    return made.popularity, made.sums, made.noise_multiplier


def rank_for(noise_multiplier: float) -> int:
    """Return the length of the vectors: shorter with more noise. The formula was chosen by hand."""
    wanted = _RANK / math.sqrt(max(noise_multiplier, 1e-6))
    return int(min(max(wanted, _SHORTEST), _LONGEST))


def item_vectors(
    sums: F64, gram: F64, asked: Asked, settings: DpalsSettings, *, ridge: float
) -> F64:
    """Return v_i = (A_i + γ G + ridge·I)⁻¹ B_i, shape (m, d), scaled to a mean square of 1/d.

    If `item_squares` is 0, A_i is left out.
    """
    width = asked.vectors.shape[1]
    common = settings.unseen * _psd(gram[None] / SHARED, width)[0]
    common += (ridge + _LEAST_RIDGE * max(float(np.trace(common)), 1.0) / width) * np.eye(width)
    wanted = sums[:, :width] / asked.weight[:, None]
    if settings.item_squares:
        triangles = sums[:, width:] / settings.item_squares / asked.weight[:, None]
        matrices = _psd(triangles, width) + common
        solved = np.linalg.solve(matrices, wanted[:, :, None])[:, :, 0]
    else:
        solved = np.linalg.solve(common, wanted.T).T
    size = math.sqrt(float((solved**2).mean()))
    return solved / max(size * math.sqrt(width), 1e-12)


def _psd(triangles: F64, width: int) -> F64:
    """Return the nearest positive semidefinite matrices: (m, d(d+1)/2) -> (m, d, d)."""
    above = np.triu_indices(width)
    matrices = np.zeros((len(triangles), width, width))
    matrices[:, above[0], above[1]] = triangles
    matrices[:, above[1], above[0]] = triangles
    values, directions = np.linalg.eigh(matrices)
    kept = directions * np.maximum(values, 0)[:, None, :]
    return np.asarray(kept @ directions.transpose(0, 2, 1))


# --- ranking, on the device ----------------------------------------------------------------------


def by_factors(settings: DpalsSettings, n_items: int, params: Params, *, adapted: bool) -> Scorer:
    """Return the scorer: it computes the person's vector x; the score of an item is xᵀv.

    Items without a vector rank last, the most popular of them first. If not `adapted`, all items
    rank by popularity.
    """
    width = (0, *np.shape(params.get(VECTORS, 0)))[-1]
    check_shapes(params, {VECTORS: (n_items, width), POPULARITY: (n_items,)})
    vectors = np.asarray(params[VECTORS], np.float64)
    popularity = np.asarray(params[POPULARITY], np.float64)
    kept = np.flatnonzero(vectors.any(1))
    last = _UNKNOWN - np.argsort(np.argsort(-popularity, kind="stable"), kind="stable")

    def score(people: Clients) -> F32:
        table = np.tile(last, (len(people), 1))
        if adapted:
            own = among(rated(people, n_items), kept, n_items)
            table[:, kept] = person_vectors(settings, vectors[kept], own) @ vectors[kept].T
        return np.asarray(table, np.float32)

    return TableScorer(table=score, own_first=True)


def dpals_plan(task: Task[DpalsSettings]) -> Plan:
    """Return the plan of DPALS."""
    ranker = partial(by_factors, task.settings, task.federation.n_items)
    return Plan(
        task=task,
        stages=partial(dpals_stages, task),
        ranker=partial(ranker, adapted=True),
        unadapted=partial(ranker, adapted=False),
    )


DPALS = Recipe(
    summary="alternating least squares from noised sums: DPALS, with weights for rare items",
    settings=DpalsSettings,
    server_sees="items",
    plan=dpals_plan,
    values={"mechanism": "gaussian", "epsilon": 8.0, "validation_share": 0.0},
)
