"""The DSSM with an MLP head (spec section 2, the paper's equation for x_0 … Y), for any schema.

    u = act([user and context vectors] W_u + b_u),  v = act([item id and features] W_v + b_v)
    x_1 = act(u W_1u + v W_1v + b_1),  x_i = act(x_{i-1} W_i + b_i),  score = x_N w + b

The DSSM has no user ids: features and context describe a user. W_u is stored as two matrices, for
user features and for context, and W_1 as W_1u and W_1v. So the part that is equal for a whole batch
is computed only once; the result is the same as with concatenation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import jax
import jax.numpy as jnp

from privrec.algorithms.reptile.pack import Instances, PackedClient, buckets, dummy, pack
from privrec.algorithms.reptile.settings import DssmSettings
from privrec.core.model import (
    ITEM_TABLE,
    Recommender,
    TableRows,
    Weights,
    implicit_loss,
    pooled,
    rating_loss,
)
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.schema import Bags, Schema
from privrec.seeds import key
from privrec.types import Activation, Array, IntArray, Key, Params, Target

ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}


@lru_cache(maxsize=16)
def dssm(
    schema: Schema,
    n_items: int,
    *,
    embedding_size: int = 64,
    tower_size: int = 64,
    hidden: tuple[int, ...] = (64, 64, 64, 64),
    activation: Activation = "relu",
    target: Target = "implicit",
    embedding_scale: float = 0.1,
) -> Recommender:
    """Return the DSSM for a schema; `target` selects the cross-entropy or the squared error."""
    act = ACTIVATIONS[activation]
    user_tables = [feature.table for feature in schema.of("user")]
    context_tables = [feature.table for feature in schema.of("context")]
    item_tables = [ITEM_TABLE, *(feature.table for feature in schema.of("item"))]

    def init(key: Key) -> dict[str, Array]:
        keys = iter(jax.random.split(key, 2 * len(schema.features) + len(hidden) + 8))
        tables = {ITEM_TABLE: n_items, **{f.table: f.rows for f in schema.features}}
        size, scale = embedding_size, embedding_scale
        params = {k: scale * jax.random.normal(next(keys), (n, size)) for k, n in tables.items()}
        if user_tables:
            params["user/in"] = _he(next(keys), len(user_tables) * embedding_size, tower_size)
        if context_tables:
            params["context/in"] = _he(next(keys), len(context_tables) * embedding_size, tower_size)
        params["user/bias"] = jnp.full((tower_size,), 0.1, jnp.float32)
        params["item/in"] = _he(next(keys), len(item_tables) * embedding_size, tower_size)
        params["item/bias"] = jnp.zeros((tower_size,))
        first = _he(next(keys), 2 * tower_size, hidden[0])
        params["mlp/0/user"], params["mlp/0/item"] = first[:tower_size], first[tower_size:]
        params["mlp/0/bias"] = jnp.zeros((hidden[0],))
        for i in range(1, len(hidden)):
            params[f"mlp/{i}/weight"] = _he(next(keys), hidden[i - 1], hidden[i])
            params[f"mlp/{i}/bias"] = jnp.zeros((hidden[i],))
        params["out/weight"] = _he(next(keys), hidden[-1], 1)
        params["out/bias"] = jnp.zeros((1,))
        return params

    def user(dense: Params, rows: TableRows, weights: Weights) -> Array:
        total = dense["user/bias"][None, :]
        if user_tables:
            total = total + _joined(user_tables, rows, weights) @ dense["user/in"]
        if context_tables:
            total = total + _joined(context_tables, rows, weights) @ dense["context/in"]
        return act(total) @ dense["mlp/0/user"]

    def item(dense: Params, rows: TableRows, weights: Weights) -> Array:
        total = _joined(item_tables, rows, weights) @ dense["item/in"] + dense["item/bias"]
        return act(total) @ dense["mlp/0/item"] + dense["mlp/0/bias"]

    def head(dense: Params, user_side: Array, item_side: Array) -> Array:
        x = act(user_side + item_side)
        for i in range(1, len(hidden)):
            x = act(x @ dense[f"mlp/{i}/weight"] + dense[f"mlp/{i}/bias"])
        return (x @ dense["out/weight"] + dense["out/bias"])[:, 0]

    loss = implicit_loss if target == "implicit" else rating_loss
    return Recommender(init=init, user=user, item=item, head=head, loss=loss)


def _joined(tables: Sequence[str], rows: TableRows, weights: Weights) -> Array:
    return jnp.concatenate([pooled(rows[name], weights[name]) for name in tables], axis=-1)


def _he(key: Key, fan_in: int, fan_out: int) -> Array:
    return jax.random.normal(key, (fan_in, fan_out)) * jnp.sqrt(2.0 / fan_in)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """The DSSM of a run.

    `items` are the item features that the DSSM uses. `fresh()` returns the parameters before
    training. `pack(people, round_index)` returns the training data of each person as arrays.
    """

    recommender: Recommender
    items: Bags
    fresh: Callable[[], dict[str, jax.Array]]
    pack: Callable[[Clients, int], list[PackedClient]]


def network_of(settings: DssmSettings, catalogue: Catalogue) -> Network:
    """Return the DSSM for these settings and this catalogue."""
    recommender, instances = recommender_of(settings, catalogue), instances_of(settings)
    return Network(
        recommender=recommender,
        items=known(settings, catalogue).items,
        fresh=partial(fresh, recommender, settings.seed),
        pack=lambda people, round_index: pack(
            people,
            instances,
            n_items=catalogue.n_items,
            seed=settings.seed,
            round_index=round_index,
        ),
    )


def recommender_of(settings: DssmSettings, catalogue: Catalogue) -> Recommender:
    """Return the functions of the DSSM for these settings and this catalogue."""
    return dssm(
        known(settings, catalogue).schema,
        catalogue.n_items,
        embedding_size=settings.embedding_size,
        tower_size=settings.tower_size,
        hidden=settings.hidden,
        activation=settings.activation,
        target=settings.target,
        embedding_scale=settings.embedding_scale,
    )


def known(settings: DssmSettings, catalogue: Catalogue) -> Catalogue:
    """Return the catalogue, without features if the settings have no side information."""
    if settings.side_information:
        return catalogue
    return replace(catalogue, schema=Schema(features=()), items={})


def fresh(recommender: Recommender, seed: int) -> dict[str, jax.Array]:
    """Return the parameters before training."""
    params: dict[str, jax.Array] = jax.jit(recommender.init)(key(seed, 0, "init"))
    return params


def instances_of(settings: DssmSettings) -> Instances:
    """Return the rules that make training instances from a person's interactions."""
    return Instances(
        negatives=settings.negatives,
        batch_size=settings.batch_size,
        dislike_target=settings.dislike_target,
        ratings=settings.target == "rating",
        side_information=settings.side_information,
    )


def empty_pairs(
    network: Network, settings: DssmSettings, federation: Federation, people: IntArray
) -> list[PackedClient]:
    """Return one empty client for each array shape that clients can have, for compilation."""
    (example,) = network.pack(federation.take(people[:1]), 0)
    sizes = buckets(federation.largest, instances_of(settings))
    return [dummy(example, size, federation.n_items) for size in sizes]
