"""Phases in which devices train the DSSM: by federated Reptile, and by federated MAML.

MAML divides a client's data into two parts: support to adapt on, and query to be judged by.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from privrec.algorithms.budgets import aggregator_of
from privrec.algorithms.recipe import Task
from privrec.algorithms.reptile.dssm import Network, empty_pairs, instances_of, network_of
from privrec.algorithms.reptile.local import local_maml, local_sgd
from privrec.algorithms.reptile.pack import (
    Instances,
    PackedTask,
    bucket,
    dummy,
    grouped,
    pack_one,
    pairs_of,
    seen,
    steps_of,
)
from privrec.algorithms.reptile.settings import LocalSettings, MamlSettings, ReptileSettings
from privrec.algorithms.settings import FederatedSettings
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import TRAIN, DeviceHalf, Phase, ServerState, ServerWork, Told
from privrec.core.training import LocalTrain, Packed, jit_in_place, mean_step, server_optimizer
from privrec.data.clients import Clients, Split
from privrec.data.federation import Federation
from privrec.data.schema import Bags
from privrec.privacy.aggregate import Aggregator, Published
from privrec.seeds import client_words
from privrec.simulate.cost import DeviceCost, cost_of_training, training_bytes, usual_person
from privrec.simulate.lanes import cohort_runner, training_kernel, warm_up
from privrec.types import BoolArray, IntArray, Params


def pack_tasks(
    clients: Clients,
    instances: Instances,
    support_share: float,
    *,
    n_items: int,
    seed: int,
    round_index: int,
) -> list[PackedTask]:
    """Return each client's lines in two parts for one round; a negative is where its like is.

    A client without a line in the support or without a like in the query (with `ratings`: without
    a line) has no instances.
    """
    clients = seen(clients, instances)
    pairs = pairs_of(clients, instances, n_items=n_items, seed=seed, round_index=round_index)
    asked = query_lines(clients, support_share, seed=seed, round_index=round_index)
    judges = asked & (clients.liked | instances.ratings)
    splits = _any_of(clients, ~asked) & _any_of(clients, judges)
    owner = clients.owner[pairs.line]
    order = np.lexsort((asked[pairs.line], owner))
    order = order[splits[owner[order]]]
    sizes = np.bincount(owner[order], minlength=len(clients))
    supports = np.bincount(owner[order][~asked[pairs.line[order]]], minlength=len(clients))
    ends = np.cumsum(sizes)

    def task(k: int) -> PackedTask:
        size, support = int(sizes[k]), int(supports[k])
        begin = -(-support // instances.batch_size) * instances.batch_size
        place = np.arange(size) + np.where(np.arange(size) < support, 0, begin - support)
        cap = bucket(begin + size - support, instances.batch_size)
        own = pairs.take(order[ends[k] - size : ends[k]])
        client = pack_one(clients, k, own, place=place, cap=cap, n_items=n_items)
        return PackedTask(client, np.int32(support), np.int32(begin))

    return [task(k) for k in range(len(clients))]


def query_lines(
    clients: Clients, support_share: float, *, seed: int, round_index: int
) -> BoolArray:
    """Return for each line whether it is in the query.

    The support has `support_share` of a client's lines, rounded, drawn anew in every round.
    """
    owner, starts = clients.owner, clients.offsets[:-1]
    place = np.arange(len(owner)) - starts[owner]
    words = client_words(seed, round_index, "support", clients.ids[owner], place)
    rank = np.empty(len(owner), np.int64)
    rank[grouped(owner, words)] = place
    return np.asarray(rank >= np.floor(support_share * clients.sizes + 0.5)[owner])


def empty_tasks(
    example: PackedTask, largest: int, instances: Instances, n_items: int
) -> list[PackedTask]:
    """Return a task without instances for each shape of clients of up to `largest` lines."""
    batch_size, none = instances.batch_size, np.int32(0)
    # Each of the two parts is filled up to whole batches.
    top = bucket(largest * (1 + instances.negatives) + 2 * batch_size, batch_size)
    sizes = [top >> i for i in range((top // (2 * batch_size)).bit_length())]
    return [PackedTask(dummy(example.client, size, n_items), none, none) for size in sizes]


def _any_of(clients: Clients, lines: BoolArray) -> BoolArray:
    """Return for each client whether one of its lines is among these."""
    return np.bincount(clients.owner[lines], minlength=len(clients)) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a device trains.

    `pack(people, round_index)` builds what each of them trains on, `local` trains on it, `examples`
    has an empty one of each shape, and `usual()` is a person of usual size. `steps` is how often
    the compiled loop of `local` runs for one of them, for the count of arithmetic.
    """

    pack: Callable[[Clients, int], Sequence[Packed]]
    local: LocalTrain
    catalogue: Bags
    examples: Callable[[], Sequence[Packed]]
    usual: Callable[[], Clients]
    steps: Callable[[Any], int]


