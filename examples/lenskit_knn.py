"""A model of the library LensKit beside ours: item-based nearest neighbours.

    pip install lenskit
    python examples/lenskit_knn.py [DATA]

The settings are the library's own and not tuned. Whoever is tested never trained: LensKit scores
her items from the likes on her device.
"""

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from lenskit.data import ItemList, RecQuery, from_interactions_df
from lenskit.knn import ItemKNNScorer
from pandas import DataFrame

import privrec

Table = npt.NDArray[np.float64]


def lenskit_knn(likes: sp.csr_array) -> Callable[[sp.csr_array], Table]:
    """Return how item-kNN scores, fitted to the likes of the people who train."""
    people, items = likes.nonzero()
    frame = DataFrame({"user_id": people, "item_id": items})
    model = ItemKNNScorer(feedback="implicit")
    model.train(from_interactions_df(frame))
    known = np.unique(items)
    catalogue = ItemList(item_ids=np.arange(likes.shape[1]))

    def score(seen: sp.csr_array) -> Table:
        rows = []
        for person in range(seen.shape[0]):
            own = seen.indices[seen.indptr[person] : seen.indptr[person + 1]]
            own = ItemList(item_ids=np.intersect1d(own, known))  # it stops at an item it never saw
            found = model(RecQuery(user_items=own), catalogue)
            rows.append(np.nan_to_num(found.scores("numpy"), nan=-np.inf))
        return np.array(rows)

    return score


if __name__ == "__main__":
    data = sys.argv[1] if len(sys.argv) > 1 else "synthetic"
    print(privrec.compare([privrec.evaluate(lenskit_knn, data, seed=0)]))
