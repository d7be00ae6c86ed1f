"""Views of a client's sequence, drawn on the device (the paper's section on SSL).

The sequence is the person's likes in the order of time, each item once. A view is a window of the
sequence in two versions: one with an item replaced by a negative, the other with a segment replaced
by another segment of the same person.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from privrec.data.clients import Clients
from privrec.seeds import client_words
from privrec.types import IntArray, Leaf

SHORTEST = 3
"""The smallest length of a sequence with two segments that do not overlap; clients with a shorter
sequence are skipped."""


class SequenceClient(NamedTuple):
    """One client's V views, padded; a pytree. Items are indices into `rows`.

    - `rows` (R,): catalogue positions, padded with the size of the catalogue.
    - `masked` (V, L): windows with one item replaced; `truth` (V,) is the original item.
    - `pool` (P,): negatives for all views.
    - `torn` (V, L): the same windows with a segment replaced.
    - `segments` (V, 1 + K, M): the original segment, then K others; the first of these is the
      replacement.
    - `length`, `span` (V,): the number of items in a window and in its segments, without padding.
    - `size`: the number of views without padding.
    """

    rows: Leaf
    masked: Leaf
    truth: Leaf
    pool: Leaf
    torn: Leaf
    segments: Leaf
    length: Leaf
    span: Leaf
    size: Leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """The rules that make views from a sequence.

    A client has at most `most` views per round, with windows of up to `window` items. A segment has
    up to `segment` items, and `others` negative segments. All views of a client share `negatives`
    items that she never saw.
    """

    most: int
    window: int
    segment: int
    negatives: int
    others: int
    batch_size: int

    @property
    def padded(self) -> int:
        """The padded number of views of every client (V): whole batches."""
        return -(-self.most // self.batch_size) * self.batch_size


def draw_views(
    clients: Clients, views: Views, *, n_items: int, seed: int, round_index: int
) -> list[SequenceClient]:
    """Return each client's views of one round; a client with too short a sequence has size 0."""
    words = client_words(seed, round_index, "views", clients.ids, np.zeros(1, np.int64))
    made = []
    for k in range(len(clients)):
        rows = slice(int(clients.offsets[k]), int(clients.offsets[k + 1]))
        draw = np.random.Generator(np.random.PCG64(int(words[k])))
        sequence = in_order(clients.item[rows][clients.liked[rows]])
        made.append(_views_of(sequence, clients.item[rows], views, n_items, draw))
    return made


def in_order(items: Leaf) -> IntArray:
    """Return each item once, in the order of the first occurrences.

    >>> in_order(np.array([7, 3, 7, 9])).tolist()
    [7, 3, 9]
    """
    _, first = np.unique(items, return_index=True)
    return np.asarray(items, np.int64)[np.sort(first)]


def empty_client(views: Views, size: int, n_items: int) -> SequenceClient:
    """Return a client without views and with `size` rows, to compile or for a skipped client."""
    count, window, segment = views.padded, views.window, views.segment
    return SequenceClient(
        rows=np.full(size, n_items, np.int32),
        masked=np.zeros((count, window), np.int32),
        truth=np.zeros(count, np.int32),
        pool=np.zeros(views.negatives, np.int32),
        torn=np.zeros((count, window), np.int32),
        segments=np.zeros((count, 1 + views.others, segment), np.int32),
        length=np.ones(count, np.int32),
        span=np.ones(count, np.int32),
        size=np.int32(0),
    )


def row_buckets(largest: int, views: Views) -> list[int]:
    """Return all padded numbers of rows for clients with up to `largest` items."""
    top = _row_bucket(
        min(largest, views.most * (views.window + views.segment * (1 + views.others)))
        + views.negatives
    )
    return [top >> i for i in range((top // _LEAST_ROWS).bit_length())]


_LEAST_ROWS = 128
"""The smallest number of rows to which a client is padded. Chosen by hand; not tuned."""


def _row_bucket(count: int) -> int:
    return _LEAST_ROWS << max(0, (-(-count // _LEAST_ROWS) - 1).bit_length())


def _views_of(
    sequence: IntArray, seen: Leaf, views: Views, n_items: int, draw: np.random.Generator
) -> SequenceClient:
    pool = unseen(seen, views.negatives, n_items, draw)
    total = len(sequence)
    if total < SHORTEST or len(pool) == 0:
        return empty_client(views, _LEAST_ROWS, n_items)
    count, width = min(total, views.most), min(total, views.window)
    span = min(views.segment, (width + 1) // 3)
    place = draw.permutation(total)[:count]
    start = draw.integers(np.maximum(0, place - width + 1), np.minimum(place, total - width) + 1)
    window = start[:, None] + np.arange(width)
    masked = sequence[window]
    masked[np.arange(count), place - start] = draw.choice(pool, count)
    begin = start + draw.integers(0, width - span + 1, count)
    others = other_places(begin, span, total, views.others, draw)
    torn = sequence[window]
    offset = (begin - start)[:, None] + np.arange(span)
    torn[np.arange(count)[:, None], offset] = sequence[others[:, :1] + np.arange(span)]
    starts = np.concatenate([begin[:, None], others], axis=1)
    segments = sequence[starts[:, :, None] + np.arange(span)]
    return _packed(
        [masked, sequence[place], pool, torn, segments],
        views,
        n_items,
        count=count,
        width=width,
        span=span,
    )


def _packed(
    drawn: Sequence[IntArray], views: Views, n_items: int, *, count: int, width: int, span: int
) -> SequenceClient:
    rows, index = np.unique(np.concatenate([part.ravel() for part in drawn]), return_inverse=True)
    ends = np.cumsum([part.size for part in drawn])
    masked, truth, pool, torn, segments = (
        index[end - part.size : end].reshape(part.shape)
        for end, part in zip(ends, drawn, strict=True)
    )
    made = empty_client(views, _row_bucket(len(rows)), n_items)
    made.rows[: len(rows)] = rows
    made.masked[:count, :width], made.truth[:count] = masked, truth
    made.pool[:] = np.resize(pool, views.negatives)
    made.torn[:count, :width], made.segments[:count, :, :span] = torn, segments
    made.length[:count], made.span[:count] = width, span
    return made._replace(size=np.int32(count))


def unseen(seen: Leaf, count: int, n_items: int, draw: np.random.Generator) -> IntArray:
    """Return `count` random items that are not in `seen`; none if all items are in `seen`."""
    drawn = draw.integers(n_items, size=4 * count)
    drawn = drawn[~np.isin(drawn, seen)][:count]
    if len(drawn) < count:
        rest = np.setdiff1d(np.arange(n_items), seen)
        drawn = draw.choice(rest, count) if len(rest) else rest
    return drawn


def other_places(
    begin: IntArray, span: int, total: int, count: int, draw: np.random.Generator
) -> IntArray:
    """Return the starts of `count` segments for each start in `begin`; they do not overlap its own.

    With total ≥ 3 · span - 1, at least one side has room for a segment.
    """
    left = np.maximum(0, begin - span + 1)
    right = np.maximum(0, total - 2 * span - begin + 1)
    pick = draw.integers(0, (left + right)[:, None], (len(begin), count))
    beyond = begin[:, None] + span + pick - left[:, None]
    return np.where(pick < left[:, None], pick, beyond)
