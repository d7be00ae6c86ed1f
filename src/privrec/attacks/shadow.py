"""The paper's attack: a forest that learns from a shadow model what lists of members look like."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import stdtrit

from privrec.attacks.games import Parts
from privrec.attacks.roc import Figure, area_of
from privrec.attacks.views import NO_ITEM, Views
from privrec.data.federation import Federation, chunks
from privrec.seeds import rng
from privrec.types import BoolArray, CodeArray

_CONFIDENCE = 0.95


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
        found = guesses(
            rows_of(federation, shadow),
            np.arange(len(parts.shadow)) < len(parts.used),
            rows_of(federation, target),
            seed=int(rng(seed, k, "attack forest").integers(2**31)),
        )
        inside = np.arange(len(found)) < len(parts.inside)
        accuracies.append(float(((found > 0.5) == inside).mean()))
        areas.append(area_of(found[inside], found[~inside]))
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
        for feature, found in zip(user, parts, strict=True):
            bag = clients.features[feature.table]
            found.append(_spread(np.asarray(bag.codes), np.asarray(bag.weights), feature.rows))
    lists = np.maximum(views.lists, 0)
    listed = _spread(lists, (views.lists != NO_ITEM).astype(np.float32), federation.n_items)
    return sp.csr_array(sp.hstack([*(sp.vstack(found) for found in parts), listed]))


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

    >>> found = mean_figure([0.5, 0.6])
    >>> round(found.value, 3), found.low, found.high
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
