"""The likelihood-ratio attack (LiRA, Carlini and others 2022), for a whole person.

Every model trained on a random half of all people. For each person, the attacker compares the
loss under the target with her losses under models with her, and under models without her.
"""

import numpy as np

from privrec.attacks.roc import Roc, measured
from privrec.types import F64, BoolArray

_PRIOR = 4.0
"""How many losses the mean variance over all people counts for. Chosen by hand; not tuned."""
_SMALLEST = 1e-12


def ratio_scores(losses: F64, member: BoolArray, target: int) -> F64:
    """Return each person's log likelihood ratio at the loss of model `target`; NaN if unknown.

    `losses` and `member` have shape (models, people); all models but the target are shadows. With
    x the loss under the target, m1 and m0 the means with and without her, and v her variance:

        log N(x; m1, v) - log N(x; m0, v) = ((x - m0)² - (x - m1)²) / 2v

    There are few models, so v is shared: by both of her groups, and partly by all people. It is
    her squared deviations, plus those of `_PRIOR` losses of mean variance, over their number.
    It is unknown for whoever is in all shadows or in none, or has no loss.
    """
    shadow = np.arange(len(losses)) != target
    counts, means, squares = [], [], np.zeros(losses.shape[1])
    for group in (member & shadow[:, None], ~member & shadow[:, None]):
        count = group.sum(0)
        mean = np.where(group, losses, 0).sum(0) / np.maximum(count, 1)
        squares += np.where(group, (losses - mean) ** 2, 0).sum(0)
        counts.append(count)
        means.append(np.where(count > 0, mean, np.nan))
    free = counts[0] + counts[1] - 2
    known = np.isfinite(squares + means[0] + means[1])
    shared = max(float(squares[known].sum() / max(free[known].sum(), 1)), _SMALLEST)
    variance = (squares + _PRIOR * shared) / (free + _PRIOR)
    x = losses[target]
    return np.asarray(((x - means[1]) ** 2 - (x - means[0]) ** 2) / (2 * variance))


def ratio_attack(losses: F64, member: BoolArray, *, targets: int, seed: int = 0) -> Roc:
    """Return how well the ratios tell members from others; the first models are targets in turn.

    Losses are centred per model: a model that is better for everybody says nothing of anybody.
    The scores of all targets are pooled.
    """
    centred = losses - np.nanmedian(losses, axis=1, keepdims=True)
    scores = np.stack([ratio_scores(centred, member, target) for target in range(targets)])
    known, inside = np.isfinite(scores), member[:targets]
    return measured(scores[known & inside], scores[known & ~inside], seed=seed)
