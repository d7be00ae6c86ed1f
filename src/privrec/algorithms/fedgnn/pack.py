"""A person's data as fixed-shape arrays for compiled code, drawn on her device.

One person's graph as arrays of fixed shape, as compiled code takes it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from privrec.algorithms.fedgnn.matching import Directory, neighbours_of
from privrec.algorithms.fedgnn.settings import FedGnnSettings
from privrec.data.clients import Clients
from privrec.seeds import client_words
from privrec.types import F32, BoolArray, IntArray, Leaf


class Graph(NamedTuple):
    """A person's items and their neighbours, padded to G items; a pytree.

    `items` (G,): for each node an index into a table of item rows. `liked` (G,): whether she likes
    it. `often` (G,): log of how often she used it. `real` (G,): false for padding. `neighbours`
    (G, m, d): vectors of other people who like the item, `known` (G, m) says which are there.
    """

    items: Leaf
    liked: Leaf
    often: Leaf
    real: Leaf
    neighbours: Leaf
    known: Leaf


class GraphClient(NamedTuple):
    """What one person trains on in one round; a pytree.

    `rows` (R,): the catalogue positions of the items whose rows are sent, ascending, padded with
    the size of the catalogue. `graph` has the items that are not hidden; `target` (T,) the hidden
    likes and `negative` (N,) unseen items, all as indices into `rows`. `negatives`: how many of the
    N are real. `pseudo` (P,): rows that she did not touch, as indices into `rows`, padded with R.
    `key` (2,): her random numbers of this round. `size`: how many targets are real.
    """

    rows: Leaf
    graph: Graph
    target: Leaf
    negative: Leaf
    negatives: Leaf
    pseudo: Leaf
    key: Leaf
    size: Leaf


_SMALLEST, _STEP = 16, 4
"""Graphs are padded to 16, 64, 256, … items. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """The different items of one person: their positions, whether liked, and log of how often."""

    id: int
    ids: IntArray
    liked: BoolArray
    often: F32

    def take(self, chosen: IntArray) -> "Items":
        """Return the person with only these of her items."""
        return Items(
            id=self.id, ids=self.ids[chosen], liked=self.liked[chosen], often=self.often[chosen]
        )


def items_of(clients: Clients, k: int) -> Items:
    """Return the items of client k, ascending. An item counts as liked if any line likes it."""
    lines = slice(int(clients.offsets[k]), int(clients.offsets[k + 1]))
    ids, place, counts = np.unique(
        clients.item[lines].astype(np.int64), return_inverse=True, return_counts=True
    )
    liked = np.zeros(len(ids), np.bool_)
    liked[place[clients.liked[lines]]] = True
    return Items(
        id=int(clients.ids[k]), ids=ids, liked=liked, often=np.log(counts).astype(np.float32)
    )


def pack(
    clients: Clients,
    settings: FedGnnSettings,
    *,
    n_items: int,
    round_index: int,
    directory: Directory | None,
) -> list[GraphClient]:
    """Return each person packed for one round: what is hidden and drawn follows from the seed."""
    return [
        _pack_one(items_of(clients, k), settings, n_items, round_index, directory)
        for k in range(len(clients))
    ]


def whole_graph(person: Items, size: int, directory: Directory | None, *, seed: int) -> Graph:
    """Return the graph of all items of a person, pointing into the catalogue."""
    length = graph_bucket(len(person.ids))
    graph = _graph(person, person.ids, length, size, directory, seed)
    return graph._replace(items=_padded(person.ids, length))


def marks_of(seed: int, person: int, items: IntArray) -> IntArray:
    """Return for each item the number by which a device knows its own vector again.

    It differs from item to item, so that marks do not show which items one person likes.
    """
    words = client_words(seed, 0, "matching mark", np.array([person]), items)
    return (words >> np.uint64(32)).astype(np.int64)


def graph_bucket(count: int) -> int:
    """Return the padded length for `count` items.

    >>> graph_bucket(0), graph_bucket(17), graph_bucket(300)
    (16, 64, 1024)
    """
    size = _SMALLEST
    while size < count:
        size *= _STEP
    return size


def graph_buckets(most: int) -> list[int]:
    """Return every padded length for up to `most` items.

    >>> graph_buckets(100)
    [16, 64, 256]
    """
    found = [graph_bucket(0)]
    while found[-1] < most:
        found.append(graph_bucket(found[-1] + 1))
    return found


def draw_others(seed: int, round_index: int, person: Items, count: int, n_items: int) -> IntArray:
    """Return up to `count` different items that the person does not have, uniformly."""

    def words(start: int, size: int) -> IntArray:
        found = client_words(
            seed, round_index, "others", np.array([person.id]), np.arange(start, start + size)
        )
        return found.astype(np.int64)

    if n_items < 4 * (count + len(person.ids)):
        every = np.argsort(words(0, n_items).view(np.uint64), kind="stable")
        return every[~np.isin(every, person.ids)][:count]
    found, start = np.zeros(0, np.int64), 0
    while len(found) < count:
        more = (words(start, 2 * count).view(np.uint64) % np.uint64(n_items)).astype(np.int64)
        more = np.concatenate([found, more[~np.isin(more, person.ids)]])
        _, first = np.unique(more, return_index=True)
        found, start = more[np.sort(first)], start + 2 * count
    return found[:count]


