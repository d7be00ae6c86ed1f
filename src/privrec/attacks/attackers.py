"""Attackers who query a trained model to find out who was in its training data.

A target is a model that is attacked. A shadow is a model that the attacker trains himself. A member
is a person on whose data a model was trained. There are three attackers:

- `paper`: a random forest. It learns from a shadow model which recommendation lists members get.
- `loss`: a person with a small loss under the target model is guessed to be a member.
- `ratio`: the likelihood ratio attack (LiRA, Carlini and others 2022), for a whole person. Each
  model is trained on a random half of all people. A person's loss under the target is compared with
  her losses under models trained with her, and under models trained without her.
"""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import logsumexp, stdtrit

from privrec.core.scorer import Scorer
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.errors import RunFolderError, SettingsError
from privrec.runs.documents import Area, Kind
from privrec.runs.folder import write_whole
from privrec.seeds import rng
from privrec.types import F64, BoolArray, CodeArray, IntArray

LIST_LENGTH = 10
NO_ITEM = -1
RATES = (0.01, 0.001)
"""The false-positive rates at which the true-positive rate is reported."""
_CHUNK = 64
"""The number of people whose scores of all items are in memory at a time. Chosen by hand."""
_LINES = 20
"""If the data has contexts, a person's loss is the mean over at most this many of her likes."""
_LARGEST, _SMALLEST = 1e30, 1e-12
_RESAMPLES = 1000
"""The number of bootstrap samples. Chosen by hand."""
_CONFIDENCE = 0.95
_PRIOR = 4.0
"""The weight of the mean variance over all people, as a number of losses. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Views:
    """What one model says about each of `people`, in that order.

    `losses`, shape (people,), has a person's loss, or NaN if she has no like. `lists`, shape
    (people, 10), has the codes of her recommended items, best first, then `NO_ITEM`.
    """

    people: IntArray
    losses: F64
    lists: CodeArray


Answers = tuple[Views, BoolArray]
"""A model's `Views` of some people, and for each of them whether the model was trained on her
data."""


def views_of(federation: Federation, people: IntArray, scorer: Scorer) -> Views:
    """Return the losses and the recommendation lists of `people` under one model.

    Each person's device first adapts the model to all of her lines (interactions), as in training.
    Her loss is the mean of -log p(item) over her likes, where p is the softmax over the scores of
    all items. If the data has contexts, each line is scored in its own context, and at most
    `_LINES` likes count. Her own items do not rank first, because that rule is not learnt.

    Her list has the ten items with the best mean scores that do not occur in her lines.
    """
    losses = np.full(len(people), np.nan)
    lists = np.full((len(people), LIST_LENGTH), NO_ITEM, np.int32)
    for places in chunks(np.arange(len(people)), _CHUNK):
        clients = federation.take(people[places])
        known = np.flatnonzero(clients.sizes > 0)
        clients = clients.take(known)
        asked = _asked(clients)
        answers = zip(places[known], scorer(clients, asked.contexts_alone()), strict=True)
        for k, (place, scores) in enumerate(answers):
            lines = asked.take(np.array([k]))
            table = np.nan_to_num(
                np.asarray(scores, np.float64), nan=-_LARGEST, posinf=_LARGEST, neginf=-_LARGEST
            )
            losses[place] = loss_of(table, lines.item, lines.liked)
            best = best_items(table, clients.take(np.array([k])).item)
            lists[place, : len(best)] = best
    return Views(people=people, losses=losses, lists=lists)


def loss_of(scores: F64, items: CodeArray, liked: BoolArray) -> float:
    """Return the mean cross entropy of the likes; NaN if there are none.

    `scores` has shape (1, n_items), or (lines, n_items). `items` and `liked` have shape (lines,).

    >>> round(loss_of(np.zeros((1, 4)), np.array([2, 3]), np.array([True, False])), 4)
    1.3863
    """
    if not liked.any():
        return float("nan")
    row = np.arange(len(items)) if len(scores) > 1 else np.zeros(len(items), np.int64)
    entropy = logsumexp(scores, axis=1)[row] - scores[row, items]
    return float(entropy[liked].mean())


def best_items(scores: F64, own: CodeArray) -> IntArray:
    """Return the codes of at most ten items, best mean score first, without the items in `own`.

    >>> best_items(np.array([[0.1, 0.9, 0.5]]), np.array([1])).tolist()
    [2, 0]
    """
    others = np.ones(scores.shape[1], np.bool_)
    others[own] = False
    left = np.flatnonzero(others)
    order = np.argsort(-scores.mean(axis=0)[left], kind="stable")
    return left[order[:LIST_LENGTH]]


def write_views(path: Path, views: Views) -> None:
    """Write views to an npz file, atomically."""
    content = io.BytesIO()
    np.savez(content, people=views.people, losses=views.losses, lists=views.lists)
    write_whole(path, content.getvalue())


def read_views(path: Path, people: IntArray) -> Views:
    """Return the views in a file; raise if it is unreadable or is about other people."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            views = Views(people=file["people"], losses=file["losses"], lists=file["lists"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunFolderError(f"cannot read {path}: {error}") from error
    if not np.array_equal(views.people, people):
        raise RunFolderError(f"{path} is about other people: choose another --out")
    return views


