"""Training of the second model (`opinion.py`): implicit alternating least squares over people.

The training consists of sweeps. In a sweep, each device computes its person's vector u from the
items' vectors. Then the vector v_i of each item i is the solution of

    H_i v_i = b_i,   H_i = Σ_all u uᵀ + αΣ_(have i) u uᵀ + ridge·I,   b_i = (1 + α)Σ_(have i) t u

The matrices H_i have d² numbers for each item, too many for a sum. So the server solves for all
items by conjugate gradients, and a round sums only the product of H_i and one vector per item. A
device contributes a row for each of its own items, and u·uᵀ for the matrix Σ u uᵀ that all items
share. The first round of a sweep sums the residual b_i - H_i v_i. Each later round sums the product
of H_i and the direction of a step.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from privrec.algorithms.privrec_plus.opinion import (
    ALPHA,
    SECOND,
    Entries,
    Turned,
    entries_in,
    person_vectors,
    ridge,
    turned,
)
from privrec.algorithms.privrec_plus.rows import rows_of
from privrec.algorithms.privrec_plus.scoring import Layout
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.phase import Accepted, Cohort, DeviceHalf, Phase, ServerState, Told
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.seeds import rng
from privrec.simulate.cost import DeviceCost, milliseconds, usual_person
from privrec.types import F64, Array, IntArray, Leaf, Params

NAME = "second opinion"
"""The name of the phase."""
STEPS = 2
"""Steps of conjugate gradients in a sweep."""
DIRECTION, TARGETS = "direction", "targets"
"""The names of the arrays that the server sends with the items' vectors. `direction` (items, d) has
the vectors p_i by which H_i is multiplied. `targets` is 1 in the first round of a sweep, in which
devices also send b_i, else 0."""
ITEM_SUMS, GRAM, PEOPLE = "items", "gram", "people"
"""The names of the sums of a round. `items` (items, d + 1) has a row for each item, with the number
of people who have the item in the last column. `gram` (d, d) is Σ u uᵀ. `people` is the number of
people."""
_START = 0.1
"""The typical length of an item's random vector before the first sweep. Chosen by hand."""
_LARGEST = 1e4
"""Devices refuse vectors with a number above this limit; honest vectors have a length of about 1.
Chosen by hand."""


# --- the device's half ---------------------------------------------------------------------------


class _Shares(NamedTuple):
    """The contributions of some people to a round's sums.

    - `people`: the items of each person; an entry is a pair of a person and an item.
    - `vectors` (people, d): the vector u of each person.
    - `weight` (entries,): for each entry, the person adds weight · u to the row of the item.
    """

    people: Entries
    vectors: F64
    weight: F64


def _shares(told: Told, people: Entries, items: Turned) -> _Shares:
    direction = np.asarray(told[DIRECTION], np.float64)
    solved = person_vectors(items, people)
    along = np.einsum("ed,ed->e", solved[people.owner], direction[people.item])
    wanted = float(told[TARGETS]) * (1 + ALPHA) * people.target
    return _Shares(people, solved, wanted - ALPHA * along)


def sweeps_device(layout: Layout, columns: int) -> DeviceHalf:
    """Return the device's half of a round.

    A person contributes ((1 + α)t - α uᵀp_i) u for each of her items i, and u·uᵀ. In the first
    round of a sweep, t is the item's target (`opinion.py`) and p_i its vector. In later rounds p_i
    is a direction, and the server sets t to 0. The first `columns` columns of a row are items.
    """

    def entries(clients: Clients) -> Entries:
        return entries_in(rows_of(clients, layout), layout.n_items, columns)

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        people, vectors, weight = _shares(told, entries(person), turned(told[SECOND]))
        values = np.outer(weight, np.append(vectors[0], 0.0))
        values[:, -1] = 1.0
        return Contribution(
            dense={PEOPLE: np.float64(1.0)},
            rows={ITEM_SUMS: TouchedRows(people.item, values, layout.n_items)},
            outer={GRAM: vectors[0]},
        )

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        size, width = layout.n_items, np.shape(told[SECOND])[1]
        items, gram = np.zeros((size, width + 1)), np.zeros((width, width))
        known = turned(told[SECOND])
        for part in cohort.parts(512):
            people, vectors, weight = _shares(told, entries(part), known)
            shape = (len(vectors), size)
            table = sp.csr_array((weight, people.item, people.offsets), shape=shape)
            items[:, :-1] += table.T @ vectors
            items[:, -1] += np.bincount(people.item, minlength=size)
            gram += vectors.T @ vectors
        return CohortTotal({ITEM_SUMS: items, GRAM: gram, PEOPLE: np.float64(len(cohort.people))})

    return DeviceHalf(contribute=contribute, kernel=kernel)


# --- the server's half ---------------------------------------------------------------------------


class Solving(NamedTuple):
    """The state of conjugate gradients between two rounds of a sweep, for each item i.

    - `solution` (items, d): the current v_i.
    - `residual` (items, d): b_i - H_i v_i.
    - `direction` (items, d): the direction of the next step.
    - `product` (items,): the scalar product of the residual and the preconditioned residual.
    """

    solution: Leaf
    residual: Leaf
    direction: Leaf
    product: Leaf


