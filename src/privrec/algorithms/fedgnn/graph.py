"""The graph attention network: pure functions over named parameters.

The graph of a device has its person's node, her items' nodes, and for each item the nodes of some
other people who like it. There is no user id: a person's node begins as the mean of the vectors of
the items that she likes.
"""

import jax
import jax.numpy as jnp

from privrec.algorithms.fedgnn.pack import Graph
from privrec.core.model import ITEM_TABLE
from privrec.types import Array, Key, Params

_SLOPE = 0.2
"""The slope of LeakyReLU below zero, as in GAT (Veličković et al. 2018)."""
_TINY = 1e-12


def shapes(n_items: int, size: int) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the parameters. The last column of an item's row is its bias.

    `item/…` is the attention of an item's node over itself, its person and its neighbours;
    `person/…` that of the person's node over the items that she likes and those that she dislikes.
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
    """Return the parameters before training: a person is the mean of the items that she likes.

    The messages of an item to itself and of a like to the person are the identity, all other
    messages are zero, and all items of a person get the same attention.
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
    """Return the parameters as `fresh` has them for neighbours.

    Rounds without neighbours use none of these, and so have only added noise to them.
    """
    names = ("item/message", "item/sender", "item/kind")
    return {**params, **{name: params[name].at[2].set(0.0) for name in names}}


def person_vector(params: Params, rows: Array, graph: Graph) -> Array:
    """Return the person's node (d,) after both attentions; zero for a graph without items.

    `rows` (R, d + 1) is the table that `graph.items` points into.

        p = mean of x_i over liked items i
        y_i = Σ_j α_ij M_k(j) x_j over j in {i, p, neighbours of i}
        u = n^g · e^b · Σ_i β_i N_k(i) y_i over her n items i

    α and β are softmax(LeakyReLU(receiver · x_i + sender_k · x_j + kind_k)); β also has `often`
    times the log of how often she used the item.
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
    """Return the nodes of the person's items (G, d) after the attention over what is around them.

    An item attends over itself, over its person's node and over its neighbours' vectors.
    """
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
    """Return the softmax over the last axis of what is there; zeros where nothing is."""
    highest = jnp.max(jnp.where(there, logits, -jnp.inf), axis=-1, keepdims=True)
    highest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(highest), highest, 0.0))
    weights = jnp.where(there, jnp.exp(jnp.where(there, logits - highest, 0.0)), 0.0)
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), _TINY)


def scores(person: Array, rows: Array) -> Array:
    """Return the score of each item row (R,): ⟨person, item⟩ + the item's bias."""
    return rows[:, :-1] @ person + rows[:, -1]
