"""Attackers who ask models about people: what a model says, their scores, and how good these are.

- `paper`: a forest that has learned from a shadow model what lists of members look like.
- `loss`: how well the target fits her.
- `ratio`: the likelihood ratio (LiRA, Carlini and others 2022), for a whole person. Every model
  trained on a random half of all people. For each person, the attacker compares the loss under the
  target with her losses under models with her, and under models without her.
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
"""People whose scores of all items are in memory at a time. Chosen by hand."""
_LINES = 20
"""Of so many likes a person's loss is the mean, where each has a context to be scored in."""
_LARGEST, _SMALLEST = 1e30, 1e-12
_RESAMPLES = 1000
"""Samples of the bootstrap. Chosen by hand."""
_CONFIDENCE = 0.95
_PRIOR = 4.0
"""How many losses the mean variance over all people counts for. Chosen by hand; not tuned."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Views:
    """What one model says about each of `people`, in that order.

    `losses` has one number each, NaN for whoever has no like. `lists`, shape (people, 10), has the
    items of her list, best first; `NO_ITEM` where fewer are left.
    """

    people: IntArray
    losses: F64
    lists: CodeArray


Answers = tuple[Views, BoolArray]
"""What a model says about some people, and which of them it was trained on."""


def views_of(federation: Federation, people: IntArray, scorer: Scorer) -> Views:
    """Return a model's views of `people`, a few of them in memory at a time.

    A device keeps all of its person's lines, as it does in training, and adapts to them. Her loss
    is the mean over her liked lines of -log p(item), where p is the softmax over the scores of all
    items. Where the data has contexts, each line has the scores of its own context, and at most
    `_LINES` of her likes are asked about. The rule that own items rank first does not count: it
    is not learnt.

    Her list has the ten best items among those she has no line of, by the mean of these scores.
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

    `scores` has shape (1, n_items), or one row for each line; `items` and `liked` are the lines'.

    >>> round(loss_of(np.zeros((1, 4)), np.array([2, 3]), np.array([True, False])), 4)
    1.3863
    """
    if not liked.any():
        return float("nan")
    row = np.arange(len(items)) if len(scores) > 1 else np.zeros(len(items), np.int64)
    entropy = logsumexp(scores, axis=1)[row] - scores[row, items]
    return float(entropy[liked].mean())


def best_items(scores: F64, own: CodeArray) -> IntArray:
    """Return at most ten items by their mean score, best first, without `own`.

    >>> best_items(np.array([[0.1, 0.9, 0.5]]), np.array([1])).tolist()
    [2, 0]
    """
    others = np.ones(scores.shape[1], np.bool_)
    others[own] = False
    left = np.flatnonzero(others)
    order = np.argsort(-scores.mean(axis=0)[left], kind="stable")
    return left[order[:LIST_LENGTH]]


def write_views(path: Path, views: Views) -> None:
    """Write views to a file, atomically."""
    content = io.BytesIO()
    np.savez(content, people=views.people, losses=views.losses, lists=views.lists)
    write_whole(path, content.getvalue())


def read_views(path: Path, people: IntArray) -> Views:
    """Return the views in a file; raise if it cannot be read, or is about other people."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            views = Views(people=file["people"], losses=file["losses"], lists=file["lists"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunFolderError(f"cannot read {path}: {error}") from error
    if not np.array_equal(views.people, people):
        raise RunFolderError(f"{path} is about other people: choose another --out")
    return views


