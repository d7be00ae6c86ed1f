"""Testing (spec section 6): the kept lines adapt the device's model, then all items are ranked."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from privrec.core.phase import Advance, silent
from privrec.core.scorer import Scorer, Scores, TableScorer, people_at_a_time
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.data.text import brief
from privrec.evaluation.intervals import (
    Interval,
    intervals,
    intervals_of_means,
    intervals_of_ratios,
)
from privrec.evaluation.metrics import (
    KS,
    PeopleFigures,
    Ranks,
    figures_of,
    joined,
    means,
    parts_of,
    shares_of_hits,
)
from privrec.evaluation.protocols import Held, View, in_halves
from privrec.evaluation.ranks import Rows, rank_table
from privrec.types import F64, BoolArray, Candidates, Halving, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """Metrics over the tested people, by k; `skipped` is the number of people without a test line.

    `recall` is empty if the protocol does not use it. `interval` belongs to `hits`, `new_interval`
    to `new_only`. `beyond` has, by name and k, metrics of the lists that devices would show:
    `coverage` of the catalogue, `novelty`, and the share of the hits that popularity has too
    (`popular_hits`), each None if unknown. `beyond` is empty if the report is about a part of the
    people. `beyond_interval` has the intervals of `novelty` and `popular_hits`; coverage is a count
    and has none.
    """

    tested: int
    skipped: int
    hits: dict[int, float]
    ndcg: dict[int, float]
    list_ndcg: dict[int, float]
    new_only: dict[int, float]
    recall: dict[int, float] = field(default_factory=dict)
    interval: dict[int, Interval] = field(default_factory=dict)
    new_interval: dict[int, Interval] = field(default_factory=dict)
    beyond: dict[str, dict[int, float | None]] = field(default_factory=dict)
    beyond_interval: dict[str, dict[int, Interval]] = field(default_factory=dict)

    def __repr__(self) -> str:
        hits = ", ".join(f"@{k} {value:.3f}" for k, value in self.hits.items())
        return f"EvalReport({self.tested:,} people tested, hits {hits})"

    def as_json(self) -> dict[str, Any]:
        """Return the metrics in the format of `evaluation.json`."""
        beyond = {
            n: {str(k): value for k, value in by_k.items()} for n, by_k in self.beyond.items()
        }
        sure = {name: ends_json(ends) for name, ends in self.beyond_interval.items() if ends}
        new = {"interval": ends_json(self.new_interval)} if self.new_interval else {}
        more = {
            "recall": text_keys(self.recall),
            "interval": ends_json(self.interval),
            "beyond": beyond,
            "beyond_interval": sure,
        }
        return {
            "hits": text_keys(self.hits),
            "ndcg": text_keys(self.ndcg),
            "list_ndcg": text_keys(self.list_ndcg),
            "new_only": {"hits": text_keys(self.new_only), **new},
            **{name: figures for name, figures in more.items() if figures},
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tested:
    """The results of a scorer for each of some people.

    `ids` and `items` have for each tested person her number (`Clients.ids`) and the number of
    distinct items on her device. `listed`, shape (len(KS), n_items), tells for each k which items
    are in anybody's list. `digest` is a hash of the tested people, items and candidates. If not all
    people are here, `listed` is None and `digest` is "".
    """

    asked: int
    ids: IntArray
    items: IntArray
    figures: PeopleFigures
    listed: BoolArray | None = None
    digest: str = ""

    __repr__ = brief

    def of(self, chosen: BoolArray) -> "Tested":
        """Return the results of some of the tested people."""
        return Tested(
            asked=int(chosen.sum()),
            ids=self.ids[chosen],
            items=self.items[chosen],
            figures=self.figures.take(chosen),
        )

    def in_order(self) -> "Tested":
        """Return the results with people sorted by their numbers.

        An interval depends slightly on the order of people, which must not be that of a file.
        """
        order = np.argsort(self.ids, kind="stable")
        figures = self.figures.take(order)
        return replace(self, ids=self.ids[order], items=self.items[order], figures=figures)

    def report(self, *, with_recall: bool = False) -> EvalReport:
        """Return the report: the means over people."""
        figures = self.figures
        return EvalReport(
            tested=len(self.items),
            skipped=self.asked - len(self.items),
            hits=means(figures.hits),
            ndcg=means(figures.ndcg),
            list_ndcg=means(figures.list_ndcg),
            new_only=means(figures.new_only),
            recall=means(figures.recall) if with_recall else {},
            interval=intervals(figures.hits),
            new_interval=intervals(figures.new_only),
            beyond={} if self.listed is None else _beyond(figures, self.listed),
            beyond_interval={} if self.listed is None else _beyond_interval(figures),
        )


def _beyond(figures: PeopleFigures, listed: BoolArray) -> dict[str, dict[int, float | None]]:
    figures_by_name = {
        "coverage": dict(zip(KS, listed.mean(axis=1).tolist(), strict=True)),
        "novelty": means(figures.novelty),
        "popular_hits": shares_of_hits(figures),
    }
    return {
        name: {k: None if np.isnan(value) else value for k, value in by_k.items()}
        for name, by_k in figures_by_name.items()
    }


def _beyond_interval(figures: PeopleFigures) -> dict[str, dict[int, Interval]]:
    popular = intervals_of_ratios(figures.popular, figures.hits)
    return {
        "novelty": intervals_of_means(figures.novelty),
        "popular_hits": {k: (max(low, 0.0), min(high, 1.0)) for k, (low, high) in popular.items()},
    }


def evaluate(
    federation: Federation,
    people: IntArray,
    scorer: Scorer,
    *,
    seed: int,
    halving: Halving = "random",
    on_progress: Advance = silent,
) -> EvalReport:
    """Return the metrics of a scorer for `people` by the paper's protocol, which halves their data.

    People with fewer than two likes, or without a like in the second half, are skipped and counted.
    """
    view = partial(in_halves, federation, seed, halving)
    scorers = {"": scorer}
    tested = measure(view, people, scorers, n_items=federation.n_items, on_progress=on_progress)
    return tested[""].report()


def measure(
    view: View,
    people: IntArray,
    scorers: Mapping[str, Scorer],
    *,
    n_items: int,
    candidates: Candidates = "unseen",
    few_only: Collection[str] = (),
    fewer_than: int = 0,
    surprise: F64 | None = None,
    on_progress: Advance = silent,
) -> dict[str, Tested]:
    """Return the results of each scorer for `people`, by name. All data is read once.

    `view` returns what is on a device and what is tested. People without a tested line are skipped
    and counted. The scorers in `few_only` are used only for people with fewer than `fewer_than`
    items on their device. `surprise` has a number for each item, which decides whether the item is
    head or tail and whose mean over a list is the novelty. The scorer named "popularity", if given,
    decides which hits are popular. At most `TABLE_SIZE` scores are in memory at a time.
    """
    most = people_at_a_time(n_items)
    parts = _parts_tested(surprise)
    names = sorted(scorers, key=lambda name: name != POPULARITY)
    ids, items = [people[:0]], [people[:0]]
    figures: dict[str, list[PeopleFigures]] = {name: [] for name in names}
    listed = {name: np.zeros((len(KS), n_items), np.bool_) for name in names}
    marks = [hashlib.sha256() for _ in range(_MARKS)]
    for positions in chunks(people, most):
        for held in _parts(view(positions), most):
            _add_marks(marks, held)
            ids.append(held.kept.ids)
            items.append(_distinct(held.kept, n_items))
            small = held.take(np.flatnonzero(items[-1] < fewer_than))
            popular = None
            for name in names:
                asked = small if name in few_only else held
                if not (size := len(asked.kept)):
                    continue
                ranks = _ranks(asked, scorers[name], compete=candidates == "not-kept")
                popular = ranks.rank if name == POPULARITY else popular
                beside = None if name in few_only else popular
                figures[name].append(
                    figures_of(ranks, size, popular=beside, surprise=surprise, part=parts(asked))
                )
                _mark(listed[name], ranks)
        on_progress(len(positions))
    whose, counts = np.concatenate(ids), np.concatenate(items)
    few = counts < fewer_than
    digest = _digest(f"{candidates} {n_items}", marks)
    return {
        name: Tested(
            asked=int(few.sum()) if name in few_only else len(people),
            ids=whose[few] if name in few_only else whose,
            items=counts[few] if name in few_only else counts,
            figures=joined(figures[name]),
            listed=listed[name],
            digest="" if name in few_only else digest,
        )
        for name in scorers
    }


def _parts_tested(surprise: F64 | None) -> Callable[[Held], IntArray | None]:
    """Return a function to the part of the catalogue of each tested line, or to None if unknown."""
    if surprise is None:
        return lambda held: None
    parts = parts_of(surprise)
    return lambda held: parts[held.tested.item]


POPULARITY = "popularity"
_MARKS = 7


def _digest(among: str, marks: Sequence["hashlib._Hash"]) -> str:
    text = " ".join([among, *(mark.hexdigest() for mark in marks)])
    return hashlib.sha256(text.encode()).hexdigest()


def _add_marks(marks: Sequence["hashlib._Hash"], held: Held) -> None:
    """Add tested people and items to the hashes.

    Each array has a hash of its own, to which each group of people is added. So the result does not
    depend on how many people are ranked at a time.
    """
    parts = (held.kept, held.hidden, held.tested)
    arrays = (held.kept.ids, *(part.sizes for part in parts), *(part.item for part in parts))
    for mark, array in zip(marks, arrays, strict=True):
        mark.update(np.ascontiguousarray(array, np.int64).tobytes())


def _mark(listed: BoolArray, ranks: Ranks) -> None:
    for place, k in enumerate(KS):
        items = ranks.listed[:, :k]
        listed[place, items[items >= 0]] = True


def _ranks(held: Held, scorer: Scorer, *, compete: bool) -> Ranks:
    table, rows = _scores(held, scorer)
    return rank_table(
        table,
        rows,
        kept=held.kept,
        hidden=held.hidden,
        tested=held.tested,
        compete=compete,
        own_first=isinstance(scorer, TableScorer) and scorer.own_first,
    )


def _scores(held: Held, scorer: Scorer) -> tuple[Scores, Rows]:
    """Return the scores of all items, with one row per person or per tested line."""
    everybody, owner = np.arange(len(held.kept)), held.tested.owner
    if isinstance(scorer, TableScorer):
        return scorer.table(held.kept), Rows(everybody, owner)
    answers = scorer(held.kept, held.tested.contexts_alone())
    tables = [np.asarray(table) for _, table in zip(everybody, answers, strict=True)]
    sizes = np.array([len(table) for table in tables])
    of_line = (np.cumsum(sizes) - sizes)[owner]
    place = np.where(sizes[owner] > 1, held.tested.place, 0)
    rows = Rows(np.repeat(everybody, sizes), of_line + place)
    return np.concatenate(tables), rows


def _parts(held: Held, most: int) -> Iterator[Held]:
    """Yield the tested people in groups with at most `most` rows of scores, or of one person.

    If lines have contexts, each line may have a row of its own.
    """
    held = held.take(np.flatnonzero(held.tested.sizes > 0))
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
        yield held.take(people[start:stop])
        start = stop


def _distinct(clients: Clients, n_items: int) -> IntArray:
    pairs = np.unique(clients.owner * n_items + clients.item)
    return np.bincount(pairs // n_items, minlength=len(clients))


def ends_json(ends: Mapping[int, Interval]) -> dict[str, list[float]]:
    """Return intervals by k in the format of `evaluation.json`."""
    return {str(k): list(pair) for k, pair in ends.items()}


def text_keys(figures: dict[int, float]) -> dict[str, float | None]:
    """Return the values with k as text. NaN (nothing was tested) becomes null in JSON."""
    return {str(k): None if np.isnan(value) else value for k, value in figures.items()}
