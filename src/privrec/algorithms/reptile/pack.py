"""A client's training data as arrays of fixed shape, drawn and shuffled on its device."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from privrec.core.training import Packed
from privrec.data.clients import Clients, grouped, is_in
from privrec.data.schema import Bag, Bags
from privrec.seeds import client_words
from privrec.types import F32, IntArray, Leaf


class PackedClient(NamedTuple):
    """One client's training instances in the order of training, padded to C instances; a pytree.

    - `rows` (R,): the catalogue positions of the client's items, ascending, padded with the size
      of the catalogue.
    - `item` (C,): the item of each instance, as an index into `rows`.
    - `target` (C,): the target of each instance.
    - `features`: the encoded features of the person, one row per feature.
    - `context`: the encoded context, one row per instance.
    - `size`: the number of instances without padding.
    """

    rows: Leaf
    item: Leaf
    target: Leaf
    features: Bags
    context: Bags
    size: Leaf


class PackedTask(NamedTuple):
    """One client's instances in two parts, support and query; a pytree.

    The first `support` instances of `client` are the support. The query starts at index `begin`,
    the next multiple of the batch size. `size` is the number of instances in both parts. It is 0 if
    the client has too little data for two parts.
    """

    client: PackedClient
    support: Leaf
    begin: Leaf

    @property
    def rows(self) -> Leaf:
        """The catalogue positions of the client's items, padded."""
        return self.client.rows

    @property
    def size(self) -> Leaf:
        """The number of instances without padding."""
        return self.client.size

    @property
    def end(self) -> Leaf:
        """The index after the last instance of the query."""
        return self.begin + self.size - self.support


_TRIES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """The rules that make training instances from interactions.

    `negatives` unseen items are drawn for each like. A disliked item has the target
    `dislike_target`, which is 0 in the paper. A higher target separates disliked items from unseen
    items, against which they are never ranked. With `ratings`, the target is the rating, and no
    negatives are drawn. Clients are padded to whole batches of `batch_size`.
    """

    negatives: int
    batch_size: int
    dislike_target: float = 0.0
    ratings: bool = False
    side_information: bool = True


class Pairs(NamedTuple):
    """n instances of some clients, shape (n,) each: index of the interaction, item and target."""

    line: IntArray
    item: IntArray
    target: F32

    def take(self, places: IntArray) -> "Pairs":
        """Return the instances at these indices."""
        return Pairs(self.line[places], self.item[places], self.target[places])


def pack(
    clients: Clients, instances: Instances, *, n_items: int, seed: int, round_index: int
) -> list[PackedClient]:
    """Return the padded training instances of each client for one round.

    The seed determines the negatives and the random order of the instances.
    """
    clients = seen(clients, instances)
    pairs = pairs_of(clients, instances, n_items=n_items, seed=seed, round_index=round_index)
    owner = clients.owner[pairs.line]
    pairs = pairs.take(_shuffled(owner, clients, seed, round_index))
    sizes = np.bincount(owner, minlength=len(clients))
    ends = np.cumsum(sizes)
    return [
        pack_one(
            clients,
            k,
            pairs.take(np.arange(end - size, end)),
            place=np.arange(size),
            cap=bucket(size, instances.batch_size),
            n_items=n_items,
        )
        for k, (end, size) in enumerate(zip(ends.tolist(), sizes.tolist(), strict=True))
    ]


def seen(clients: Clients, instances: Instances) -> Clients:
    """Return the clients, without features and context if there is no side information."""
    return clients if instances.side_information else replace(clients, features={}, context={})


def pairs_of(
    clients: Clients, instances: Instances, *, n_items: int, seed: int, round_index: int
) -> Pairs:
    """Return one instance per interaction, then the negatives that are drawn for likes."""
    line, drawn = np.arange(len(clients.item)), clients.item.astype(np.int64)
    labels = np.where(clients.liked, 1.0, instances.dislike_target).astype(np.float32)
    target = clients.value if instances.ratings else labels
    if instances.negatives and not instances.ratings:
        beside, negative = draw_negatives(
            clients,
            n_items=n_items,
            per_positive=instances.negatives,
            seed=seed,
            round_index=round_index,
        )
        line = np.concatenate([line, beside])
        drawn = np.concatenate([drawn, negative])
        target = np.concatenate([target, np.zeros(len(negative), np.float32)])
    return Pairs(line, drawn, target)


