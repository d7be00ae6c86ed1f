"""The figures of each protocol, against one person, one line and one candidate at a time."""

import math
from typing import Any

import numpy as np
import pytest

from privrec.core.scorer import Scorer
from privrec.data.federation import Federation
from privrec.evaluation.protocols import Protocol
from privrec.evaluation.ranking import EvalReport
from privrec.types import Candidates, ProtocolName
from protocol_toys import everybody, items, moody, of, report_of, returning, timed

KS = (5, 10, 20, 30)


def slow_figures(
    federation: Federation, protocol: Protocol, scorer: Scorer, candidates: Candidates
) -> dict[str, Any]:
    """One person, one line, one candidate at a time."""
    hits, recall, gains = [], [], []
    view = protocol.testing(federation)
    for person in everybody(federation):
        held = view(np.array([person]))
        kept, hidden, tested = (set(part) for part in of(held))
        if not tested:
            continue
        (table,) = scorer(held.kept, held.tested)
        scores = table[0].tolist()
        seen = kept | hidden if candidates == "unseen" else kept
        among = [item for item in range(federation.n_items) if item not in seen]
        ranks = []
        for item in items(held.tested):
            rank = 1.0
            for other in among:
                if other != item:
                    rank += (scores[other] > scores[item]) + 0.5 * (scores[other] == scores[item])
            ranks.append(rank)
        hits.append([sum(rank <= k for rank in ranks) / len(ranks) for k in KS])
        # One list of all candidates and all tested items. Where they tie, the tested ones have
        # the places that as many random ones would have on average.
        places = []
        for value in sorted({scores[item] for item in tested}, reverse=True):
            mine = [item for item in tested if scores[item] == value]
            listed = set(among) | tested
            ahead = sum(scores[item] > value for item in listed)
            tied = sum(scores[item] == value for item in listed)
            places += [ahead + n * (tied + 1) / (len(mine) + 1) for n in range(1, len(mine) + 1)]
        assert len(places) == len(tested)
        recall.append([sum(place <= k for place in places) / len(tested) for k in KS])
        gains.append(
            [
                sum(1 / math.log2(place + 1) for place in places if place <= k)
                / sum(1 / math.log2(n + 1) for n in range(1, min(k, len(tested)) + 1))
                for k in KS
            ]
        )
    columns = [np.mean(rows, axis=0).tolist() for rows in (hits, recall, gains)]
    return {"tested": len(hits), "hits": columns[0], "recall": columns[1], "ndcg": columns[2]}


@pytest.mark.parametrize("candidates", ["unseen", "not-kept"])
@pytest.mark.parametrize("name", ["halves", "leave-last", "files"])
def test_figures_equal_a_slow_loop(name: ProtocolName, candidates: Candidates) -> None:
    federation = returning()
    protocol = Protocol(name=name, candidates=candidates, seed=1, validation_share=0.2)
    report = figures(federation, protocol, moody(45))
    slow = slow_figures(federation, protocol, moody(45), candidates)
    assert report.tested == slow["tested"] > 30
    assert list(report.hits.values()) == pytest.approx(slow["hits"])
    assert list(report.recall.values()) == pytest.approx(slow["recall"])
    assert list(report.list_ndcg.values()) == pytest.approx(slow["ndcg"])
    assert set(report.as_json()["recall"]) == {"5", "10", "20", "30"}


@pytest.mark.parametrize("name", ["halves", "leave-last", "files"])
def test_the_candidates_make_a_difference(name: ProtocolName) -> None:
    federation = returning()
    unseen, kept = (
        figures(federation, Protocol(name=name, candidates=among, seed=1), moody(45))
        for among in ("unseen", "not-kept")
    )
    assert all(unseen.hits[k] >= kept.hits[k] for k in KS)
    assert unseen.ndcg[30] > kept.ndcg[30]


def figures(federation: Federation, protocol: Protocol, scorer: Scorer) -> EvalReport:
    return report_of(
        protocol.testing(federation),
        everybody(federation),
        scorer,
        n_items=federation.n_items,
        candidates=protocol.candidates,
        with_recall=True,
    )


def test_a_tested_item_that_the_device_keeps_is_ranked_all_the_same() -> None:
    """Her favourite is on the device and scores highest: rank 1, not last and not left out."""
    lines = [("ann", item, 5.0, time) for item, time in ((7, 1.0), (8, 2.0), (7, 3.0))]
    federation = timed(lines, people=["ann"], n_items=40)
    scores = np.zeros((1, 40))
    scores[0, 7] = 1.0
    for candidates in ("unseen", "not-kept"):
        protocol = Protocol(name="leave-last", seed=0, validation_share=0.0, candidates=candidates)
        report = figures(federation, protocol, lambda kept, tested: [scores])
        assert (report.tested, report.hits[5], report.recall[5]) == (1, 1.0, 1.0)
        assert math.isnan(report.new_only[5])
