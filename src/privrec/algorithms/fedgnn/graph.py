"""The graph on a device as arrays of fixed shape, and the graph attention network.

The graph has a node for the person of the device, a node for each of her items and, for each item,
nodes of some other people who like the item ("neighbours"). There are no user ids: the initial
vector of a person's node is the mean of the vectors of the items that she likes. In each round, her
device draws which likes are hidden from the graph and predicted.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field, model_validator

from privrec.algorithms.fedgnn.matching import Directory, directory_of, neighbours_of
from privrec.algorithms.settings import FederatedSettings
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import Told
from privrec.data.clients import Clients
from privrec.seeds import client_words
from privrec.settings import Count, Positive, Size, Weight
from privrec.types import F32, Array, BoolArray, CodeArray, IntArray, Key, Leaf, Params


class FedGnnSettings(FederatedSettings):
    """The settings of FedGNN: the graph attention network, and the noise on the device."""

    embedding_size: Size = 64
    """Length of an item's vector."""
    embedding_scale: Positive = 0.1
    """Standard deviation of item vectors before training."""
    hidden_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of a person's likes that are hidden from her graph and predicted in a round."""
    targets: Size = 64
    """Upper limit for the hidden likes of a person in a round."""
    graph_items: Size = 256
    """Upper limit for the items of a person's graph in a round; ranking uses all of her items."""
    negatives: Size = 200
    """Unseen items drawn for a person in a round; each hidden like is compared with all of them."""
    item_rate: Positive = 5.0
    """Factor for the server's learning rate of item vectors, relative to other parameters."""

    neighbours: Count = 5
    """Upper limit for an item's neighbours (other people who like it); 0 means no matching."""
    expand_after: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of the rounds that are played before neighbours are added to the graphs."""

    pseudo_items: Count = 100
    """Random items that a person does not have; the device sends random rows for these items."""
    local_clip: Positive = 0.1
    """The device clips every number that it sends to [-local_clip, local_clip]."""
    local_noise: Weight = 0.2
    """Scale of the Laplace noise that the device adds to every number that it sends."""

    @property
    def warm_up_rounds(self) -> int:
        """The number of rounds before the matching of neighbours; 0 without matching."""
        if not self.neighbours:
            return 0
        return min(max(1, round(self.expand_after * self.rounds)), self.rounds - 1)

    @model_validator(mode="after")
    def _matching_is_no_sum(self) -> "FedGnnSettings":
        if self.neighbours and self.mechanism != "none":
            raise ValueError(
                "`neighbours` must be 0 under noise: the matching is no sum, and no noise on sums"
                f" covers it; got {self.neighbours}"
            )
        if self.neighbours and self.rounds < 2:
            raise ValueError(
                "`rounds` must be >= 2 with neighbours, some before the matching and some after;"
                f" got {self.rounds}"
            )
        return self


class Graph(NamedTuple):
    """A person's items and their neighbours, padded to G items; a pytree.

    - `items` (G,): the item of each node, as an index into a table of item rows.
    - `liked` (G,): whether the person likes the item.
    - `often` (G,): the logarithm of the number of her interactions with the item.
    - `real` (G,): false for padding.
    - `neighbours` (G, m, d): vectors of other people who like the item.
    - `known` (G, m): whether this neighbour exists.
    """

    items: Leaf
    liked: Leaf
    often: Leaf
    real: Leaf
    neighbours: Leaf
    known: Leaf


class GraphClient(NamedTuple):
    """The training data of one person in one round; a pytree.

    - `rows` (R,): the catalogue positions of the items whose rows are sent, ascending, padded with
      the size of the catalogue.
    - `graph`: the graph of the items that are not hidden.
    - `target` (T,): the hidden likes.
    - `negative` (N,): unseen items; `negatives` of them are not padding.
    - `pseudo` (P,): pseudo items, padded with R.
    - `key` (2,): the random key of the person for this round.
    - `size`: the number of hidden likes without padding.

    Items in `graph`, `target`, `negative` and `pseudo` are indices into `rows`.
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
    """The distinct items of the person `id`.

    `ids` has their catalogue positions. `liked` says whether she likes an item. `often` is the
    logarithm of the number of her interactions with an item.
    """

    id: int
    ids: IntArray
    liked: BoolArray
    often: F32

    def take(self, chosen: IntArray) -> "Items":
        """Return the person with only the items at the indices `chosen`."""
        return Items(
            id=self.id, ids=self.ids[chosen], liked=self.liked[chosen], often=self.often[chosen]
        )


def items_of(clients: Clients, k: int) -> Items:
    """Return the items of client k, ascending; one like is enough for an item to be liked."""
    lines = slice(int(clients.offsets[k]), int(clients.offsets[k + 1]))
    ids, place, counts = np.unique(
        clients.item[lines].astype(np.int64), return_inverse=True, return_counts=True
    )
    liked = np.zeros(len(ids), np.bool_)
    liked[place[clients.liked[lines]]] = True
    return Items(
        id=int(clients.ids[k]), ids=ids, liked=liked, often=np.log(counts).astype(np.float32)
    )


