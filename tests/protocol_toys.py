"""People with times, and a test file, whose answer under each protocol is plain."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from privrec.core.scorer import Scorer, Scores
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.manifest import Manifest, Public
from privrec.data.tables import Tables, to_federation
from privrec.evaluation.protocols import Held, View
from privrec.evaluation.ranking import EvalReport, measure
from privrec.types import Candidates, IntArray

Line = tuple[str, int, float, float]


def timed(
    lines: list[Line],
    *,
    people: list[str],
    n_items: int = 60,
    test: list[Line] | None = None,
    time: bool = True,
) -> Federation:
    """(person, item, stars, time); more than 3 stars are a like."""
    columns = ("user", "item", "stars", "when")
    frames = [
        None if rows is None else pl.DataFrame(rows, schema=columns, orient="row")
        for rows in (lines, test)
    ]
    assert frames[0] is not None
    return to_federation(
        Tables(
            manifest=Manifest(
                name="toy",
                value="stars",
                time="when" if time else None,
                positive_above=3.0,
                public=Public(people=1000),
            ),
            interactions=frames[0],
            users=pl.DataFrame({"id": people}),
            items=pl.DataFrame({"id": list(range(n_items))}),
            test=frames[1],
        )
    )


def everybody(federation: Federation) -> IntArray:
    return np.arange(federation.n_clients)


def items(clients: Clients, k: int = 0) -> list[int]:
    rows = slice(int(clients.offsets[k]), int(clients.offsets[k + 1]))
    return [int(item) for item in clients.item[rows]]


def of(held: Held, k: int = 0) -> tuple[list[int], list[int], list[int]]:
    return items(held.kept, k), items(held.hidden, k), items(held.tested, k)


def report_of(
    view: View,
    people: IntArray,
    scorer: Scorer,
    *,
    n_items: int,
    candidates: Candidates = "unseen",
    with_recall: bool = False,
) -> EvalReport:
    """Return the figures of one scorer."""
    found = measure(view, people, {"": scorer}, n_items=n_items, candidates=candidates)
    return found[""].report(with_recall=with_recall)


def moody(n_items: int) -> Scorer:
    """Scores with many ties that depend on the person alone."""

    def score(kept: Clients, tested: Clients) -> Iterator[Scores]:
        for person in kept.ids:
            draw = np.random.default_rng(int(person) % 2**64)
            yield draw.integers(0, 25, (1, n_items)).astype(np.float64)

    return score


def returning(n_items: int = 45) -> Federation:
    """Fifty people who return to items, also from the one file to the other."""
    draw = np.random.default_rng(0)
    people = [f"p{n}" for n in range(50)]

    def some(most: int) -> list[Line]:
        return [
            (who, int(draw.integers(n_items)), float(draw.integers(1, 6)), float(draw.integers(9)))
            for who in people
            for _ in range(draw.integers(0, most))
        ]

    return timed(some(25), people=people, n_items=n_items, test=some(12))
