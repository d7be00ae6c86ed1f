"""How the history tower scores items for a row; needs only numpy on a phone.

    h = Σ like_i + Σ dislike_i + Σ feature vectors,   score_v = h · out_v

The blocks named `history/…` have a vector for each column of a row. `items/out` has a vector for
each item. Where vectors are as long as the catalogue, `items/out` is absent and h is the scores.
If rounds on top were trained (`learn.py`), the result is:

    logit_v = a · log(max(score_v, 0) + floor) + tanh(h') · out'_v + bias'_v,
    h' = Σ row_c · vector_c / √(1 + items in the row)
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from privrec.algorithms.privrec_plus.layout import LIKES, Layout, learned
from privrec.types import F32, Leaf

Arrays = Mapping[str, F32]

OUT, BIAS, POPULARITY = "items/out", "items/bias", "items/popularity"
LEARNED_OUT, LEARNED_BIAS, LEARNED_TRUST = "learn/out", "learn/bias", "learn/trust"
FREQUENCY = "columns/frequency"
"""A sum of the first phase where a subspace iteration follows: Σ w·row² of each column."""
MEAN_WEIGHT = "columns/mean-weight"
"""The mean of w over people, kept from the first phase with it."""
FLOOR = 0.01
"""Added to closed-form scores so that their logarithm is finite. Chosen by hand; not tuned."""


class Forward(NamedTuple):
    """The logits of the trained part, and the intermediate values that its gradient needs."""

    log_score: Leaf
    pooled: Leaf
    root: Leaf
    logits: Leaf


def learned_names(layout: Layout) -> list[str]:
    """Return the names of the learned vectors of a row's blocks."""
    return [learned(name) for name in layout.names]


def learned_of(params: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Return the parameters that the rounds on top train."""
    return {name: value for name, value in params.items() if name.startswith("learn/")}


def forward(
    params: Mapping[str, Leaf], layout: Layout, row: Leaf, score: Leaf, xp: Any = np
) -> Forward:
    """Return the logits for some people's rows and closed-form scores; `xp` may be jax.numpy."""
    vectors = xp.concatenate([params[name] for name in learned_names(layout)])
    items = row[:, : layout.item_columns].sum(1)[:, None]
    root = xp.sqrt(1 + items)
    pooled = xp.tanh(row @ vectors / root)
    log_score = xp.log(xp.maximum(score, 0) + FLOOR)
    logits = (
        params[LEARNED_TRUST] * log_score + pooled @ params[LEARNED_OUT].T + params[LEARNED_BIAS]
    )
    return Forward(log_score, pooled, root, logits)


def closed_form(tower: Arrays, layout: Layout) -> Callable[[Leaf], F32]:
    """Return the function that scores all items for people's rows by the closed form alone.

    Its rows are a numpy array or a sparse matrix of shape (people, columns).
    """
    width = tower[LIKES].shape[1]
    inside = np.concatenate(
        [
            tower.get(name, np.zeros((size, width), np.float32))
            for name, size in zip(layout.names, layout.sizes, strict=True)
        ]
    )
    out = tower.get(OUT)

    def score(rows: Leaf) -> F32:
        hidden = rows @ inside
        return np.array(hidden if out is None else hidden @ out.T, np.float32)

    return score


def tower_shapes(params: Mapping[str, Leaf], layout: Layout) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a tower with these parameters must have for this layout."""
    n, width = layout.n_items, np.shape(params[LIKES])[-1] if np.ndim(params[LIKES]) else 0
    blocks = zip(layout.names, layout.sizes, strict=True)
    shapes: dict[str, tuple[int, ...]] = {
        name: (size, width) for name, size in blocks if name in params or name == LIKES
    }
    shapes[BIAS] = (n,)
    if OUT in params or width != n:
        shapes[OUT] = (n, width)
    if learned_of(params):
        size = np.shape(params.get(LEARNED_OUT, np.zeros((n, 0))))[-1:]
        named = zip(learned_names(layout), layout.sizes, strict=True)
        shapes |= {name: (rows, *size) for name, rows in named}
        shapes |= {LEARNED_OUT: (n, *size), LEARNED_BIAS: (n,), LEARNED_TRUST: ()}
    return shapes


def row_scorer(tower: Arrays, layout: Layout) -> Callable[[Leaf], F32]:
    """Return the function that scores all items: (people, columns) -> (people, n_items)."""
    simple, on_top = closed_form(tower, layout), learned_of(tower)

    def score(rows: Leaf) -> F32:
        scores = simple(rows)
        # The trained part needs items in the row: people without any get the closed form alone.
        some = np.flatnonzero(rows[:, : layout.item_columns].sum(1))
        if on_top and len(some):
            scores[some] = forward(on_top, layout, rows[some], scores[some]).logits
        return scores + tower[BIAS]

    return score
