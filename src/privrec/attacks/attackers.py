"""The attackers of membership inference: from what models say about people to figures.

- `paper`: a forest that has learned from a shadow model what lists of members look like.
- `loss`: how well the target fits her.
- `ratio`: the likelihood ratio (LiRA, Carlini and others 2022), for a whole person. Every model
  trained on a random half of all people. For each person, the attacker compares the loss under the
  target with her losses under models with her, and under models without her.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import stdtrit

from privrec.attacks.games import Games, Parts
from privrec.attacks.roc import Figure, Roc, area_of, measured
from privrec.attacks.views import NO_ITEM, Views
from privrec.data.federation import Federation, chunks
from privrec.seeds import rng
from privrec.types import F64, BoolArray, CodeArray

_CONFIDENCE = 0.95
_PRIOR = 4.0
"""How many losses the mean variance over all people counts for. Chosen by hand; not tuned."""
_SMALLEST = 1e-12


def results_of(
    games: Games, views: Mapping[str, Views], federation: Federation
) -> dict[str, dict[str, Any]]:
    """Return the figures of each kind, as JSON has them."""
    figures: dict[str, dict[str, Any]] = {}
    kinds, turns = games.options.kinds, range(len(games.parts))
    targets = [views[f"target-{k}"] for k in turns]
    if "paper" in kinds:
        shadows = [views[f"shadow-{k}"] for k in turns]
        forest = forest_attack(federation, games.parts, shadows, targets, seed=games.options.seed)
        figures["paper"] = {name: asdict(figure) for name, figure in forest.items()}
    if "loss" in kinds:
        figures["loss"] = _thinned(loss_attack(games.parts, targets)).as_json()
    if "ratio" in kinds:
        count = len(games.member)
        losses = np.stack([views[f"half-{k}"].losses for k in range(count)])
        roc = ratio_attack(losses, games.member[:, games.asked], targets=games.options.repetitions)
        figures["ratio"] = {**_thinned(roc).as_json(), "shadows": count}
    return figures


def _thinned(roc: Roc) -> Roc:
    """Return the same figures with a curve that is short enough for a file."""
    rates = np.array([x for x, _ in roc.curve])
    wanted = np.concatenate([np.linspace(0, 1, 201), np.logspace(-4, 0, 101)])
    kept = np.unique(np.searchsorted(rates, np.sort(wanted), side="right") - 1)
    return replace(roc, curve=[roc.curve[k] for k in kept])


def loss_attack(games: Sequence[Parts], targets: Sequence[Views]) -> Roc:
    """Return how well minus the loss tells members from others.

    Scores are centred per repetition, by the median of both groups together, and then pooled. A
    person may be in several repetitions, so the interval is somewhat too narrow.
    """
    members, others = [], []
    for parts, views in zip(games, targets, strict=True):
        scores = np.nanmedian(views.losses) - views.losses
        inside = np.arange(len(scores)) < len(parts.inside)
        known = np.isfinite(scores)
        members.append(scores[known & inside])
        others.append(scores[known & ~inside])
    return measured(np.concatenate(members), np.concatenate(others))


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


def forest_attack(
    federation: Federation,
    games: Sequence[Parts],
    shadows: Sequence[Views],
    targets: Sequence[Views],
    *,
    seed: int,
) -> dict[str, Figure]:
    """Return accuracy and AUC of the forest's guesses, means over repetitions.

    There are as many members as others. The forest never sees the target's members, so an attack
    that knows nothing has accuracy 1/2 on average.
    """
    accuracies, areas = [], []
    for k, (parts, shadow, target) in enumerate(zip(games, shadows, targets, strict=True)):
        chances = guesses(
            rows_of(federation, shadow),
            np.arange(len(parts.shadow)) < len(parts.used),
            rows_of(federation, target),
            seed=int(rng(seed, k, "attack forest").integers(2**31)),
        )
        inside = np.arange(len(chances)) < len(parts.inside)
        accuracies.append(float(((chances > 0.5) == inside).mean()))
        areas.append(area_of(chances[inside], chances[~inside]))
    return {"accuracy": mean_figure(accuracies), "auc": mean_figure(areas)}


def rows_of(federation: Federation, views: Views) -> sp.csr_array:
    """Return what the forest sees: one row for each person, her features, then her list.

    A categorical feature has a column for each value, a number a column of its own; the list has
    1 in the column of each of its items.
    """
    user = federation.schema.of("user")
    parts: list[list[sp.csr_array]] = [[] for _ in user]
    for people in chunks(views.people):
        clients = federation.take(people)
        for feature, columns in zip(user, parts, strict=True):
            bag = clients.features[feature.table]
            columns.append(_spread(np.asarray(bag.codes), np.asarray(bag.weights), feature.rows))
    lists = np.maximum(views.lists, 0)
    listed = _spread(lists, (views.lists != NO_ITEM).astype(np.float32), federation.n_items)
    return sp.csr_array(sp.hstack([*(sp.vstack(columns) for columns in parts), listed]))


def guesses(
    rows: sp.csr_array, inside: BoolArray, asked: sp.csr_array, *, seed: int
) -> npt.NDArray[np.float64]:
    """Return for each asked row how likely its person is a member, by a random forest.

    `rows` and `inside` are the shadow users and whether they trained the shadow model. Classes
    are weighted to be balanced, because most shadow users did.
    """
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(class_weight="balanced", random_state=seed)
    forest.fit(_narrow(rows), inside)
    return np.asarray(forest.predict_proba(_narrow(asked))[:, 1], np.float64)


def mean_figure(values: Sequence[float]) -> Figure:
    """Return the mean of shares over repetitions, with Student's interval at 95 %.

    One repetition does not say how far repetitions differ: its interval is all from 0 to 1.

    >>> figure = mean_figure([0.5, 0.6])
    >>> round(figure.value, 3), figure.low, figure.high
    (0.55, 0.0, 1.0)
    """
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Figure(value=mean, low=0.0, high=1.0)
    wide = stdtrit(count - 1, (1 + _CONFIDENCE) / 2) * float(np.std(values, ddof=1)) / count**0.5
    return Figure(value=mean, low=max(mean - wide, 0.0), high=min(mean + wide, 1.0))


def _narrow(rows: sp.csr_array) -> sp.csr_matrix:
    """Return the same rows with the narrow indices that scikit-learn asks for."""
    indices, starts = rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
    return sp.csr_matrix((rows.data, indices, starts), shape=rows.shape)


def _spread(codes: CodeArray, weights: npt.NDArray[np.floating], columns: int) -> sp.csr_array:
    """Return the bags as rows over all their columns."""
    row = np.repeat(np.arange(len(codes)), codes.shape[1])
    filled = weights.ravel() != 0
    cells = (row[filled], codes.ravel()[filled])
    return sp.csr_array((weights.ravel()[filled], cells), shape=(len(codes), columns))
