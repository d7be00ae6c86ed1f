"""Federated collaborative filtering (Ammad-ud-din et al. 2019).

FCF is implicit matrix factorisation (Hu, Koren and Volinsky 2008). p_ui is the preference of person
u for item i, and c_ui = 1 + α r_ui is the confidence in this preference. FCF minimises

    J = Σ_ui c_ui (p_ui - x_uᵀ y_i)² + λ (Σ ‖x_u‖² + Σ ‖y_i‖²)

A device computes x_u from the item vectors Y in closed form and never sends x_u. It sends the
gradient of J with respect to Y. The server adds up the gradients and takes a step of Adam.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from privrec.algorithms.budgets import aggregator_of
from privrec.algorithms.recipe import Plan, Recipe, Task
from privrec.algorithms.settings import FederatedSettings
from privrec.core.bound import shrink
from privrec.core.contribution import Contribution
from privrec.core.phase import TRAIN, Cohort, DeviceHalf, Phase, ServerState, Told
from privrec.core.scorer import Scorer, TableScorer
from privrec.core.tables import check_shapes
from privrec.core.training import decayed, mean_step, server_optimizer
from privrec.data.clients import Clients
from privrec.privacy.aggregate import CohortTotal, Published
from privrec.seeds import rng
from privrec.settings import Positive, Size, Weight
from privrec.types import F32, F64, BoolArray, IntArray, Norm, Params


@dataclass(frozen=True, slots=True, eq=False)
class Rated:
    """The rated items of people. Person k has the entries `offsets[k]:offsets[k + 1]`.

    Each item occurs once per person. `times` is the number of interactions in which the person
    likes the item; 0 means that she only dislikes it.
    """

    offsets: IntArray
    item: IntArray
    times: F64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def owner(self) -> IntArray:
        """The position of the person of each entry, shape (entries,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def only(self, mask: BoolArray) -> "Rated":
        """Return the same people with only the entries that `mask` selects."""
        counts = np.bincount(self.owner[mask], minlength=len(self))
        return Rated(np.concatenate([[0], np.cumsum(counts)]), self.item[mask], self.times[mask])


def rated(clients: Clients, n_items: int) -> Rated:
    """Return the items that each person rated, in the order of the catalogue."""
    pair = clients.owner * n_items + clients.item
    pairs, place = np.unique(pair, return_inverse=True)
    times = np.zeros(len(pairs))
    np.add.at(times, place.reshape(-1), clients.liked)
    counts = np.bincount(pairs // n_items, minlength=len(clients))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Rated(offsets, (pairs % n_items).astype(np.int64), times)


def solve(vectors: F64, common: F64, people: Rated, extra: F64, target: F64) -> F64:
    """Return the vector of each person, shape (people, d), by ridge regression on item vectors.

        x = (common + Σ e_i v_i v_iᵀ)⁻¹ Σ t_i v_i

    The sums run over the person's items. `extra` has e and `target` has t, one number per entry.
    The matrix `common` is the same for everybody: unseen items and the ridge. x is 0 if rounding
    errors leave the matrix without an inverse.
    """
    solved = np.zeros((len(people), vectors.shape[1]))
    for k in range(len(solved)):
        own = slice(int(people.offsets[k]), int(people.offsets[k + 1]))
        chosen = vectors[people.item[own]]
        squares = common + chosen.T @ (extra[own, None] * chosen)
        with suppress(np.linalg.LinAlgError):
            solved[k] = np.linalg.solve(squares, target[own] @ chosen)
    return solved


VECTORS = "items/vectors"


class FcfSettings(FederatedSettings):
    """The settings of FCF (implicit matrix factorisation with federated item vectors)."""

    rank: Size = 64
    """Length of the vectors of people and items."""
    confidence: Weight = 4.0
    """The α of the confidence 1 + α r in an item; r is log2(1 + the number of likes)."""
    l2: Positive = 60.0
    """The ridge (L2 penalty) λ on every vector."""
    dislike_target: Annotated[float, Field(ge=0, le=1)] = 0.7
    """Preference for an item rated low, between unseen (0) and liked (1)."""
    dislike_weight: Weight = 0.25
    """The r of an item rated low; an item with one like has r = 1."""
    embedding_scale: Positive = 0.1
    """Standard deviation of item vectors before training."""


# --- the device's half ---------------------------------------------------------------------------


def own_weights(settings: FcfSettings, people: Rated) -> tuple[F64, F64]:
    """Return the confidence c and the preference p of each entry, shape (entries,) each."""
    liked = people.times > 0
    r = np.where(liked, np.log2(1 + people.times), settings.dislike_weight)
    return 1 + settings.confidence * r, np.where(liked, 1.0, settings.dislike_target)


def person_vectors(settings: FcfSettings, items: F64, people: Rated) -> F64:
    """Return x_u = (YᵀY + Yᵀ(C_u - I)Y + λI)⁻¹ Yᵀ C_u p_u for each person."""
    c, p = own_weights(settings, people)
    common = items.T @ items + settings.l2 * np.eye(items.shape[1])
    return solve(items, common, people, c - 1, c * p)


def errors_of(settings: FcfSettings, items: F64, people: Rated, vectors: F64) -> F64:
    """Return c_ui (p_ui - x_uᵀ y_i) for each person and item, shape (people, items)."""
    c, p = own_weights(settings, people)
    wrong = -(vectors @ items.T)
    wrong[people.owner, people.item] = c * (p + wrong[people.owner, people.item])
    return wrong


def fcf_device(settings: FcfSettings, n_items: int, norm: Norm = "l2") -> DeviceHalf:
    """Return the device's half of a round: a device sends c (p - xᵀy) x for every item.

    This is half of the negative gradient of J without the ridge.
    """

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        items, own = np.asarray(told[VECTORS], np.float64), rated(person, n_items)
        vector = person_vectors(settings, items, own)
        slope = np.outer(errors_of(settings, items, own, vector)[0], vector[0])
        return Contribution(dense={VECTORS: slope.astype(np.float32)})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        items, order = np.asarray(told[VECTORS], np.float64), 1 if norm == "l1" else 2
        total, clipped, dropped = np.zeros_like(items), 0, 0
        for part in cohort.parts(256):
            people = rated(part, n_items)
            vectors = person_vectors(settings, items, people)
            wrong = errors_of(settings, items, people, vectors)
            # In both norms, the length of an outer product is the product of the two lengths.
            length = np.linalg.norm(wrong, order, 1) * np.linalg.norm(vectors, order, 1)
            scale, was_long, fine = shrink(length, clip_norm)
            total += wrong[fine].T @ (scale[fine, None] * vectors[fine])
            clipped += int(was_long.sum())
            dropped += int((~fine).sum())
        return CohortTotal({VECTORS: total}, clipped=clipped, dropped=dropped)

    return DeviceHalf(contribute=contribute, kernel=kernel)


# --- the server's half ---------------------------------------------------------------------------


def fcf_stages(task: Task[FcfSettings]) -> tuple[Phase, ...]:
    """Return the single phase of FCF."""
    settings, federation, split = task.settings, task.federation, task.split
    aggregator = aggregator_of(settings, split)
    # The server uses the mean over people, so the ridge is divided by their number, too.
    optimizer = decayed(
        server_optimizer(settings.server_optimizer, settings.server_lr),
        settings.l2 / split.public_train,
    )
    step = mean_step(optimizer, aggregator.release.sampling.cohort)

    def start(before: Params | None) -> ServerState:
        shape = (federation.n_items, settings.rank)
        drawn = settings.embedding_scale * rng(settings.seed, 0, "items").standard_normal(shape)
        params = {VECTORS: jnp.asarray(drawn, jnp.float32)}
        return ServerState(
            round_index=0,
            params=params,
            opt_state=jax.jit(optimizer.init)(params),
            clip_norm=aggregator.clip_norm,
        )

    def absorb(state: ServerState, published: Published) -> ServerState:
        total = {VECTORS: jnp.asarray(published.update[VECTORS], jnp.float32)}
        params, opt_state = step(state.params, state.opt_state, total)
        return replace(state, params=params, opt_state=opt_state)

    return (
        Phase(
            name=TRAIN,
            rounds=settings.rounds,
            first=0,
            population=split.train,
            aggregator=aggregator,
            device=fcf_device(settings, federation.n_items, aggregator.norm),
            start=start,
            tell=lambda state: state.params,
            absorb=absorb,
        ),
    )


# --- ranking, on the device ----------------------------------------------------------------------


def by_vectors(settings: FcfSettings, n_items: int, params: Params) -> Scorer:
    """Return the scorer: it computes the person's vector x; the score of an item is xᵀy."""
    check_shapes(params, {VECTORS: (n_items, settings.rank)})
    items = np.asarray(params[VECTORS], np.float64)

    def score(people: Clients) -> F32:
        vectors = person_vectors(settings, items, rated(people, n_items))
        return np.asarray(vectors @ items.T, np.float32)

    return TableScorer(table=score, own_first=True)


def fcf_plan(task: Task[FcfSettings]) -> Plan:
    """Return the plan of FCF."""
    ranker = partial(by_vectors, task.settings, task.federation.n_items)
    return Plan(task=task, stages=partial(fcf_stages, task), ranker=ranker)


FCF = Recipe(
    summary="federated collaborative filtering: people's vectors solved on devices, items' by Adam",
    settings=FcfSettings,
    server_sees="updates",
    plan=fcf_plan,
    values={
        "rounds": 150,
        "cohort": 500,
        "sampling": "fixed",
        "server_lr": 0.03,
        "validate_every": 25,
        "patience": 3,
    },
    presets={
        "movielens-1m": {"patience": 0},  # `rounds` was chosen on the validation people.
        "frappe": {
            "rank": 32,
            "confidence": 2.0,
            "l2": 2.0,
            "rounds": 100,
            "cohort": 200,
            "validation_share": 0.0,
        },
    },
)
