"""A model of the library `implicit` beside ours: alternating least squares.

    pip install implicit
    python examples/implicit_als.py [DATA]

The settings are the library's own and not tuned. Whoever is tested never trained: her vector is
computed from the likes on her device, as for a newcomer.
"""

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from implicit.als import AlternatingLeastSquares

import privrec

Table = npt.NDArray[np.float32]


def implicit_als(likes: sp.csr_array) -> Callable[[sp.csr_array], Table]:
    """Return how ALS scores, fitted to the likes of the people who train."""
    model = AlternatingLeastSquares(random_state=0)
    model.fit(sp.csr_matrix(likes), show_progress=False)

    def score(seen: sp.csr_array) -> Table:
        people = model.recalculate_user(np.arange(seen.shape[0]), sp.csr_matrix(seen))
        return np.asarray(people @ model.item_factors.T)

    return score


if __name__ == "__main__":
    data = sys.argv[1] if len(sys.argv) > 1 else "synthetic"
    print(privrec.compare([privrec.evaluate(implicit_als, data, seed=0)]))