def _asked(clients: Clients) -> Clients:
    """Return the lines that the loss is about; with contexts, some likes of each client.

    Whoever has no like keeps one line, so that her list has a context.
    """
    if not clients.context:
        return clients
    owner, liked = clients.owner, clients.liked
    likes = np.bincount(owner[liked], minlength=len(clients))
    # The number of each line among its client's likes.
    rank = np.cumsum(liked) - 1 - (np.cumsum(likes) - likes)[owner]
    step = np.maximum(-(-likes // _LINES), 1)[owner]
    # Evenly spread over her likes, in the order of time.
    first = np.arange(len(owner)) == clients.offsets[owner]
    return clients.keep((liked & (rank % step == 0)) | ((likes == 0)[owner] & first))


# --- from scores to figures ---------------------------------------------------------------------


class Figure(Area):
    """A figure with both ends of its interval."""

    low: float
    high: float


class Roc(Kind):
    """What an attack reached.

    `rates` has the true-positive rate by false-positive rate. `accuracy` is that of the best
    threshold with as many members as others. The threshold is chosen on the same scores, so it is
    above 1/2 even for an attack that knows nothing.
    """

    auc: Figure
    accuracy: float

    def thinned(self) -> "Roc":
        """Return the same figures with a curve that is short enough for a file."""
        rates = np.array([x for x, _ in self.curve])
        wanted = np.concatenate([np.linspace(0, 1, 201), np.logspace(-4, 0, 101)])
        kept = np.unique(np.searchsorted(rates, np.sort(wanted), side="right") - 1)
        return self.model_copy(update={"curve": [self.curve[k] for k in kept]})


def measured(members: F64, others: F64, *, confidence: float = _CONFIDENCE, seed: int = 0) -> Roc:
    """Return how well the scores tell the two groups apart; higher scores are for members.

    The area is how often a member scores above another, ties counting half: 1/2 on average for
    random scores. The rate at a false-positive rate is that of the lowest threshold which keeps to
    it. Intervals have the quantiles of a bootstrap over members and over others.
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
    """Return the area under the curve.

    >>> area_of(np.array([3.0, 2.0]), np.array([2.0, 1.0]))
    0.875
    """
    groups, cuts = _places(members, others)
    return _figures(*(np.bincount(group, minlength=cuts) for group in groups))[0]


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
    return Figure(value=mean, low=float(max(mean - wide, 0)), high=float(min(mean + wide, 1)))


def _places(members: F64, others: F64) -> tuple[list[IntArray], int]:
    """Return the place of each score among all different ones, for both groups; how many places."""
    scores, place = np.unique(np.concatenate([members, others]), return_inverse=True)
    return np.split(place, [len(members)]), len(scores)


def _figures(members: IntArray, others: IntArray) -> list[float]:
    """Return the area and the true-positive rates; both count the scores at each threshold."""
    caught, wrong = _above(members), _above(others)
    # Both fall from 1 to 0 with the threshold. A tie is a slanted piece, so it counts half.
    area = float(((caught[:-1] + caught[1:]) * (wrong[:-1] - wrong[1:])).sum() / 2)
    return [area, *(float(caught[wrong <= rate].max()) for rate in RATES)]


def _above(counts: IntArray) -> F64:
    """Return the share of the scores at or above each threshold, and 0 above all."""
    passed = np.cumsum(np.append(0, counts[::-1]))[::-1]
    return np.asarray(passed / passed[0])


# --- the attackers ------------------------------------------------------------------------------


def loss_attack(targets: Sequence[Answers]) -> Roc:
    """Return how well minus the loss tells members from others.

    Scores are centred per repetition, by the median of both groups together, and then pooled. A
    person may be in several repetitions, so the interval is somewhat too narrow.
    """
    scores = np.concatenate([np.nanmedian(views.losses) - views.losses for views, _ in targets])
    inside = np.concatenate([inside for _, inside in targets])
    known = np.isfinite(scores)
    return measured(scores[known & inside], scores[known & ~inside])


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


def ratio_attack(losses: F64, member: BoolArray, *, targets: int) -> Roc:
    """Return how well the ratios tell members from others; the first models are targets in turn.

    Losses are centred per model: a model that is better for everybody says nothing of anybody.
    The scores of all targets are pooled.
    """
    centred = losses - np.nanmedian(losses, axis=1, keepdims=True)
    scores = np.stack([ratio_scores(centred, member, target) for target in range(targets)])
    known, inside = np.isfinite(scores), member[:targets]
    return measured(scores[known & inside], scores[known & ~inside])


def forest_attack(
    federation: Federation, shadows: Sequence[Answers], targets: Sequence[Answers], *, seed: int
) -> tuple[Figure, Figure]:
    """Return accuracy and AUC of the forest's guesses, means over repetitions.

    There are as many members as others. The forest never sees the target's members, so an attack
    that knows nothing has accuracy 1/2 on average.
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
    """Return what the forest sees: one row for each person, her features, then her list.

    A categorical feature has a column for each value, a number a column of its own; the list has
    1 in the column of each of its items.
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
    """Return for each asked row how likely its person is a member, by a random forest.

    `rows` and `inside` are the shadow users and whether they trained the shadow model. Classes
    are weighted to be balanced, because most shadow users did.
    """
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(class_weight="balanced", random_state=seed)
    forest.fit(rows, inside)
    return np.asarray(forest.predict_proba(asked)[:, 1], np.float64)


def _spread(codes: CodeArray, weights: npt.NDArray[np.floating], columns: int) -> sp.csr_matrix:
    """Return the bags as rows over all their columns."""
    row = np.repeat(np.arange(len(codes)), codes.shape[1])
    filled = weights.ravel() != 0
    cells = (row[filled], codes.ravel()[filled])
    return sp.csr_matrix((weights.ravel()[filled], cells), shape=(len(codes), columns))
