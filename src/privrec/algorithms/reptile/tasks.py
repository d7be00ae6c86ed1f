"""A client's data in two parts, as MAML takes it: support to adapt on, query to be judged by."""

import numpy as np

from privrec.algorithms.reptile.pack import (
    Instances,
    bucket,
    dummy,
    grouped,
    pack_one,
    pairs_of,
    seen,
)
from privrec.algorithms.reptile.packed import PackedTask
from privrec.data.clients import Clients
from privrec.seeds import client_words
from privrec.types import BoolArray


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