def _asked(clients: Clients) -> Clients:
    """Return the lines for the loss: all lines, or with contexts at most 20 likes of each person.

    A person without a like keeps one line, because her list needs a context.
    """
    if not clients.context:
        return clients
    owner, liked = clients.owner, clients.liked
    likes = np.bincount(owner[liked], minlength=len(clients))
    # The position of each line among the likes of its person.
    rank = np.cumsum(liked) - 1 - (np.cumsum(likes) - likes)[owner]
    step = np.maximum(-(-likes // _LINES), 1)[owner]
    # The likes are in the order of time; those chosen are evenly spread.
    first = np.arange(len(owner)) == clients.offsets[owner]
    return clients.keep((liked & (rank % step == 0)) | ((likes == 0)[owner] & first))


# --- from scores to figures ---------------------------------------------------------------------


class Figure(Area):
    """An estimated value, with both ends of its confidence interval."""

    low: float
    high: float


class Roc(Kind):
    """How well an attack tells members from other people.

    `rates` has the true-positive rate at each false-positive rate. `accuracy` is the balanced
    accuracy at the threshold that is best on the same scores, so it is above 1/2 even if the scores
    are random.
    """

    auc: Figure
    accuracy: float

    def thinned(self) -> "Roc":
        """Return the same figures with fewer points on the ROC curve, for a short file."""
        rates = np.array([x for x, _ in self.curve])
        wanted = np.concatenate([np.linspace(0, 1, 201), np.logspace(-4, 0, 101)])
        kept = np.unique(np.searchsorted(rates, np.sort(wanted), side="right") - 1)
        return self.model_copy(update={"curve": [self.curve[k] for k in kept]})


def measured(members: F64, others: F64, *, confidence: float = _CONFIDENCE, seed: int = 0) -> Roc:
    """Return how well the scores separate members from others; members should have higher scores.

    The area under the ROC curve (AUC) is the probability that a member scores higher than another
    person, where a tie counts half; 1/2 for random scores. The true-positive rate is the largest
    one among all thresholds with at most the given false-positive rate. The intervals are quantiles
    of a bootstrap over members and over others.
    """
    for name, scores in (("members", members), ("others", others)):
        if not len(scores):
            raise SettingsError(f"an attack needs scores of {name}; got none")
        if not np.isfinite(scores).all():
            raise SettingsError(f"scores must be finite; {name} have some that are not")
    groups, cuts = _places(members, others)
    draw = rng(seed, 0, "bootstrap")
    again = np.empty((_RESAMPLES, 1 + len(RATES)))
    for k in range(_RESAMPLES):
        drawn = (draw.choice(group, len(group)) for group in groups)
        again[k] = _figures(*(np.bincount(group, minlength=cuts) for group in drawn))
    tail = (1 - confidence) / 2
    lows, highs = np.quantile(again, [tail, 1 - tail], axis=0)
    tallies = [np.bincount(group, minlength=cuts) for group in groups]
    area, *rates = [
        Figure(value=value, low=float(min(low, value)), high=float(max(high, value)))
        for value, low, high in zip(_figures(*tallies), lows, highs, strict=True)
    ]
    caught, wrong = (_above(tally) for tally in tallies)
    y, x = (1 - np.append(0, np.cumsum(tally)) / tally.sum() for tally in tallies)
    return Roc(
        members=len(members),
        others=len(others),
        auc=area,
        accuracy=float((caught + 1 - wrong).max() / 2),
        rates={f"{rate:g}": figure for rate, figure in zip(RATES, rates, strict=True)},
        curve=list(zip(x[::-1].tolist(), y[::-1].tolist(), strict=True)),
    )


def area_of(members: F64, others: F64) -> float:
    """Return the area under the ROC curve.

    >>> area_of(np.array([3.0, 2.0]), np.array([2.0, 1.0]))
    0.875
    """
    groups, cuts = _places(members, others)
    return _figures(*(np.bincount(group, minlength=cuts) for group in groups))[0]


def mean_figure(values: Sequence[float]) -> Figure:
    """Return the mean of shares over repetitions, with Student's interval at 95 %.

    After one repetition, the spread is unknown and the interval is from 0 to 1.

    >>> figure = mean_figure([0.5, 0.6])
    >>> round(figure.value, 3), figure.low, figure.high
    (0.55, 0.0, 1.0)
    """
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Figure(value=mean, low=0.0, high=1.0)
    wide = stdtrit(count - 1, (1 + _CONFIDENCE) / 2) * float(np.std(values, ddof=1)) / count**0.5
    return Figure(value=mean, low=float(max(mean - wide, 0)), high=float(min(mean + wide, 1)))


def _places(members: F64, others: F64) -> tuple[list[IntArray], int]:
    """Return each group's ranks among all distinct scores, and the number of ranks."""
    scores, place = np.unique(np.concatenate([members, others]), return_inverse=True)
    return np.split(place, [len(members)]), len(scores)


def _figures(members: IntArray, others: IntArray) -> list[float]:
    """Return the AUC and the true-positive rates, given the number of scores at each rank."""
    caught, wrong = _above(members), _above(others)
    # Both rates fall from 1 to 0 as the threshold grows. A tie is a slanted segment and counts
    # half.
    area = float(((caught[:-1] + caught[1:]) * (wrong[:-1] - wrong[1:])).sum() / 2)
    return [area, *(float(caught[wrong <= rate].max()) for rate in RATES)]


def _above(counts: IntArray) -> F64:
    """Return the share of the scores at or above each threshold; the last share is 0."""
    passed = np.cumsum(np.append(0, counts[::-1]))[::-1]
    return np.asarray(passed / passed[0])


# --- the attackers ------------------------------------------------------------------------------


def loss_attack(targets: Sequence[Answers]) -> Roc:
    """Return how well the negative loss separates members from others.

    Each repetition's median score is subtracted before the scores of all repetitions are pooled. A
    person can be in several repetitions, so the interval is somewhat too narrow.
    """
    scores = np.concatenate([np.nanmedian(views.losses) - views.losses for views, _ in targets])
    inside = np.concatenate([inside for _, inside in targets])
    known = np.isfinite(scores)
    return measured(scores[known & inside], scores[known & ~inside])


def ratio_scores(losses: F64, member: BoolArray, target: int) -> F64:
    """Return each person's log likelihood ratio at her loss under model `target`; NaN if unknown.

    `losses` and `member` have shape (models, people). All models except the target are shadows. Let
    x be a person's loss under the target, m1 the mean of her losses under shadows trained with her,
    m0 the mean under shadows without her, and v the variance of her losses. The ratio is:

        log N(x; m1, v) - log N(x; m0, v) = ((x - m0)² - (x - m1)²) / 2v

    There are few models, so the same v is used with her and without her, and v is pulled towards
    the mean variance over all people, which has the weight of `_PRIOR` losses. The ratio is NaN if
    a person is in all shadows, is in no shadow, or has no loss.
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


def ratio_attack(losses: F64, member: BoolArray, *, targets: int) -> Roc:
    """Return how well the ratios separate members from others.

    Each of the first `targets` models is the target once, and all scores are pooled. The median
    loss of each model is subtracted, because a model that is better for all people reveals nothing
    about one person.
    """
    centred = losses - np.nanmedian(losses, axis=1, keepdims=True)
    scores = np.stack([ratio_scores(centred, member, target) for target in range(targets)])
    known, inside = np.isfinite(scores), member[:targets]
    return measured(scores[known & inside], scores[known & ~inside])


def forest_attack(
    federation: Federation, shadows: Sequence[Answers], targets: Sequence[Answers], *, seed: int
) -> tuple[Figure, Figure]:
    """Return the accuracy and the AUC of the random forest, as means over repetitions.

    It is tested on equally many members and others and never sees who the target's members are, so
    random guesses have accuracy 1/2 on average.
    """
    accuracies, areas = [], []
    for k, ((known, used), (asked, inside)) in enumerate(zip(shadows, targets, strict=True)):
        tree_seed = int(rng(seed, k, "attack forest").integers(2**31))
        rows, wanted = rows_of(federation, known), rows_of(federation, asked)
        chances = guesses(rows, used, wanted, seed=tree_seed)
        accuracies.append(float(((chances > 0.5) == inside).mean()))
        areas.append(area_of(chances[inside], chances[~inside]))
    return mean_figure(accuracies), mean_figure(areas)


def rows_of(federation: Federation, views: Views) -> sp.csr_matrix:
    """Return the forest's input: one row for each person, with her features and her list.

    A categorical feature has one column for each value, and a numerical feature one column. Each
    item has one column, which is 1 if the item is in the person's list.
    """
    user = federation.schema.of("user")
    parts: list[list[sp.csr_matrix]] = [[] for _ in user]
    for people in chunks(views.people):
        clients = federation.take(people)
        for feature, columns in zip(user, parts, strict=True):
            bag = clients.features[feature.table]
            columns.append(_spread(np.asarray(bag.codes), np.asarray(bag.weights), feature.rows))
    lists = np.maximum(views.lists, 0)
    listed = _spread(lists, (views.lists != NO_ITEM).astype(np.float32), federation.n_items)
    return sp.csr_matrix(sp.hstack([*(sp.vstack(columns) for columns in parts), listed]))


def guesses(rows: sp.csr_matrix, inside: BoolArray, asked: sp.csr_matrix, *, seed: int) -> F64:
    """Return the random forest's probability that each person of `asked` is a member.

    `rows` are the shadow users, and `inside` tells who of them trained the shadow model. The
    classes are weighted to be balanced, because most of them did.
    """
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(class_weight="balanced", random_state=seed)
    forest.fit(rows, inside)
    return np.asarray(forest.predict_proba(asked)[:, 1], np.float64)


def _spread(codes: CodeArray, weights: npt.NDArray[np.floating], columns: int) -> sp.csr_matrix:
    """Return weighted codes as a sparse matrix with one row per person and one column per code."""
    row = np.repeat(np.arange(len(codes)), codes.shape[1])
    filled = weights.ravel() != 0
    cells = (row[filled], codes.ravel()[filled])
    return sp.csr_matrix((weights.ravel()[filled], cells), shape=(len(codes), columns))
