"""Local training of stage two: the DSSM's loss and the self-supervised loss on one item table.

Without stage one, the item vectors start from public item features.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from privrec.algorithms.reptile.pack import PackedClient
from privrec.algorithms.two_stage.views import SequenceClient
from privrec.core.model import ITEM_TABLE
from privrec.core.training import LocalResult, LocalTrain
from privrec.data.federation import Federation
from privrec.data.schema import Bags
from privrec.types import Array, Leaf, Params


class JointClient(NamedTuple):
    """One client's instances and views; the items of both are indices into the same `rows`."""

    rows: Leaf
    pairs: PackedClient
    sequence: SequenceClient
    size: Leaf


def join(pairs: PackedClient, sequence: SequenceClient, n_items: int) -> JointClient:
    """Return a client's instances and views, with indices into one array of rows.

    Liked items in the views are also in the instances, so only the negatives of the views (`pool`)
    can add rows. The array is padded to the largest possible number of rows.
    """
    rows = np.full(len(pairs.rows) + len(sequence.pool), n_items, np.int32)
    both = np.union1d(pairs.rows, sequence.rows)
    both = both[both < n_items]
    rows[: len(both)] = both

    def place(old: Leaf, index: Leaf) -> Leaf:
        # The values of padding have no effect, but their indices must be inside the array.
        position = np.searchsorted(both, old) if len(both) else np.zeros(len(old), np.int64)
        return np.minimum(position, max(len(both) - 1, 0)).astype(np.int32)[index]

    moved = {
        name: place(sequence.rows, getattr(sequence, name))
        for name in ("masked", "truth", "pool", "torn", "segments")
    }
    return JointClient(
        rows=rows,
        pairs=pairs._replace(rows=rows, item=place(pairs.rows, pairs.item)),
        sequence=sequence._replace(rows=rows, **moved),
        size=pairs.size,
    )


@lru_cache(maxsize=16)
def local_joint(
    local_views: LocalTrain, local_pairs: LocalTrain, item_rate: float = 1.0
) -> LocalTrain:
    """Return SGD on L = λ_DSSM · L_DSSM + L_SSL over one client's data.

    SGD passes over the mini-batches of the views first, then over those of the instances. The
    learning rate of `local_pairs` contains λ_DSSM. The update of the item vectors is multiplied by
    `item_rate` before clipping.
    """

    def local(params: Params, catalogue: Bags, client: JointClient) -> LocalResult:
        start = {**params, ITEM_TABLE: params[ITEM_TABLE][client.rows]}
        own = {name: bag.take(client.rows) for name, bag in catalogue.items()}
        places = jnp.arange(len(client.rows))
        views = local_views(start, own, client.sequence._replace(rows=places))
        middle = {name: start[name] + views.update[name] for name in start}
        pairs = local_pairs(middle, own, client.pairs._replace(rows=places))
        update = {name: views.update[name] + pairs.update[name] for name in start}
        update[ITEM_TABLE] = item_rate * update[ITEM_TABLE]
        return LocalResult(update=update, loss=pairs.loss + views.loss)

    return local


def rescaled(params: Params, scale: float) -> dict[str, Array]:
    """Return stage one's parameters with item vectors of standard deviation `scale`.

    This is the usual scale of item vectors in the DSSM. The encoders' first layers are divided by
    the same factor, so their output does not change.
    """
    factor = scale / jnp.maximum(jnp.std(params[ITEM_TABLE]), 1e-12)
    inverse = {name: params[name] / factor for name in ("gru/in", "encode/0/weight")}
    return {**params, ITEM_TABLE: params[ITEM_TABLE] * factor, **inverse}


def vectors_of_features(federation: Federation, table: jax.Array, scale: float) -> jax.Array:
    """Return item vectors from item features alone: their leading singular vectors.

    The vectors are scaled to a standard deviation of `scale`. Dimensions beyond the rank of the
    features keep their values from `table`.
    """
    columns = []
    for feature in federation.schema.of("item"):
        bag = federation.items[feature.table]
        hot = np.zeros((federation.n_items, feature.rows), np.float32)
        np.add.at(hot, (np.arange(federation.n_items)[:, None], bag.codes), bag.weights)
        columns.append(hot)
    if not columns:
        return table
    left, strength, _ = np.linalg.svd(np.concatenate(columns, 1), full_matrices=False)
    kept = min(table.shape[1], int((strength > 1e-6).sum()))
    vectors = left[:, :kept] * strength[:kept]
    return table.at[:, :kept].set(vectors / max(float(vectors.std()), 1e-12) * scale)