def draw_negatives(
    clients: Clients, *, n_items: int, per_positive: int, seed: int, round_index: int
) -> tuple[IntArray, IntArray]:
    """Return (`line`, `item`): `per_positive` unseen items for each like of each client.

    `line` is the index of the like, whose person and context the negative shares. Items are drawn
    uniformly. An item is unseen if it does not occur in `clients`. The held-out items of a test
    person do not occur there, so they can be drawn; excluding them would leak test data into the
    model. If `_TRIES` draws in a row give seen items, the negative is left out.
    """
    line = np.repeat(np.flatnonzero(clients.liked), per_positive)
    owner = clients.owner
    known = np.sort(owner * n_items + clients.item)
    drawn = np.zeros(len(line), np.int64)
    open_ = np.arange(len(line))
    begin = np.searchsorted(owner[line], np.arange(len(clients)))
    number = np.arange(len(line)) - begin[owner[line]]
    for attempt in range(_TRIES):
        words = client_words(
            seed,
            round_index,
            "negatives",
            clients.ids[owner[line[open_]]],
            number[open_] * _TRIES + attempt,
        )
        drawn[open_] = (words % np.uint64(n_items)).astype(np.int64)
        open_ = open_[is_in(owner[line[open_]] * n_items + drawn[open_], known)]
        if len(open_) == 0:
            break
    kept = np.ones(len(line), np.bool_)
    kept[open_] = False
    return line[kept], drawn[kept]


def bucket(size: int, batch_size: int) -> int:
    """Return the padded number of instances for `size` instances: 2, 4, 8, … whole batches.

    >>> bucket(1, 32), bucket(65, 32), bucket(1000, 48)
    (64, 128, 1536)
    """
    batches = max(2, -(-size // batch_size))
    return batch_size << (batches - 1).bit_length()


def buckets(largest: int, instances: Instances) -> list[int]:
    """Return all padded numbers of instances for clients with up to `largest` interactions."""
    top = bucket(largest * (1 + instances.negatives), instances.batch_size)
    return [top >> i for i in range((top // (2 * instances.batch_size)).bit_length())]


def dummy(example: PackedClient, size: int, n_items: int) -> PackedClient:
    """Return an empty client padded to `size` instances, to compile code for this shape."""
    return example._replace(
        rows=np.full(row_bucket(size, n_items), n_items, np.int32),
        item=np.zeros(size, np.int32),
        target=np.zeros(size, np.float32),
        context={
            name: Bag(*(np.zeros((size, *part.shape[1:]), part.dtype) for part in bag))
            for name, bag in example.context.items()
        },
        size=np.int32(0),
    )


def row_bucket(size: int, n_items: int) -> int:
    """Return the padded number of item rows of a client that is padded to `size` instances."""
    return min(size, n_items)


def steps_of(client: Packed, batch_size: int, epochs: int) -> int:
    """Return the number of mini-batch steps in the client's local training."""
    return epochs * -(-int(client.size) // batch_size)


def _shuffled(owner: IntArray, clients: Clients, seed: int, round_index: int) -> IntArray:
    """Return an order of the instances, grouped by client and random within each client."""
    by_owner = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[by_owner], np.arange(len(clients)))
    place = np.empty_like(owner)
    place[by_owner] = np.arange(len(owner)) - starts[owner[by_owner]]
    return grouped(owner, client_words(seed, round_index, "order", clients.ids[owner], place))


def pack_one(
    clients: Clients, k: int, pairs: Pairs, *, place: IntArray, cap: int, n_items: int
) -> PackedClient:
    """Return client k padded to `cap` instances, with `pairs` at the indices `place`."""
    rows, index = np.unique(pairs.item, return_inverse=True)
    padded_rows = np.full(row_bucket(cap, n_items), n_items, np.int32)
    padded_rows[: len(rows)] = rows
    context = {name: bag.take(pairs.line) for name, bag in clients.context.items()}
    return PackedClient(
        rows=padded_rows,
        item=_padded(index.astype(np.int32), place, cap),
        target=_padded(pairs.target, place, cap),
        features={name: bag.take(slice(k, k + 1)) for name, bag in clients.features.items()},
        context={
            name: Bag(_padded(bag.codes, place, cap), _padded(bag.weights, place, cap))
            for name, bag in context.items()
        },
        size=np.int32(len(pairs.item)),
    )


def _padded(column: Leaf, place: IntArray, cap: int) -> Leaf:
    """Return an array of length `cap` with `column` at the indices `place`, and else zeros."""
    out = np.zeros((cap, *column.shape[1:]), column.dtype)
    out[place] = column
    return out
