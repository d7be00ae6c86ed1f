"""What a model says about people: her loss, and her list of ten."""

import io
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.special import logsumexp

from privrec.core.scorer import Scorer
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.errors import RunFolderError
from privrec.runs.folder import write_whole
from privrec.types import F64, BoolArray, CodeArray, IntArray

LIST_LENGTH = 10
NO_ITEM = -1
_CHUNK = 64
"""People whose scores of all items are in memory at a time. Chosen by hand."""
_LINES = 20
"""Of so many likes a person's loss is the mean, where each has a context to be scored in."""
_LARGEST = 1e30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Views:
    """What one model says about each of `people`, in that order.

    `losses` has one number each, NaN for whoever has no like. `lists`, shape (people, 10), has the
    items of her list, best first; `NO_ITEM` where fewer are left.
    """

    people: IntArray
    losses: F64
    lists: CodeArray


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
        for place, k, scores in zip(
            places[known], range(len(known)), scorer(clients, _without_items(asked)), strict=True
        ):
            lines = asked.take(np.array([k]))
            whole = clients.take(np.array([k]))
            own = whole.item.astype(np.int64)
            table = np.nan_to_num(
                np.asarray(scores, np.float64), nan=-_LARGEST, posinf=_LARGEST, neginf=-_LARGEST
            )
            losses[place] = loss_of(table, lines.item.astype(np.int64), lines.liked)
            best = best_items(table, own)
            lists[place, : len(best)] = best
    return Views(people=people, losses=losses, lists=lists)


def loss_of(scores: F64, items: IntArray, liked: BoolArray) -> float:
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


def best_items(scores: F64, own: IntArray) -> IntArray:
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


def _without_items(clients: Clients) -> Clients:
    """Return the lines with their contexts and nothing else, as a scorer may see them."""
    return replace(
        clients,
        item=np.zeros_like(clients.item),
        value=np.zeros_like(clients.value),
        liked=np.ones_like(clients.liked),
    )