def whole_graph(person: Items, size: int, directory: Directory | None, *, seed: int) -> Graph:
    """Return the graph of all items of a person; `items` are catalogue positions."""
    length = graph_bucket(len(person.ids))
    graph = _graph(person, person.ids, length, size, directory, seed)
    return graph._replace(items=_padded(person.ids, length))


def marks_of(seed: int, person: int, items: IntArray) -> IntArray:
    """Return a random number (mark) per item, by which a device recognises its own vector.

    The marks of a device differ, so that they do not show which items one person likes.
    """
    words = client_words(seed, 0, "matching mark", np.array([person]), items)
    return (words >> np.uint64(32)).astype(np.int64)


def graph_bucket(count: int) -> int:
    """Return the padded number of items for `count` items.

    >>> graph_bucket(0), graph_bucket(17), graph_bucket(300)
    (16, 64, 1024)
    """
    size = _SMALLEST
    while size < count:
        size *= _STEP
    return size


def graph_buckets(most: int) -> list[int]:
    """Return all padded numbers of items for graphs with up to `most` items.

    >>> graph_buckets(100)
    [16, 64, 256]
    """
    lengths = [graph_bucket(0)]
    while lengths[-1] < most:
        lengths.append(graph_bucket(lengths[-1] + 1))
    return lengths


def draw_others(seed: int, round_index: int, person: Items, count: int, n_items: int) -> IntArray:
    """Return up to `count` distinct items that the person does not have, drawn uniformly."""
    words = partial(client_words, seed, round_index, "others", np.array([person.id]))
    if n_items < 4 * (count + len(person.ids)):
        every = np.argsort(words(np.arange(n_items)), kind="stable")
        return every[~np.isin(every, person.ids)][:count]
    others, start = np.zeros(0, np.int64), 0
    while len(others) < count:
        drawn = words(np.arange(start, start + 2 * count))
        more = (drawn % np.uint64(n_items)).astype(np.int64)
        more = np.concatenate([others, more[~np.isin(more, person.ids)]])
        _, first = np.unique(more, return_index=True)
        others, start = more[np.sort(first)], start + 2 * count
    return others[:count]


def example(settings: FedGnnSettings, graph: int, n_items: int, neighbours: int) -> GraphClient:
    """Return an empty client with a graph of padded length `graph`, for compilation."""
    rows = row_count(settings, graph, n_items)
    shape = (graph, neighbours)
    return GraphClient(
        rows=np.full(rows, n_items, np.int32),
        graph=Graph(
            items=np.zeros(graph, np.int32),
            liked=np.zeros(graph, np.bool_),
            often=np.zeros(graph, np.float32),
            real=np.zeros(graph, np.bool_),
            neighbours=np.zeros((*shape, settings.embedding_size), np.float32),
            known=np.zeros(shape, np.bool_),
        ),
        target=np.zeros(min(graph, settings.targets), np.int32),
        negative=np.zeros(settings.negatives, np.int32),
        negatives=np.int32(0),
        pseudo=np.full(settings.pseudo_items, rows, np.int32),
        key=np.zeros(2, np.uint32),
        size=np.int32(0),
    )


def row_count(settings: FedGnnSettings, graph: int, n_items: int) -> int:
    """Return the padded number of item rows that a client with this graph length sends."""
    touched = graph + min(graph, settings.targets) + settings.negatives
    return min(touched + settings.pseudo_items, n_items)


def pack(
    settings: FedGnnSettings, n_items: int, told: Told, clients: Clients, round_index: int
) -> list[GraphClient]:
    """Return the training data of each person for one round; the seed fixes all random choices."""
    directory = directory_of(told)
    return [
        _pack_one(items_of(clients, k), settings, n_items, round_index, directory)
        for k in range(len(clients))
    ]


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
    """Return the positions of the hidden likes, and the person with the items of her graph."""
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
    """Return the graph of the person's items; `items` are indices into the sorted `rows`."""
    count, most = len(person.ids), 0 if directory is None else directory.vectors.shape[1]
    neighbours = np.zeros((length, most, size), np.float32)
    known = np.zeros((length, most), np.bool_)
    if directory is not None and count:
        asked = np.flatnonzero(person.liked)
        marks = marks_of(seed, person.id, person.ids[asked])
        neighbours[asked], known[asked] = neighbours_of(directory, person.ids[asked], marks)
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


def _padded(values: IntArray, length: int) -> CodeArray:
    padded = np.zeros(length, np.int32)
    padded[: len(values)] = values
    return padded


# --- the graph attention network: pure functions over named parameters --------------------------

_SLOPE = 0.2
"""The slope of LeakyReLU below zero, as in GAT (Veličković et al. 2018)."""
_TINY = 1e-12


