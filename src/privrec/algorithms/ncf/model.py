"""NeuMF: a product of vectors (GMF) and a perceptron over vectors (MLP), added at the end.

    score = out_g · (p ⊙ q) + out_m · x_N + b
    x_1 = relu(p' W_u + q' W_v + b_1),   x_i = relu(x_{i-1} W_i + b_i)

p, p' are a person's two vectors and q, q' an item's. The first layer is stored as one block for
people and one for items, which is the same as joining p' and q'.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from privrec.types import Array, Key, Leaf, Params


class Person(NamedTuple):
    """The two vectors of people, shape (…, d) each; a pytree."""

    gmf: Array
    mlp: Array


class Items(NamedTuple):
    """The items' part of a score: q, shape (…, d), and q' W_v + b_1, shape (…, h_1)."""

    gmf: Array
    first: Array


Shapes = dict[str, tuple[int, ...]]


def shapes_of(n_items: int, embedding_size: int, hidden: tuple[int, ...]) -> Shapes:
    """Return the shape of each parameter by name."""
    shapes: Shapes = {
        "ncf/gmf/item": (n_items, embedding_size),
        "ncf/mlp/item": (n_items, embedding_size),
        "ncf/start/gmf": (embedding_size,),
        "ncf/start/mlp": (embedding_size,),
        "ncf/mlp/0/user": (embedding_size, hidden[0]),
        "ncf/mlp/0/item": (embedding_size, hidden[0]),
        "ncf/mlp/0/bias": (hidden[0],),
        "ncf/out/gmf": (embedding_size,),
        "ncf/out/mlp": (hidden[-1],),
        "ncf/out/bias": (),
    }
    for i in range(1, len(hidden)):
        shapes[f"ncf/mlp/{i}/weight"] = (hidden[i - 1], hidden[i])
        shapes[f"ncf/mlp/{i}/bias"] = (hidden[i],)
    return shapes


def fresh(
    key: Key, n_items: int, embedding_size: int, hidden: tuple[int, ...], scale: float
) -> dict[str, Array]:
    """Return the parameters before training.

    Vectors of items are normal with standard deviation `scale`; `out/gmf` is all ones, so that the
    GMF starts as an inner product; biases and the start of a new person are zero; layers are He's.
    """
    shapes = shapes_of(n_items, embedding_size, hidden)
    params = {}
    for name, place in zip(sorted(shapes), jax.random.split(key, len(shapes)), strict=True):
        shape = shapes[name]
        if name == "ncf/out/gmf":
            params[name] = jnp.ones(shape)
        elif name.endswith("bias") or name.startswith("ncf/start/"):
            params[name] = jnp.zeros(shape)
        elif name in ("ncf/gmf/item", "ncf/mlp/item"):
            params[name] = scale * jax.random.normal(place, shape)
        else:
            joined = 2 * shape[0] if name.startswith("ncf/mlp/0/") else shape[0]
            params[name] = jnp.sqrt(2.0 / joined) * jax.random.normal(place, shape)
    return params


def start_of(params: Params) -> Person:
    """Return the vectors that a new person starts from."""
    return Person(params["ncf/start/gmf"], params["ncf/start/mlp"])


def items_of(params: Params, item: Leaf) -> Items:
    """Return the items' part of a score, for the items at these positions."""
    first = params["ncf/mlp/item"][item] @ params["ncf/mlp/0/item"] + params["ncf/mlp/0/bias"]
    return Items(params["ncf/gmf/item"][item], first)


def scores(params: Params, person: Person, items: Items) -> Array:
    """Return the scores of pairs, shape (…); people's vectors broadcast over items'."""
    x = jax.nn.relu(person.mlp @ params["ncf/mlp/0/user"] + items.first)
    i = 1
    while f"ncf/mlp/{i}/weight" in params:
        x = jax.nn.relu(x @ params[f"ncf/mlp/{i}/weight"] + params[f"ncf/mlp/{i}/bias"])
        i += 1
    product = (person.gmf * items.gmf) @ params["ncf/out/gmf"]
    return product + x @ params["ncf/out/mlp"] + params["ncf/out/bias"]
