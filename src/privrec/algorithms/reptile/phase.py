"""Phases in which devices train the DSSM by federated Reptile or federated MAML.

MAML divides a client's data into two parts: the model adapts to the support, and the loss of the
adapted model is computed on the query.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from privrec.algorithms.budgets import aggregator_of
from privrec.algorithms.recipe import Task
from privrec.algorithms.reptile.dssm import Network, empty_pairs, instances_of, network_of
from privrec.algorithms.reptile.local import local_maml, local_sgd
from privrec.algorithms.reptile.pack import (
    Instances,
    PackedTask,
    bucket,
    dummy,
    pack_one,
    pairs_of,
    seen,
    steps_of,
)
from privrec.algorithms.reptile.settings import LocalSettings, MamlSettings, ReptileSettings
from privrec.algorithms.training import Training, training_phase
from privrec.core.phase import TRAIN, Phase
from privrec.core.training import LocalTrain, server_optimizer
from privrec.data.clients import Clients, drawn_places
from privrec.simulate.cost import usual_person
from privrec.types import BoolArray


def pack_tasks(
    clients: Clients,
    round_index: int,
    *,
    instances: Instances,
    support_share: float,
    n_items: int,
    seed: int,
) -> list[PackedTask]:
    """Return the support and the query of each client for one round.

    A negative is in the same part as its like. A client has no instances if the support has no
    interaction or the query has no like. With `ratings`, one interaction in the query is enough.
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
    """Return for each interaction whether it belongs to the query.

    The support is the share `support_share` of a client's interactions, rounded; every round draws
    it again.
    """
    place = drawn_places(clients, seed=seed, round_index=round_index, purpose="support")
    return np.asarray(place >= np.floor(support_share * clients.sizes + 0.5)[clients.owner])


def empty_tasks(
    example: PackedTask, largest: int, instances: Instances, n_items: int
) -> list[PackedTask]:
    """Return one empty task for each array shape of clients with up to `largest` interactions."""
    batch_size, none = instances.batch_size, np.int32(0)
    # Support and query are each padded to whole batches.
    top = bucket(largest * (1 + instances.negatives) + 2 * batch_size, batch_size)
    sizes = [top >> i for i in range((top // (2 * batch_size)).bit_length())]
    return [PackedTask(dummy(example.client, size, n_items), none, none) for size in sizes]


def _any_of(clients: Clients, lines: BoolArray) -> BoolArray:
    """Return for each client whether the mask `lines` selects one of its interactions."""
    return np.bincount(clients.owner[lines], minlength=len(clients)) > 0


def one_stage(training: Callable[[Any, Network], Training], task: Task[Any]) -> tuple[Phase, ...]:
    """Return the single phase of a recipe that trains the DSSM by `training(task, network)`."""
    settings, split = task.settings, task.split
    network = network_of(settings, task.federation.catalogue)
    return (
        training_phase(
            training(task, network),
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
    """Return the local SGD training with these settings."""
    return local_sgd(
        network.recommender,
        learning_rate=settings.local_lr,
        epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        max_steps=settings.local_steps or None,
        whole_batch=settings.whole_batch,
    )


def reptile_training(task: Task[ReptileSettings], network: Network) -> Training:
    """Return how a device trains the DSSM by Reptile."""
    settings, federation, people = task.settings, task.federation, task.split.train
    return Training(
        pack=network.pack,
        local=local_of(settings, network),
        catalogue=dict(network.items),
        examples=partial(empty_pairs, network, settings, federation, people),
        usual=lambda: federation.take(usual_person(federation, people)),
        steps=partial(steps_of, batch_size=settings.batch_size, epochs=settings.local_epochs),
    )


def reptile_stages(task: Task[ReptileSettings]) -> tuple[Phase, ...]:
    """Return the single phase of federated Reptile on the DSSM."""
    return one_stage(reptile_training, task)


def maml_training(task: Task[MamlSettings], network: Network) -> Training:
    """Return how a device computes its meta-gradient, by MAML."""
    settings, federation, people = task.settings, task.federation, task.split.train
    instances, n_items = instances_of(settings), federation.n_items

    pack = partial(
        pack_tasks,
        instances=instances,
        support_share=settings.support_share,
        n_items=n_items,
        seed=settings.seed,
    )

    def examples() -> list[PackedTask]:
        (example,) = pack(federation.take(people[:1]), 0)
        return empty_tasks(example, federation.largest, instances, n_items)

    def half_of_the_steps(task: PackedTask) -> int:
        # The compiler adds up two loops, over support and query; each has about half of the steps.
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
        usual=lambda: federation.take(usual_person(federation, people)),
        steps=half_of_the_steps,
    )
