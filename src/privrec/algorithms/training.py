"""Phases in which devices train a network; the server's optimizer uses their mean update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import Cohort, DeviceHalf, Phase, ServerState, ServerWork, Told
from privrec.core.training import LocalTrain, Packed, jit_in_place, mean_step
from privrec.data.clients import Clients
from privrec.data.schema import Bags
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.simulate.cost import DeviceCost, cost_of_training, training_bytes
from privrec.simulate.lanes import cohort_runner, warm_up
from privrec.types import IntArray, Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a device trains.

    - `pack(people, round_index)`: returns the training data of each person as arrays.
    - `local`: trains on the arrays of one person.
    - `examples()`: returns empty training data, one example for each shape that can occur.
    - `usual()`: returns the data of a person with the median number of interactions.
    - `steps(client)`: returns how often the compiled loop of `local` runs for one person.
    - `is_trained(name)`: whether training changes this array. None if training changes all arrays
      that the server sends. Otherwise `pack` gets all these arrays as its first argument.
    """

    pack: Callable[..., Sequence[Packed]]
    local: LocalTrain
    catalogue: Bags
    examples: Callable[[], Sequence[Packed]]
    usual: Callable[[], Clients]
    steps: Callable[[Any], int]
    is_trained: Callable[[str], bool] | None = None

    def trained(self, told: Told) -> dict[str, Any]:
        """Return those of the server's arrays (`told`) that training changes."""
        return {name: told[name] for name in told if not self.is_trained or self.is_trained(name)}

    def packer(self, told: Told) -> Callable[[Clients, int], Sequence[Packed]]:
        """Return the function (people, round_index) -> training data of each person."""
        return partial(self.pack, told) if self.is_trained else self.pack


def device_half(training: Training, aggregator: Aggregator, *, name: str, first: int) -> DeviceHalf:
    """Return the device's half of a round: a device trains and sends its update.

    It sends only the rows of the item table that its training used.
    """
    run_cohort = cohort_runner(training.local, aggregator.norm, training.catalogue)
    train_one = jit_in_place(training.local)

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        (client,) = training.packer(told)(person, round_index)
        trained = train_one(training.trained(told), dict(training.catalogue), client)
        update = {name: np.asarray(leaf) for name, leaf in trained.update.items()}
        rows, size = np.asarray(client.rows, np.int64), len(told[ITEM_TABLE])
        real = rows < size
        touched = TouchedRows(rows[real], update.pop(ITEM_TABLE)[real], size)
        return Contribution(dense=update, rows={ITEM_TABLE: touched})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        clients = training.packer(told)(cohort.take(cohort.people), round_index)
        total = run_cohort(training.trained(told), clients, clip_norm, cohort.advance)
        return total.on_host(skipped=sum(int(client.size) == 0 for client in clients))

    def cost(told: Params) -> DeviceCost:
        (client,) = training.packer(told)(training.usual(), first)
        return cost_of_training(
            f"{name} round",
            training.local,
            training.trained(told),
            training.catalogue,
            client,
            steps=training.steps(client),
            told=told,
        )

    return DeviceHalf(
        contribute=contribute,
        kernel=kernel,
        prepare=lambda told: warm_up(run_cohort, training.trained(told), training.examples()),
        cost=cost,
    )


def training_phase(
    training: Training,
    *,
    name: str,
    first: int,
    rounds: int,
    population: IntArray,
    aggregator: Aggregator,
    optimizer: optax.GradientTransformation,
    start: Callable[[Params | None], Params],
    model: Callable[[], Params] | None = None,
) -> Phase:
    """Return a phase whose server step follows the mean update of devices (Algorithms 1 and 2).

    `start(before)` returns the first parameters. The memory of the server is estimated from the
    shapes of `model()`; if `model` is None, it is not estimated.
    """
    step = mean_step(optimizer, aggregator.release.sampling.cohort)
    noised = aggregator.release.is_private

    def begin(before: Params | None) -> ServerState:
        params = dict(start(before))
        return ServerState(
            round_index=first,
            params=params,
            opt_state=jax.jit(optimizer.init)(training.trained(params)),
            clip_norm=aggregator.clip_norm,
        )

    def absorb(state: ServerState, published: Published) -> ServerState:
        before = training.trained(state.params)
        params, opt_state = step(before, state.opt_state, published.update)
        return replace(state, params={**state.params, **params}, opt_state=opt_state)

    return Phase(
        name=name,
        rounds=rounds,
        first=first,
        population=population,
        aggregator=aggregator,
        device=device_half(training, aggregator, name=name, first=first),
        start=begin,
        tell=lambda state: state.params,
        absorb=absorb,
        work=None if model is None else partial(training_work, model, optimizer, noised=noised),
    )


def training_work(
    model: Callable[[], Params],
    optimizer: optax.GradientTransformation,
    told: Told | None,
    *,
    noised: bool,
) -> ServerWork:
    """Return the server's memory for rounds of training, from shapes alone."""

    def shaped() -> tuple[Params, optax.OptState]:
        params = dict(model())
        return params, optimizer.init(params)

    params, others = jax.eval_shape(shaped)
    in_params, in_others = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
        for tree in (params, others)
    )
    needed = training_bytes(in_params, in_others, noised=noised)
    n_items, width = params[ITEM_TABLE].shape
    in_table = needed * 4 * n_items * width // in_params

    def instead(free: int) -> str:
        shorter = width * (free - (needed - in_table)) // in_table
        if shorter < 1:
            return "the catalogue is too large for this machine"
        return f"set `embedding_size` to at most {shorter}"

    return ServerWork(
        bytes=needed, what=f"training a network over {n_items:,} items", instead=instead
    )
