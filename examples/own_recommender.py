"""A recommender of your own beside ours: EASE (Steck 2019) in ten lines.

    python examples/own_recommender.py [DATA]

`fit` gets the likes of the people who train and returns how to score. docs/evaluation.md has more.
"""

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

import privrec

Table = npt.NDArray[np.float64]


def my_ease(likes: sp.csr_array) -> Callable[[sp.csr_array], Table]:
    """Return how EASE scores: weights between items in closed form, and no item for itself."""
    gram = (likes.T @ likes).toarray().astype(np.float64)
    gram[np.diag_indices_from(gram)] += 500
    inverse = np.linalg.inv(gram)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)

    def score(seen: sp.csr_array) -> Table:
        return np.asarray(seen @ weights)

    return score


def main(data: str) -> None:
    """Test it beside a run of privrec-plus, on the same people."""
    mine = privrec.evaluate(my_ease, data, seed=0)
    run = privrec.train("privrec-plus", data, seed=0)
    print(privrec.compare([mine, run.evaluate()]))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "synthetic")
