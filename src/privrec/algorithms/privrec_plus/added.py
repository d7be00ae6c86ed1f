"""Adds items to a trained model: their vectors follow from public features of items alone.

The kernels say how similar a new item is to each known item (`kernels.py`). From similar items
follow its vector (`public.py: through_kernel`) and its popularity.
"""

import numpy as np

from privrec.algorithms.privrec_plus.kernels import Kernels, kernels_of
from privrec.algorithms.privrec_plus.public import (
    check_public,
    public_of,
    through_kernel,
    turn_of,
)
from privrec.algorithms.privrec_plus.scoring import BIAS, DISLIKES, LIKES, OUT, POPULARITY
from privrec.algorithms.privrec_plus.settings import SumsSettings
from privrec.algorithms.privrec_plus.solve import bias_of
from privrec.data.catalogue import Catalogue
from privrec.errors import RunFolderError
from privrec.types import F32, F64, IntArray, Leaf, Params

_MOST = 2000
"""Upper limit for the known items that predict popularity: eigenvectors of 2,000 items take
seconds."""
_RIDGES = 10.0 ** np.arange(-2, 3.5, 0.5)


def with_items(
    settings: SumsSettings, params: Params, catalogue: Catalogue, known: int
) -> dict[str, F32]:
    """Return the parameters with rows for the new items: all items after the first `known` items.

    New items can be recommended, but have no effect in a person's history.
    """
    if "public/trust" not in params:
        raise RunFolderError(
            "a run takes new items if public features of items chose its basis: under noise,"
            " without rounds on top, and with `history` = 'closed-form'"
        )
    kernels = kernels_of(catalogue, known)
    check_public(params, known, len(kernels))
    public, popularity = public_of(params), np.asarray(params[POPULARITY], np.float64)
    if not public.trust.trust:
        raise RunFolderError(
            "the run found that people's items are not alike by the features of items: nothing says"
            " where a new item belongs"
        )
    new = np.arange(known, catalogue.n_items)
    guessed = guessed_popularity(kernels, public.trust.weights, popularity, new)
    everything = np.concatenate([popularity, guessed])
    width = np.shape(params[OUT])[1]
    rows: dict[str, Leaf] = {
        POPULARITY: guessed,
        BIAS: bias_of(everything, np.arange(catalogue.n_items))[known:],
        OUT: through_kernel(
            public.basis, public.trust, kernels, new, guessed, turn_of(public, params)
        ),
        **{name: np.zeros((len(new), width)) for name in (LIKES, DISLIKES) if name in params},
    }
    found = {name: np.asarray(array, np.float32) for name, array in params.items()}
    more = {name: np.concatenate([found[name], rows[name]], dtype=np.float32) for name in rows}
    return {**found, **more}


def guessed_popularity(kernels: Kernels, weights: F64, popularity: F64, new: IntArray) -> F64:
    """Return the predicted popularity of each new item, shape (len(new),).

    The prediction is a kernel ridge regression on the logarithm of popularity. The ridge has the
    smallest leave-one-out error over the known items. The prediction is at most the popularity of
    the most popular known item.
    """
    order = np.argsort(-popularity, kind="stable")
    places = np.linspace(0, len(order) - 1, min(len(order), _MOST)).round().astype(np.int64)
    known = order[places]
    level = np.log(np.maximum(popularity[known], 1.0))
    centred = level - level.mean()
    values, vectors = np.linalg.eigh(kernels.mixed(weights, known, known))
    turned = vectors.T @ centred

    def error(ridge: float) -> float:
        kept = ridge / (np.maximum(values, 0.0) + ridge)
        left = (vectors * kept) @ turned
        return float(np.mean((left / ((vectors**2) @ kept)) ** 2))

    ridge = min(_RIDGES, key=error)
    solved = (vectors / (np.maximum(values, 0.0) + ridge)) @ turned
    guess = level.mean() + kernels.mixed(weights, new, known) @ solved
    return np.asarray(np.exp(np.clip(guess, 0.0, level.max())))
