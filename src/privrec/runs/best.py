"""The best state of a training by its validation people, where there is no noise.

Under noise nothing is kept by validation: a look at raw data would have to be paid for.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from privrec.core.phase import ServerState
from privrec.runs.records import Arrays
from privrec.types import Params

K = "20"
"""States are compared by Hits@20."""
_HITS, _ROUND, _WORSE, _PARAM = "best hits", "best round", "best worse", "best param "


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The parameters after `round_index` rounds: `hits` was best there; `worse` looks came since.

    A later state that is as good replaces an earlier one.
    """

    round_index: int
    hits: float
    params: Params
    worse: int = 0


def after_look(best: Best | None, state: ServerState, hits: float) -> Best:
    """Return the best state after a look at `state`, which has so many `hits`."""
    if best is not None and hits < best.hits:
        return replace(best, worse=best.worse + 1)
    return Best(round_index=state.round_index, hits=hits, params=state.params)


def to_arrays(best: Best | None) -> Arrays:
    """Return what a checkpoint has of the best state; nothing if there is none."""
    if best is None:
        return {}
    return {
        _HITS: np.asarray(best.hits),
        _ROUND: np.asarray(best.round_index),
        _WORSE: np.asarray(best.worse),
        **{f"{_PARAM}{name}": np.asarray(array) for name, array in best.params.items()},
    }


def from_arrays(arrays: Arrays) -> Best | None:
    """Return the best state that a checkpoint has; None if it has none."""
    if _HITS not in arrays:
        return None
    return Best(
        hits=float(arrays[_HITS]),
        round_index=int(arrays[_ROUND]),
        worse=int(arrays[_WORSE]),
        params={
            name.removeprefix(_PARAM): jnp.asarray(array)
            for name, array in arrays.items()
            if name.startswith(_PARAM)
        },
    )
