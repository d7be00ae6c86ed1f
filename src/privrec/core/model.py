"""The interface of a recommender model: pure functions over named parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from privrec.data.schema import Bag, Bags
from privrec.types import Array, Key, Params

ITEM_TABLE = "embed/item"
"""The name of the table with one row per item. A client changes and sends only some rows."""

TableRows = Mapping[str, Array]
"""Table rows for a batch of n pairs, by table name: shape (n or 1, width, embedding size)."""

Weights = Mapping[str, Array]
"""The weights of these table rows, by table name: shape (n or 1, width)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommender:
    """A model as functions; `dense` are the parameters that are not tables.

    - `init(key)`: returns the parameters before training.
    - `user(dense, rows, weights)`: returns the hidden user vectors, shape (n, h). The shape is (1,
      h) if all pairs have the same user vector.
    - `item(dense, rows, weights)`: returns the hidden item vectors, shape (n, h).
    - `head(dense, user, item)`: returns the scores of n pairs from these vectors, shape (n,).
    - `loss(score, target)`: returns the loss of each pair, shape (n,).
    """

    init: Callable[[Key], dict[str, Array]]
    user: Callable[[Params, TableRows, Weights], Array]
    item: Callable[[Params, TableRows, Weights], Array]
    head: Callable[[Params, Array, Array], Array]
    loss: Callable[[Array, Array], Array]


def dense_of(params: Params) -> dict[str, Array]:
    """Return the parameters that are not embedding tables."""
    return {name: value for name, value in params.items() if not name.startswith("embed/")}


def look_up(tables: Params, bags: Bags) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the table rows of encoded features and the weights of the rows, by table name."""
    rows = {name: tables[name][bag.codes] for name, bag in bags.items()}
    return rows, {name: bag.weights for name, bag in bags.items()}


def score_pairs(
    recommender: Recommender, dense: Params, rows: TableRows, weights: Weights
) -> Array:
    """Return the scores, shape (n,), of n pairs of a user and an item."""
    user = recommender.user(dense, rows, weights)
    return recommender.head(dense, user, recommender.item(dense, rows, weights))


def pooled(rows: Array, weights: Array) -> Array:
    """Return the weighted sum of rows over the width: (n or 1, width, d), (n, width) -> (n, d)."""
    if len(rows) == 1:
        return weights @ rows[0]
    return (rows * weights[..., None]).sum(-2)


def multi_hot(bag: Bag, n_rows: int) -> Array:
    """Return the weights of a bag as a multi-hot matrix over a small table, shape (n, n_rows).

    With this matrix, pooling is one matrix product, without gather and scatter.
    """
    place = jnp.arange(len(bag.codes))[:, None]
    return jnp.zeros((len(bag.codes), n_rows)).at[place, bag.codes].add(bag.weights)


def implicit_loss(score: Array, target: Array) -> Array:
    """Return the cross-entropy between sigmoid(score) and a target in [0, 1].

    JAX's gradient of the usual form max(s, 0) + log1p(exp(-|s|)) is wrong at s = 0, so the code
    uses softplus.
    """
    return jax.nn.softplus(score) - target * score


def rating_loss(score: Array, target: Array) -> Array:
    """Return half the squared difference between the score and a rating."""
    return 0.5 * (score - target) ** 2
