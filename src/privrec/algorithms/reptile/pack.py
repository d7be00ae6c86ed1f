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
    """One client's training instances, padded to a bucket; a pytree.

    `rows` (R,): the catalogue positions of the items that occur, ascending, padded with the size of
    the catalogue. `item` (C,): for each instance an index into `rows`. `target` (C,). `features`:
    the client's own bags, one row each. `context`: one row an instance. `size`: how many of
    the C instances are real. The order is the order of training.
    """

    rows: Leaf
    item: Leaf
    target: Leaf
    features: Bags
    context: Bags
    size: Leaf


class PackedTask(NamedTuple):
    """One client's instances; a pytree.

    The first `support` places of `client` have the support. The query is at the places from `begin`
    on, which is the next multiple of the batch size. `size` counts both; it is 0 for a client who
    has too little data for two parts.
    """

    client: PackedClient
    support: Leaf
    begin: Leaf

    @property
    def rows(self) -> Leaf:
        """The catalogue positions of the rows that the client touches, padded."""
        return self.client.rows

    @property
    def size(self) -> Leaf:
        """How many instances are real."""
        return self.client.size

    @property
    def end(self) -> Leaf:
        """The place after the last instance of the query."""
        return self.begin + self.size - self.support


_TRIES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """How interactions become instances: `negatives` sampled for each like, and labels.

    A disliked item has the target `dislike_target`; the paper's is 0. A higher target separates it
    from unseen items: the person did choose it, and it is never ranked against unseen items. With
    `ratings` the target is the rating itself and no negatives are sampled. Clients are padded to
    whole batches of `batch_size`. Without `side_information` an instance is an item and a target:
    features and context are left out.
    """

    negatives: int
    batch_size: int
    dislike_target: float = 0.0
    ratings: bool = False
    side_information: bool = True


class Pairs(NamedTuple):
    """Instances of some clients, shape (n,): the line that each belongs to, its item and target."""

    line: IntArray
    item: IntArray
    target: F32

    def take(self, places: IntArray) -> "Pairs":
        """Return the instances at these places."""
        return Pairs(self.line[places], self.item[places], self.target[places])


def pack(
    clients: Clients, instances: Instances, *, n_items: int, seed: int, round_index: int
) -> list[PackedClient]:
    """Return each client packed for one round; negatives and order are drawn from the seed."""
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
    """Return what the network sees of the clients: without side information, no features."""
    return clients if instances.side_information else replace(clients, features={}, context={})


def pairs_of(
    clients: Clients, instances: Instances, *, n_items: int, seed: int, round_index: int
) -> Pairs:
    """Return the clients' lines, then the negatives that are drawn for their likes."""
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
    """Return (`line`, `item`): for each liked line of each client, `per_positive` unseen items.

    `line` is the interaction row of the like: the negative has the same owner and context. Unseen
    means unseen *in the data given here*. For a test person that is the first half, so an item of
    the second half is as likely to be drawn as any other; excluding it would leak the test data
    into the model. Draws are uniform. A client who has seen nearly all items may get fewer
    negatives, because a draw is given up after `_TRIES` seen items.
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
    """Return the padded length for `size` instances: 2, 4, 8, … whole batches.

    >>> bucket(1, 32), bucket(65, 32), bucket(1000, 48)
    (64, 128, 1536)
    """
    batches = max(2, -(-size // batch_size))
    return batch_size << (batches - 1).bit_length()


def buckets(largest: int, instances: Instances) -> list[int]:
    """Return every bucket that clients of up to `largest` interactions can fall into."""
    top = bucket(largest * (1 + instances.negatives), instances.batch_size)
    return [top >> i for i in range((top // (2 * instances.batch_size)).bit_length())]


def dummy(example: PackedClient, size: int, n_items: int) -> PackedClient:
    """Return an empty client of another bucket, to compile that bucket before it is needed."""
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
    """Return how many item rows a client of bucket `size` may touch."""
    return min(size, n_items)


def steps_of(client: Packed, batch_size: int, epochs: int) -> int:
    """Return how many mini-batch steps the client's local training takes."""
    return epochs * -(-int(client.size) // batch_size)


def _shuffled(owner: IntArray, clients: Clients, seed: int, round_index: int) -> IntArray:
    """Return an order that groups by client and is random within each."""
    by_owner = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[by_owner], np.arange(len(clients)))
    place = np.empty_like(owner)
    place[by_owner] = np.arange(len(owner)) - starts[owner[by_owner]]
    return grouped(owner, client_words(seed, round_index, "order", clients.ids[owner], place))


def pack_one(
    clients: Clients, k: int, pairs: Pairs, *, place: IntArray, cap: int, n_items: int
) -> PackedClient:
    """Return client k with these instances at these places of `cap`; the rest is padding."""
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
    """Return the column's entries at these places of an array of zeros."""
    out = np.zeros((cap, *column.shape[1:]), column.dtype)
    out[place] = column
    return out
