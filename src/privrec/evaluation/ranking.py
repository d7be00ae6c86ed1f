"""Testing (spec section 6): what a device keeps adapts it, then everything is ranked."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from privrec.core.scorer import Scorer
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.evaluation.metrics import (
    KS,
    UserRanks,
    hits_at,
    list_ndcg_at,
    ndcg_at,
    new_hits_at,
    rank_user,
    recall_at,
)
from privrec.evaluation.protocols import Held, View, halved
from privrec.types import Candidates, Halving, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """Figures over the people tested; keys of the mappings are k. `skipped` had nothing to test.

    `recall` is empty where the protocol does not ask for it.
    """

    tested: int
    skipped: int
    hits: dict[int, float]
    ndcg: dict[int, float]
    list_ndcg: dict[int, float]
    new_only: dict[int, float]
    recall: dict[int, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the figures in the shape of `evaluation.json`."""
        figures = asdict(self)
        return {
            "hits": _text_keys(figures["hits"]),
            "ndcg": _text_keys(figures["ndcg"]),
            "list_ndcg": _text_keys(figures["list_ndcg"]),
            "new_only": {"hits": _text_keys(figures["new_only"])},
            **({"recall": _text_keys(figures["recall"])} if self.recall else {}),
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
    """Return the figures of a scorer over `people` by the paper's protocol: their data is halved.

    People with fewer than two likes, or with no like in the second half, are skipped and counted.
    """
    view = halved(federation, seed=seed, halving=halving)
    return evaluate_view(view, people, scorer, on_progress=on_progress)


def evaluate_view(
    view: View,
    people: IntArray,
    scorer: Scorer,
    *,
    candidates: Candidates = "unseen",
    with_recall: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> EvalReport:
    """Return the figures of a scorer over `people`, a few hundred of them in memory at a time.

    `view` says what is on a device and what is tested; whoever has nothing to test is skipped and
    counted.
    """
    ranked: list[UserRanks] = []
    for positions in chunks(people, 256):
        ranked += _rank_chunk(view(positions), scorer, compete=candidates == "not-kept")
        if on_progress is not None:
            on_progress(len(positions))
    return EvalReport(
        tested=len(ranked),
        skipped=len(people) - len(ranked),
        hits={k: hits_at(ranked, k) for k in KS},
        ndcg={k: ndcg_at(ranked, k) for k in KS},
        list_ndcg={k: list_ndcg_at(ranked, k) for k in KS},
        new_only={k: new_hits_at(ranked, k) for k in KS},
        recall={k: recall_at(ranked, k) for k in KS} if with_recall else {},
    )


def with_few_items(view: View, people: IntArray, *, fewer_than: int = 20) -> IntArray:
    """Return the people whose device has fewer items than the limit when it adapts."""
    found = []
    for positions in chunks(people, 256):
        kept = view(positions).kept
        items = [len(np.unique(_items(kept, k))) for k in range(len(kept))]
        found.append(positions[np.array(items, np.int64) < fewer_than])
    return np.concatenate([people[:0], *found])


def _rank_chunk(held: Held, scorer: Scorer, *, compete: bool) -> list[UserRanks]:
    testable = np.flatnonzero(held.tested.sizes > 0)
    kept, hidden, tested = (part.take(testable) for part in (held.kept, held.hidden, held.tested))
    # A scorer gets the context of the tested lines, never their items.
    asked = replace(tested, item=np.zeros_like(tested.item), value=np.zeros_like(tested.value))
    return [
        rank_user(
            scores,
            liked=_items(tested, k),
            first_half=_items(kept, k),
            second_half=_items(hidden, k),
            compete=compete,
        )
        for k, scores in zip(range(len(testable)), scorer(kept, asked), strict=True)
    ]


def _items(clients: Clients, k: int) -> IntArray:
    return clients.item[clients.offsets[k] : clients.offsets[k + 1]].astype(np.int64)


def _text_keys(figures: dict[int, float]) -> dict[str, float | None]:
    """Return the figures by k as text; NaN (nothing was tested) becomes null for JSON."""
    return {str(k): None if np.isnan(value) else value for k, value in figures.items()}