def _system(total: dict[str, F64], directions: F64) -> tuple[F64, Callable[[F64], F64]]:
    """Return b_i - H_i p_i for each item (b_i is 0 after the first round), and the preconditioner.

    The preconditioner is an approximate inverse of H_i. It assumes that people who have item i have
    the same mean u·uᵀ as all people.
    """
    sums, count = total[ITEM_SUMS][:, :-1], total[ITEM_SUMS][:, -1]
    people = max(float(total[PEOPLE]), 1.0)
    ridges = ridge(count, people)[:, None]
    strength, basis = np.linalg.eigh(total[GRAM])
    usual = np.maximum(strength, 0.0) * (1 + ALPHA * count / people)[:, None] + ridges

    def nearly_solved(right: F64) -> F64:
        return np.asarray((right @ basis / usual) @ basis.T)

    return sums - directions @ total[GRAM] - ridges * directions, nearly_solved


def begun(total: dict[str, F64], vectors: F64) -> Solving:
    """Return the state of a sweep after its first round, given the sums of this round."""
    residual, nearly_solved = _system(total, vectors)
    direction = nearly_solved(residual)
    return Solving(vectors, residual, direction, (residual * direction).sum(1))


def stepped(total: dict[str, F64], before: Solving) -> Solving:
    """Return the state after a step of conjugate gradients along `before.direction`."""
    solution, residual, direction, product = (np.asarray(part, np.float64) for part in before)
    minus, nearly_solved = _system(total, direction)
    curve = -(direction * minus).sum(1)
    length = _over(product, curve)[:, None]
    residual = residual + length * minus
    turned = nearly_solved(residual)
    new = (residual * turned).sum(1)
    next_direction = turned + _over(new, product)[:, None] * direction
    return Solving(solution + length * direction, residual, next_direction, new)


def _over(above: F64, below: F64) -> F64:
    """Return above / below; 0 where below is not positive, because that equation is solved."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def sweeps_phase(
    layout: Layout,
    federation: Federation,
    aggregator: Aggregator,
    *,
    population: IntArray,
    first: int,
    columns: int,
    width: int,
    sweeps: int,
    seed: int,
    kept: Callable[[Params | None], dict[str, Array]],
) -> Phase:
    """Return the phase that trains the second model, with vectors of length `width`.

    `kept(before)` returns the first parameters. The first `columns` columns of a row are items.
    """
    device = sweeps_device(layout, columns)

    def is_first(state: ServerState) -> bool:
        return (state.round_index - first) % (STEPS + 1) == 0

    def start(before: Params | None) -> ServerState:
        vectors = _drawn((layout.n_items, width), seed)
        blank = jnp.zeros_like(vectors)
        return ServerState(
            round_index=first,
            params={**kept(before), SECOND: vectors},
            opt_state=Solving(vectors, blank, blank, blank[:, 0]),
            clip_norm=aggregator.clip_norm,
        )

    def tell(state: ServerState) -> Told:
        vectors = state.params[SECOND]
        direction = vectors if is_first(state) else state.opt_state.direction
        return {SECOND: vectors, DIRECTION: direction, TARGETS: np.float32(is_first(state))}

    def absorb(state: ServerState, published: Published) -> ServerState:
        total = {name: np.asarray(sums, np.float64) for name, sums in published.update.items()}
        before = np.asarray(state.params[SECOND], np.float64)
        parts = begun(total, before) if is_first(state) else stepped(total, state.opt_state)
        solving = Solving(*(jnp.asarray(part, jnp.float32) for part in parts))
        ended = is_first(replace(state, round_index=state.round_index + 1))
        new = {SECOND: solving.solution} if ended else {}
        return replace(state, params={**state.params, **new}, opt_state=solving)

    return Phase(
        name=NAME,
        rounds=sweeps * (STEPS + 1),
        first=first,
        population=population,
        aggregator=aggregator,
        device=replace(
            device, cost=lambda params: _cost(federation, population, device, tell(start(params)))
        ),
        start=start,
        tell=tell,
        absorb=absorb,
        accepts=_accepted((layout.n_items, width)),
    )


def _drawn(shape: tuple[int, int], seed: int) -> Array:
    drawn = rng(seed, 0, "second").standard_normal(shape) * _START / np.sqrt(shape[1])
    return jnp.asarray(drawn, jnp.float32)


def _accepted(shape: tuple[int, int]) -> dict[str, Accepted]:
    table = Accepted(shape=shape, least=-_LARGEST, most=_LARGEST)
    return {SECOND: table, DIRECTION: table, TARGETS: Accepted(shape=(), least=0, most=1)}


def _cost(
    federation: Federation, population: IntArray, device: DeviceHalf, told: Told
) -> DeviceCost:
    person = federation.take(usual_person(federation, population))
    entries = len(device.contribute(told, person, 0).rows[ITEM_SUMS].ids)
    n_items, width = np.shape(told[SECOND])
    own = entries * min(entries, width) * (width + min(entries, width) // 3)
    return DeviceCost(
        what=f"{NAME} round",
        bytes_down=4 * (2 * n_items * width + 1),
        # A position and a row in 64 bits for each of her items, one vector u, and a count.
        bytes_up=8 * (entries * (width + 2) + width + 1),
        multiply_adds=2 * n_items * width**2 + own,
        milliseconds=milliseconds(lambda: device.contribute(told, person, 0)),
    )