def shapes(n_items: int, size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters by name. The last number of an item's row is its bias.

    `item/…` are for an item node's attention over itself, the person's node and the item's
    neighbours. `person/…` are for the person node's attention over her items: liked, then disliked.
    """
    return {
        ITEM_TABLE: (n_items, size + 1),
        "item/message": (3, size, size),
        "item/receiver": (size,),
        "item/sender": (3, size),
        "item/kind": (3,),
        "person/message": (2, size, size),
        "person/receiver": (size,),
        "person/sender": (2, size),
        "person/kind": (2,),
        "person/often": (),
        "person/gain": (2,),
    }


def fresh(key: Key, n_items: int, size: int, scale: float) -> dict[str, Array]:
    """Return the parameters before training.

    The message matrices from an item to itself and from a liked item to the person are the
    identity; all others are zero. A person's items get equal attention. So her vector is
    proportional to the sum of the vectors of the items that she likes.
    """
    params = {name: jnp.zeros(shape) for name, shape in shapes(n_items, size).items()}
    vectors = scale * jax.random.normal(key, (n_items, size))
    params[ITEM_TABLE] = jnp.concatenate([vectors, jnp.zeros((n_items, 1))], axis=1)
    params["item/message"] = params["item/message"].at[0].set(jnp.eye(size))
    params["item/kind"] = jnp.array([3.0, 0.0, 0.0])
    params["person/message"] = params["person/message"].at[0].set(jnp.eye(size))
    params["person/gain"] = jnp.array([0.0, 0.5])
    return params


def without_neighbours(params: Params) -> dict[str, Array]:
    """Return the parameters with those for neighbours reset to their initial values.

    Rounds without neighbours only add noise to these parameters.
    """
    names = ("item/message", "item/sender", "item/kind")
    return {**params, **{name: params[name].at[2].set(0.0) for name in names}}


def person_vector(params: Params, rows: Array, graph: Graph) -> Array:
    """Return the vector of the person's node, shape (d,), after both attention layers.

    `rows` (R, d + 1) is the table that `graph.items` indexes. The vector is zero without items.

        p = mean of x_i over liked items i
        y_i = Σ_j α_ij M_k(j) x_j over j in {i, p, neighbours of i}
        u = n^g · e^b · Σ_i β_i N_k(i) y_i over her n items i

    M and N are the message matrices of `item/…` and `person/…`, and k(j) is the kind of node j. α
    and β are softmax(LeakyReLU(receiver · x_i + sender_k · x_j + kind_k)). For β, the argument also
    has the term `person/often` · `graph.often`. (b, g) is `person/gain`.
    """
    items = rows[graph.items, :-1]
    likes = (graph.real & graph.liked).astype(items.dtype)
    person = likes @ items / jnp.maximum(likes.sum(), 1.0)
    nodes = item_nodes(params, items, person, graph)
    kind = jnp.where(graph.liked, 0, 1)
    senders = (nodes @ params["person/sender"].T)[jnp.arange(len(kind)), kind]
    logits = jax.nn.leaky_relu(
        params["person/receiver"] @ person
        + senders
        + params["person/kind"][kind]
        + params["person/often"] * graph.often,
        _SLOPE,
    )
    shares = masked_softmax(logits, graph.real)
    liked = (shares * graph.liked) @ nodes @ params["person/message"][0]
    disliked = (shares * ~graph.liked) @ nodes @ params["person/message"][1]
    level, power = params["person/gain"]
    count = jnp.maximum(graph.real.sum(), 1).astype(items.dtype)
    found: Array = jnp.exp(level + power * jnp.log(count)) * (liked + disliked)
    return found


def item_nodes(params: Params, items: Array, person: Array, graph: Graph) -> Array:
    """Return the vectors of the person's item nodes, shape (G, d), after the first layer."""
    size = items.shape[1]
    self_, sender, kind = params["item/message"], params["item/sender"], params["item/kind"]
    people = graph.neighbours.shape[1]
    around = jnp.concatenate(
        [
            (items @ sender[0] + kind[0])[:, None],
            jnp.broadcast_to(person @ sender[1] + kind[1], (len(items), 1)),
            graph.neighbours @ sender[2] + kind[2],
        ],
        axis=1,
    )
    logits = jax.nn.leaky_relu((items @ params["item/receiver"])[:, None] + around, _SLOPE)
    there = jnp.concatenate([jnp.ones((len(items), 2), bool), graph.known], axis=1)
    shares = masked_softmax(logits, there)
    nodes = shares[:, :1] * (items @ self_[0]) + shares[:, 1:2] * (person @ self_[1])
    if people:
        others = (shares[:, 2:, None] * graph.neighbours).sum(1)
        nodes = nodes + others @ self_[2]
    return nodes.reshape(-1, size)


def masked_softmax(logits: Array, there: Array) -> Array:
    """Return the softmax over the entries in the mask `there` of the last axis, and 0 elsewhere."""
    highest = jnp.max(jnp.where(there, logits, -jnp.inf), axis=-1, keepdims=True)
    highest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(highest), highest, 0.0))
    weights = jnp.where(there, jnp.exp(jnp.where(there, logits - highest, 0.0)), 0.0)
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), _TINY)


def scores(person: Array, rows: Array) -> Array:
    """Return the score of each item row, shape (R,): person · item vector + item bias."""
    return rows[:, :-1] @ person + rows[:, -1]
