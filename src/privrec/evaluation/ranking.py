"""The protocol of spec section 6: halve each test person's data, adapt, rank all items."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from privrec.data.federation import Clients, Federation, chunks
from privrec.data.splits import Halving, halve
from privrec.evaluation.metrics import (
    KS,
    UserRanks,
    hits_at,
    list_ndcg_at,
    ndcg_at,
    new_hits_at,
    rank_user,
)
from privrec.types import IntArray

Scores = npt.NDArray[np.floating]

Scorer = Callable[[Clients, Clients], Iterable[Scores]]
"""(the data on each device, the held-out lines) -> each client's scores of all items.

Of the held-out lines a scorer may use the context and nothing else. Scores have shape
(1, n_items), or one row for each line of the client.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """Figures over the test people; keys of the mappings are k. `skipped` people had no test."""

    tested: int
    skipped: int
    hits: dict[int, float]
    ndcg: dict[int, float]
    list_ndcg: dict[int, float]
    new_only: dict[int, float]

    def as_json(self) -> dict[str, Any]:
        """Return the figures in the shape of `evaluation.json`."""
        figures = asdict(self)
        return {
            "hits": _text_keys(figures["hits"]),
            "ndcg": _text_keys(figures["ndcg"]),
            "list_ndcg": _text_keys(figures["list_ndcg"]),
            "new_only": {"hits": _text_keys(figures["new_only"])},
        }


def evaluate(
    federation: Federation,
    people: IntArray,
    scorer: Scorer,
    *,
    seed: int,
    halving: Halving = "random",
    on_progress: Callable[[int], None] | None = None,
) -> EvalReport:
    """Return the figures of a scorer over `people`, a few hundred of them in memory at a time.

    People with fewer than two likes, or with no like in the second half, are skipped and counted.
    """
    ranked: list[UserRanks] = []
    for positions in chunks(people, 256):
        ranked += _rank_chunk(federation.take(positions), scorer, seed=seed, halving=halving)
        if on_progress is not None:
            on_progress(len(positions))
    return EvalReport(
        tested=len(ranked),
        skipped=len(people) - len(ranked),
        hits={k: hits_at(ranked, k) for k in KS},
        ndcg={k: ndcg_at(ranked, k) for k in KS},
        list_ndcg={k: list_ndcg_at(ranked, k) for k in KS},
        new_only={k: new_hits_at(ranked, k) for k in KS},
    )


def with_few_items(
    federation: Federation,
    people: IntArray,
    *,
    seed: int,
    halving: Halving = "random",
    fewer_than: int = 20,
) -> IntArray:
    """Return the people whose device has fewer items than the limit when it adapts."""
    found = []
    for positions in chunks(people, 256):
        first, _ = halve(federation.take(positions), seed=seed, halving=halving)
        items = [len(np.unique(_items(first, k))) for k in range(len(first))]
        found.append(positions[np.array(items, np.int64) < fewer_than])
    return np.concatenate([people[:0], *found])


def _rank_chunk(
    clients: Clients, scorer: Scorer, *, seed: int, halving: Halving
) -> list[UserRanks]:
    first, second = halve(clients, seed=seed, halving=halving)
    liked = second.keep(second.liked)
    likes = np.bincount(clients.owner[clients.liked], minlength=len(clients))
    testable = np.flatnonzero((likes >= 2) & (liked.sizes > 0))
    first, second, liked = first.take(testable), second.take(testable), liked.take(testable)
    return [
        rank_user(
            scores,
            liked=_items(liked, k),
            first_half=_items(first, k),
            second_half=_items(second, k),
        )
        for k, scores in zip(range(len(testable)), scorer(first, liked), strict=True)
    ]


def _items(clients: Clients, k: int) -> IntArray:
    return clients.item[clients.offsets[k] : clients.offsets[k + 1]].astype(np.int64)


def _text_keys(figures: dict[int, float]) -> dict[str, float | None]:
    """Return the figures by k as text; NaN (nothing was tested) becomes null for JSON."""
    return {str(k): None if np.isnan(value) else value for k, value in figures.items()}