def example(settings: FedGnnSettings, graph: int, n_items: int, neighbours: int) -> GraphClient:
    """Return an empty client of one shape, to compile that shape before it is needed."""
    nobody = Items(
        id=0,
        ids=np.zeros(0, np.int64),
        liked=np.zeros(0, np.bool_),
        often=np.zeros(0, np.float32),
    )
    targets = min(graph, settings.targets)
    rows = row_count(settings, graph, n_items)
    size = settings.embedding_size
    nodes = _graph(nobody, nobody.ids, graph, size, None, settings.seed)
    return GraphClient(
        rows=np.full(rows, n_items, np.int32),
        graph=nodes._replace(
            neighbours=np.zeros((graph, neighbours, size), np.float32),
            known=np.zeros((graph, neighbours), np.bool_),
        ),
        target=np.zeros(targets, np.int32),
        negative=np.zeros(settings.negatives, np.int32),
        negatives=np.int32(0),
        pseudo=np.full(settings.pseudo_items, rows, np.int32),
        key=np.zeros(2, np.uint32),
        size=np.int32(0),
    )


def row_count(settings: FedGnnSettings, graph: int, n_items: int) -> int:
    """Return how many item rows a client with a graph of this length may send."""
    touched = graph + min(graph, settings.targets) + settings.negatives
    return min(touched + settings.pseudo_items, n_items)


def _pack_one(
    person: Items,
    settings: FedGnnSettings,
    n_items: int,
    round_index: int,
    directory: Directory | None,
) -> GraphClient:
    hidden, shown = _split(person, settings, round_index)
    seed, wanted = settings.seed, settings.negatives + settings.pseudo_items
    others = draw_others(seed, round_index, person, wanted, n_items)
    unseen = others[: settings.negatives]
    length = graph_bucket(max(len(shown.ids), len(hidden)))
    blank = example(settings, length, n_items, 0)
    real = np.unique(np.concatenate([shown.ids, hidden, others]))
    rows, pseudo = np.array(blank.rows), np.array(blank.pseudo)
    rows[: len(real)] = real
    cover = others[settings.negatives :]
    pseudo[: len(cover)] = np.searchsorted(real, cover)
    word = client_words(seed, round_index, "local noise", np.array([person.id]), np.array([0]))
    return GraphClient(
        rows=rows,
        graph=_graph(shown, real, length, settings.embedding_size, directory, seed),
        target=_padded(np.searchsorted(real, hidden), len(blank.target)),
        negative=_padded(np.searchsorted(real, unseen), len(blank.negative)),
        negatives=np.int32(len(unseen)),
        pseudo=pseudo,
        key=word.view(np.uint32),
        size=np.int32(len(hidden)),
    )


def _split(person: Items, settings: FedGnnSettings, round_index: int) -> tuple[IntArray, Items]:
    """Return the hidden likes of a round, and the person as her graph shows her."""
    words = client_words(settings.seed, round_index, "hidden", np.array([person.id]), person.ids)
    order = np.argsort(words, kind="stable")
    likes, others = order[person.liked[order]], order[~person.liked[order]]
    count = min(int(np.ceil(settings.hidden_share * len(likes))), settings.targets)
    left = int(np.floor((1 - settings.hidden_share) * len(others)))
    shown = np.concatenate([likes[count:], others[:left]])[: settings.graph_items]
    return person.ids[likes[:count]], person.take(shown)


def _graph(
    person: Items,
    rows: IntArray,
    length: int,
    size: int,
    directory: Directory | None,
    seed: int,
) -> Graph:
    """Return the graph of the person's items, as indices into the sorted `rows`."""
    count, most = len(person.ids), 0 if directory is None else directory.vectors.shape[1]
    neighbours = np.zeros((length, most, size), np.float32)
    known = np.zeros((length, most), np.bool_)
    if directory is not None and count:
        asked = np.flatnonzero(person.liked)
        found = neighbours_of(
            directory, person.ids[asked], marks_of(seed, person.id, person.ids[asked])
        )
        neighbours[asked], known[asked] = found
    often = np.zeros(length, np.float32)
    often[:count] = person.often
    liked, real = np.zeros(length, np.bool_), np.arange(length) < count
    liked[:count] = person.liked
    return Graph(
        items=_padded(np.searchsorted(rows, person.ids), length),
        liked=liked,
        often=often,
        real=real,
        neighbours=neighbours,
        known=known,
    )


def _padded(values: IntArray, length: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    found = np.zeros(length, np.int32)
    found[: len(values)] = values
    return found