def device_half(training: Training, aggregator: Aggregator, *, name: str, first: int) -> DeviceHalf:
    """Return what a device sends: what its training returns, with the item rows it touched."""
    run_cohort = cohort_runner(training.local, aggregator.norm, training.catalogue)
    train_one = jit_in_place(training.local)

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        (client,) = training.pack(person, round_index)
        trained = train_one(dict(told), dict(training.catalogue), client)
        update = {name: np.asarray(leaf) for name, leaf in trained.update.items()}
        rows, size = np.asarray(client.rows, np.int64), len(told[ITEM_TABLE])
        real = rows < size
        touched = TouchedRows(rows[real], update.pop(ITEM_TABLE)[real], size)
        return Contribution(dense=update, rows={ITEM_TABLE: touched})

    def cost(params: Params) -> DeviceCost:
        (client,) = training.pack(training.usual(), first)
        what, items = f"{name} round", training.catalogue
        steps = training.steps(client)
        return cost_of_training(what, training.local, params, items, client, steps)

    return DeviceHalf(
        contribute=contribute,
        kernel=training_kernel(training.pack, run_cohort),
        prepare=lambda params: warm_up(run_cohort, params, training.examples()),
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
    """Return rounds that step along the mean of what devices send (Algorithms 1 and 2).

    They begin with the parameters that `start(before)` returns. `model()` has most of their shapes,
    by which the memory is counted; without it, it is not.
    """
    step = mean_step(optimizer, aggregator.release.sampling.cohort)
    noised = aggregator.release.is_private

    def begin(before: Params | None) -> ServerState:
        params = dict(start(before))
        return ServerState(
            round_index=first,
            params=params,
            opt_state=jax.jit(optimizer.init)(params),
            clip_norm=aggregator.clip_norm,
        )

    def absorb(state: ServerState, published: Published) -> ServerState:
        params, opt_state = step(state.params, state.opt_state, published.update)
        return replace(state, params=params, opt_state=opt_state)

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
    """Return what rounds of training such a model need; builds no parameters."""

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


def reptile_stages(task: Task[ReptileSettings]) -> tuple[Phase, ...]:
    """Return the one phase of federated Reptile on the DSSM."""
    settings, federation, split = task.settings, task.federation, task.split
    network = network_of(settings, federation.catalogue)
    return one_stage(settings, network, training_of(settings, network, federation, split), split)


def one_stage(
    settings: FederatedSettings, network: Network, training: Training, split: Split
) -> tuple[Phase, ...]:
    """Return the one phase of a recipe that trains the DSSM on devices in this way."""
    return (
        training_phase(
            training,
            name=TRAIN,
            first=0,
            rounds=settings.rounds,
            population=split.train,
            aggregator=aggregator_of(settings, split),
            optimizer=server_optimizer(settings.server_optimizer, settings.server_lr),
            start=lambda before: network.fresh(),
            model=network.fresh,
        ),
    )


def local_of(settings: LocalSettings, network: Network) -> LocalTrain:
    """Return the local training of these settings."""
    return local_sgd(
        network.recommender,
        learning_rate=settings.local_lr,
        epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        max_steps=settings.local_steps or None,
        whole_batch=settings.whole_batch,
    )


def training_of(
    settings: ReptileSettings, network: Network, federation: Federation, split: Split
) -> Training:
    """Return how a device trains the DSSM on its own pairs of person and item."""
    return Training(
        pack=network.pack,
        local=local_of(settings, network),
        catalogue=dict(network.items),
        examples=partial(empty_pairs, network, settings, federation, split.train),
        usual=lambda: federation.take(usual_person(federation, split.train)),
        steps=partial(steps_of, batch_size=settings.batch_size, epochs=settings.local_epochs),
    )


def maml_stages(task: Task[MamlSettings]) -> tuple[Phase, ...]:
    """Return the one phase of federated MAML on the DSSM."""
    settings, federation, split = task.settings, task.federation, task.split
    network = network_of(settings, federation.catalogue)
    return one_stage(settings, network, maml_training(settings, network, federation, split), split)


def maml_training(
    settings: MamlSettings, network: Network, federation: Federation, split: Split
) -> Training:
    """Return how a device computes its meta-gradient."""
    instances, n_items = instances_of(settings), federation.n_items

    def pack(people: Clients, round_index: int) -> list[PackedTask]:
        return pack_tasks(
            people,
            instances,
            settings.support_share,
            n_items=n_items,
            seed=settings.seed,
            round_index=round_index,
        )

    def examples() -> list[PackedTask]:
        (example,) = pack(federation.take(split.train[:1]), 0)
        return empty_tasks(example, federation.largest, instances, n_items)

    def half_of_the_steps(task: PackedTask) -> int:
        # The compiler counts the loops over support and over query, each of about half the data.
        return -(-steps_of(task, settings.batch_size, 1) // 2)

    return Training(
        pack=pack,
        local=local_maml(
            network.recommender,
            learning_rate=settings.local_lr,
            inner_steps=settings.inner_steps,
            batch_size=settings.batch_size,
            second_order=settings.second_order,
        ),
        catalogue=dict(network.items),
        examples=examples,
        usual=lambda: federation.take(usual_person(federation, split.train)),
        steps=half_of_the_steps,
    )
