"""Testing (spec section 6): what a device keeps adapts it, then everything is ranked."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from privrec.core.scorer import Scorer, Scores, TableScorer, people_at_a_time
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.evaluation.metrics import (
    Interval,
    PeopleFigures,
    figures_of,
    intervals,
    joined,
    means,
)
from privrec.evaluation.protocols import Held, View, halved
from privrec.evaluation.ranks import Rows, rank_table
from privrec.types import BoolArray, Candidates, Halving, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """Figures over the people tested; keys of the mappings are k. `skipped` had nothing to test.

    `recall` is empty where the protocol does not ask for it, `interval` (of `hits`) where all test
    people were asked.
    """

    tested: int
    skipped: int
    hits: dict[int, float]
    ndcg: dict[int, float]
    list_ndcg: dict[int, float]
    new_only: dict[int, float]
    recall: dict[int, float] = field(default_factory=dict)
    interval: dict[int, Interval] = field(default_factory=dict)

    def __repr__(self) -> str:
        hits = ", ".join(f"@{k} {value:.3f}" for k, value in self.hits.items())
        return f"EvalReport({self.tested:,} people tested, hits {hits})"

    def as_json(self) -> dict[str, Any]:
        """Return the figures in the shape of `evaluation.json`."""
        figures = asdict(self)
        between = {str(k): list(ends) for k, ends in self.interval.items()}
        return {
            "hits": _text_keys(figures["hits"]),
            "ndcg": _text_keys(figures["ndcg"]),
            "list_ndcg": _text_keys(figures["list_ndcg"]),
            "new_only": {"hits": _text_keys(figures["new_only"])},
            **({"recall": _text_keys(figures["recall"])} if self.recall else {}),
            **({"interval": between} if between else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tested:
    """What a scorer reached for each of some people.

    `items` is how many distinct items are on the device of each person who was tested.
    """

    asked: int
    items: IntArray
    figures: PeopleFigures

    def of(self, chosen: BoolArray) -> "Tested":
        """Return the same for some of those who were tested."""
        some = self.figures.take(chosen)
        return Tested(asked=int(chosen.sum()), items=self.items[chosen], figures=some)

    def report(self, *, with_recall: bool = False, with_interval: bool = False) -> EvalReport:
        """Return the means over people."""
        found = self.figures
        return EvalReport(
            tested=len(self.items),
            skipped=self.asked - len(self.items),
            hits=means(found.hits),
            ndcg=means(found.ndcg),
            list_ndcg=means(found.list_ndcg),
            new_only=means(found.new_only),
            recall=means(found.recall) if with_recall else {},
            interval=intervals(found.hits) if with_interval else {},
        )


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
    scorers = {"": scorer}
    found = measure(view, people, scorers, n_items=federation.n_items, on_progress=on_progress)
    return found[""].report()


def measure(
    view: View,
    people: IntArray,
    scorers: Mapping[str, Scorer],
    *,
    n_items: int,
    candidates: Candidates = "unseen",
    few_only: Collection[str] = (),
    fewer_than: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Tested]:
    """Return what each scorer reaches for `people`, by its name, with one look at their data.

    `view` says what is on a device and what is tested; whoever has nothing to test is skipped and
    counted. The scorers in `few_only` are asked only about people with fewer than `fewer_than`
    items on their device. At most `TABLE_SIZE` scores are in memory at a time.
    """
    most = people_at_a_time(n_items)
    items: list[IntArray] = []
    found: dict[str, list[PeopleFigures]] = {name: [] for name in scorers}
    for positions in chunks(people, most):
        held = _testable(view(positions))
        items.append(_distinct(held.kept, n_items))
        few = np.flatnonzero(items[-1] < fewer_than)
        for name, scorer in scorers.items():
            asked = _take(held, few) if name in few_only else held
            for part in _parts(asked, most):
                found[name].append(_figures(part, scorer, compete=candidates == "not-kept"))
        if on_progress is not None:
            on_progress(len(positions))
    everybody = np.concatenate([people[:0], *items])
    few_of_them = everybody[everybody < fewer_than]
    return {
        name: Tested(
            asked=len(few_of_them) if name in few_only else len(people),
            items=few_of_them if name in few_only else everybody,
            figures=joined(figures),
        )
        for name, figures in found.items()
    }


def _figures(held: Held, scorer: Scorer, *, compete: bool) -> PeopleFigures:
    """Return the figures of people who all have something to test."""
    table, rows, bonus = _scores(held, scorer)
    ranks = rank_table(
        table,
        rows,
        kept=held.kept,
        hidden=held.hidden,
        tested=held.tested,
        compete=compete,
        bonus=bonus,
    )
    return figures_of(ranks, len(held.kept))


def _scores(held: Held, scorer: Scorer) -> tuple[Scores, Rows, float]:
    """Return the scores of all items, a row for each person or for each of her tested lines."""
    everybody, owner = np.arange(len(held.kept)), held.tested.owner
    if isinstance(scorer, TableScorer):
        return scorer.table(held.kept), Rows(everybody, owner), scorer.bonus
    # A scorer gets the context of the tested lines, never their items.
    asked = replace(
        held.tested,
        item=np.zeros_like(held.tested.item),
        value=np.zeros_like(held.tested.value),
    )
    tables = [
        np.asarray(table) for _, table in zip(everybody, scorer(held.kept, asked), strict=True)
    ]
    sizes = np.array([len(table) for table in tables])
    of_line = (np.cumsum(sizes) - sizes)[owner]
    # Where each line has a row, they are in the order of the lines.
    place = np.arange(len(owner)) - held.tested.offsets[owner]
    rows = Rows(np.repeat(everybody, sizes), of_line + np.where(sizes[owner] > 1, place, 0))
    return np.concatenate(tables), rows, 0.0


def _testable(held: Held) -> Held:
    return _take(held, np.flatnonzero(held.tested.sizes > 0))


def _take(held: Held, people: IntArray) -> Held:
    return Held(
        kept=held.kept.take(people),
        hidden=held.hidden.take(people),
        tested=held.tested.take(people),
    )


def _parts(held: Held, most: int) -> Iterator[Held]:
    """Return the people in parts of at most `most` rows of scores, or of one person.

    Where lines have a context, each may have a row of its own.
    """
    people = np.arange(len(held.kept))
    if not held.tested.context:
        if len(people):
            yield held
        return
    start = 0
    ends = np.cumsum(held.tested.sizes)
    while start < len(people):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + most, side="right")))
        yield _take(held, people[start:stop])
        start = stop


def _distinct(clients: Clients, n_items: int) -> IntArray:
    """Return how many different items each client has."""
    pairs = np.unique(clients.owner * n_items + clients.item)
    return np.bincount(pairs // n_items, minlength=len(clients))


def _text_keys(figures: dict[int, float]) -> dict[str, float | None]:
    """Return the figures by k as text; NaN (nothing was tested) becomes null for JSON."""
    return {str(k): None if np.isnan(value) else value for k, value in figures.items()}
