"""Item vectors from the public features of the items; no person's data is used."""

import jax
import numpy as np

from privrec.data.federation import Federation


def vectors_of_features(federation: Federation, table: jax.Array, scale: float) -> jax.Array:
    """Return item vectors from item features alone: their leading singular vectors.

    They are scaled to a standard deviation of `scale`. Dimensions that the features do not fill
    keep their values from `table`.
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
    found = left[:, :kept] * strength[:kept]
    return table.at[:, :kept].set(found / max(float(found.std()), 1e-12) * scale)
