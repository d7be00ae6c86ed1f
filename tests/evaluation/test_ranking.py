import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
import pytest

from privrec.core import scorer as scorer_module
from privrec.core.scorer import Scorer, Scores
from privrec.data.clients import Clients, halve
from privrec.data.federation import Federation, chunks
from privrec.data.manifest import Manifest
from privrec.data.synthetic import SyntheticSettings, synthetic
from privrec.data.tables import Tables, to_federation
from privrec.evaluation import ranking
from privrec.evaluation.protocols import Held, in_halves
from privrec.evaluation.ranking import EvalReport, evaluate, measure
from privrec.types import Halving, IntArray

Line = tuple[str, int, float]


def toy(lines: list[Line], *, n_items: int, people: list[str]) -> Federation:
    """(person, item, stars) in the order of time; more than 3 stars are a like."""
    return to_federation(
        Tables(
            manifest=Manifest(name="toy", value="stars", context=("hour",), positive_above=3.0),
            interactions=pl.DataFrame(
                {
                    "user": [user for user, _, _ in lines],
                    "item": [item for _, item, _ in lines],
                    "stars": [stars for _, _, stars in lines],
                    "hour": [f"h{n % 4}" for n in range(len(lines))],
                }
            ),
            users=pl.DataFrame({"id": people}),
            items=pl.DataFrame({"id": list(range(n_items))}),
        )
    )


def everybody(federation: Federation) -> IntArray:
    return np.arange(federation.n_clients)


def per_client(score: Callable[[Clients, Clients, int], Scores]) -> Scorer:
    def scorer(first: Clients, lines: Clients) -> Iterator[Scores]:
        for k in range(len(first)):
            yield score(first, lines, k)

    return scorer


def rows(clients: Clients, k: int) -> slice:
    return slice(int(clients.offsets[k]), int(clients.offsets[k + 1]))


def marking(n_items: int, mark: float) -> Scorer:
    """A cheating scorer: it knows that everybody likes the first ten items."""

    def score(first: Clients, lines: Clients, k: int) -> Scores:
        table = np.zeros((1, n_items))
        table[0, np.setdiff1d(np.arange(10), first.item[rows(first, k)])] = mark
        return table

    return per_client(score)


# Ann and Bob like ten items each, of 50; 40 are left as candidates.
TEN = [(who, item, 5.0) for who in ("ann", "bob") for item in range(10)]


@pytest.mark.parametrize(
    ("mark", "hits", "ndcg"),
    [
        (1.0, [1, 1, 1, 1], [1, 1, 1, 1]),
        (-1.0, [0, 0, 0, 0], [0, 0, 0, 0]),
        # Everything ties: of 41 places the middle one is the 21st.
        (0.0, [0, 0, 0, 1], [0, 0, 0, 1 / math.log2(22)]),
    ],
)
def test_the_best_the_worst_and_the_silent_scorer(
    mark: float, hits: list[float], ndcg: list[float]
) -> None:
    federation = toy(TEN, n_items=50, people=["ann", "bob"])
    report = evaluate(federation, everybody(federation), marking(50, mark), seed=0)
    assert list(report.hits.values()) == hits
    assert list(report.new_only.values()) == hits
    assert list(report.ndcg.values()) == pytest.approx(ndcg)
    if mark:
        assert list(report.list_ndcg.values()) == pytest.approx(hits)
    assert (report.tested, report.skipped) == (2, 0)


def test_who_has_nothing_to_test_is_skipped_and_counted() -> None:
    lines = [
        ("two likes", 0, 5.0),
        ("two likes", 1, 5.0),
        ("one like", 0, 5.0),
        ("one like", 1, 3.0),
        ("dislikes", 2, 1.0),
        ("dislikes", 3, 1.0),
        # Both likes are in the earlier half: by time there is nothing to test.
        ("early", 0, 5.0),
        ("early", 1, 4.0),
        ("early", 2, 1.0),
        ("early", 3, 2.0),
        ("three", 4, 5.0),
        ("three", 5, 5.0),
        ("three", 6, 5.0),
    ]
    people = ["two likes", "one like", "nobody", "dislikes", "early", "three"]
    federation = toy(lines, n_items=60, people=people)
    seen: list[list[int]] = []

    def score(first: Clients, lines: Clients, k: int) -> Scores:
        seen.append([int(first.ids[k]), *lines.item[rows(lines, k)].tolist()])
        assert not lines.value.any()
        return np.zeros((1, 60))

    report = evaluate(federation, everybody(federation), per_client(score), seed=0, halving="time")
    assert (report.tested, report.skipped) == (2, 4)
    # Of three lines the second half gets two. A scorer is not told which items they have.
    two, three = federation.ids(np.array([0, 5])).tolist()
    assert seen == [[two, 0], [three, 0, 0]]
    some = evaluate(federation, np.array([5, 2]), per_client(score), seed=0, halving="time")
    assert (some.tested, some.skipped) == (1, 1)


def test_nobody_to_test_gives_no_figures() -> None:
    federation = toy([("ann", 0, 5.0)], n_items=40, people=["ann"])
    report = evaluate(federation, everybody(federation), marking(40, 1), seed=0)
    assert (report.tested, report.skipped) == (0, 1)
    assert all(math.isnan(value) for value in report.hits.values())


@pytest.mark.parametrize("halving", ["random", "time"])
def test_a_scorer_has_the_first_half_and_never_the_second(halving: Halving) -> None:
    federation = synthetic(SyntheticSettings(users=80, items=60))
    given: list[tuple[Clients, Clients]] = []

    def spy(first: Clients, lines: Clients) -> Iterator[Scores]:
        given.append((first, lines))
        return iter([np.zeros((1, 60))] * len(first))

    evaluate(federation, everybody(federation), spy, seed=3, halving=halving)
    tested = 0
    for first, lines in given:
        assert first.ids.tolist() == lines.ids.tolist()
        whole = federation.take(first.ids)
        for k in range(len(first)):
            own = first.item[rows(first, k)].tolist()
            when = whole.time[rows(whole, k)].tolist()
            items = dict(zip(when, whole.item[rows(whole, k)].tolist(), strict=True))
            asked = [items[time] for time in lines.time[rows(lines, k)].tolist()]
            assert not lines.item.any()
            assert not lines.value.any()
            truth = dict(
                zip(
                    whole.item[rows(whole, k)].tolist(),
                    whole.value[rows(whole, k)].tolist(),
                    strict=True,
                )
            )
            assert len(own) == len(truth) // 2
            assert not set(own) & set(asked)
            # Exactly the likes that are not on the device are asked for.
            assert set(asked) == {i for i, v in truth.items() if v > 3 and i not in own}
            assert first.value[rows(first, k)].tolist() == [truth[item] for item in own]
            assert lines.liked.all()
            tested += 1
    assert tested > 70


def in_moments(n_items: int) -> Scorer:
    """Scores that depend only on the person and on the context."""

    def score(first: Clients, lines: Clients, k: int) -> Scores:
        hours = lines.context["embed/context.hour"].codes[rows(lines, k), 0]
        person = int(first.ids[k]) % 2**64
        return np.stack(
            [np.random.default_rng([person, int(hour)]).integers(0, 9, n_items) for hour in hours]
        ).astype(np.float64)

    return per_client(score)


def returning_people() -> Federation:
    """40 people with 0 to 24 lines over 45 items, with repeated items and dislikes."""
    draw = np.random.default_rng(0)
    people = [f"p{n}" for n in range(40)]
    lines = [
        (who, int(draw.integers(45)), float(draw.integers(1, 6)))
        for who in people
        for _ in range(draw.integers(0, 25))
    ]
    return toy(lines, n_items=45, people=people)


def slow_evaluate(federation: Federation, scorer: Scorer, *, seed: int) -> EvalReport:
    """One person at a time, one line at a time, one candidate at a time."""
    per_person: list[list[tuple[float, bool]]] = []
    for position in everybody(federation):
        clients = federation.take(np.array([position]))
        first, second = halve(clients, seed=seed)
        asked = second.keep(second.liked)
        if clients.liked.sum() < 2 or len(asked.item) == 0:
            continue
        (table,) = scorer(first, asked)
        seen = set(clients.item.tolist())
        ranks = []
        for line, item in enumerate(asked.item.tolist()):
            scores = table[line].tolist()
            rank = 1.0
            for other in range(federation.n_items):
                if other not in seen:
                    rank += float(scores[other] > scores[item])
                    rank += 0.5 * (scores[other] == scores[item])
            ranks.append((rank, item not in first.item.tolist()))
        per_person.append(ranks)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    ks = (5, 10, 20, 30)
    new = [[r for r, is_new in ranks if is_new] for ranks in per_person]
    return EvalReport(
        tested=len(per_person),
        skipped=federation.n_clients - len(per_person),
        hits={k: mean([mean([float(r <= k) for r, _ in p]) for p in per_person]) for k in ks},
        ndcg={
            k: mean([mean([(r <= k) / math.log2(r + 1) for r, _ in p]) for p in per_person])
            for k in ks
        },
        list_ndcg={},
        new_only={k: mean([mean([float(r <= k) for r in p]) for p in new if p]) for k in ks},
    )


def test_figures_equal_a_slow_loop() -> None:
    federation = returning_people()
    report = evaluate(federation, everybody(federation), in_moments(45), seed=2)
    slow = slow_evaluate(federation, in_moments(45), seed=2)
    assert 20 < report.tested < 40
    assert (report.tested, report.skipped) == (slow.tested, slow.skipped)
    assert report.hits == pytest.approx(slow.hits)
    assert report.ndcg == pytest.approx(slow.ndcg)
    assert report.new_only == pytest.approx(slow.new_only)
    # The three metrics have different values here, so a mix-up would be detected.
    assert report.new_only != pytest.approx(report.hits)


@pytest.mark.parametrize("size", [1, 7])
def test_how_many_are_in_memory_changes_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = returning_people()
    whole = evaluate(federation, everybody(federation), in_moments(45), seed=2)
    progress: list[int] = []
    monkeypatch.setattr(ranking, "chunks", lambda people, _: chunks(people, size))
    pieces = evaluate(
        federation,
        everybody(federation),
        in_moments(45),
        seed=2,
        on_progress=progress.append,
    )
    assert pieces == whole
    assert sum(progress) == 40
    assert len(progress) == -(-40 // size)


def test_order_and_company_of_people_change_nothing() -> None:
    federation = returning_people()
    whole = evaluate(federation, everybody(federation), in_moments(45), seed=2)
    turned = evaluate(federation, everybody(federation)[::-1], in_moments(45), seed=2)
    assert turned.hits == pytest.approx(whole.hits)
    apart = [
        evaluate(federation, np.array([k]), in_moments(45), seed=2) for k in everybody(federation)
    ]
    alone = [report.hits[10] for report in apart if report.tested]
    assert sum(alone) / len(alone) == pytest.approx(whole.hits[10])


def test_the_seed_decides_the_halves() -> None:
    federation = returning_people()
    one, other = (
        evaluate(federation, everybody(federation), in_moments(45), seed=seed) for seed in (2, 3)
    )
    assert one.hits != other.hits


def test_json_has_text_keys() -> None:
    figures = {5: 0.1, 10: 0.2, 20: 0.3, 30: 0.4}
    report = EvalReport(
        tested=3, skipped=1, hits=figures, ndcg=figures, list_ndcg=figures, new_only=figures
    )
    other = replace(report, new_only={5: 0.5})
    text = {"5": 0.1, "10": 0.2, "20": 0.3, "30": 0.4}
    assert other.as_json() == {
        "hits": text,
        "ndcg": text,
        "list_ndcg": text,
        "new_only": {"hits": {"5": 0.5}},
    }


@pytest.mark.parametrize("fewer_than", [1, 3, 5, 1000])
def test_people_with_few_items_are_counted_by_what_is_on_the_device(fewer_than: int) -> None:
    federation = returning_people()
    view = partial(in_halves, federation, 2, "random")
    few, alone = [], []
    for person in everybody(federation):
        first, _ = halve(federation.take(np.array([person])), seed=2)
        report = evaluate(federation, np.array([person]), in_moments(45), seed=2)
        if report.tested and len(set(first.item.tolist())) < fewer_than:
            few.append(int(person))
            alone.append(report.hits[10])
    found = measure(
        view,
        everybody(federation),
        {"all": in_moments(45), "few": in_moments(45)},
        n_items=45,
        few_only=["few"],
        fewer_than=fewer_than,
    )
    some = found["all"].of(found["all"].items < fewer_than)
    # Those with few items are part of everybody: the second scorer was asked about nobody else.
    assert len(found["few"].items) == len(some.items) == len(few)
    assert found["few"].figures.hits.tolist() == some.figures.hits.tolist()
    assert some.figures.hits[:, 1].tolist() == alone


def test_several_scorers_look_once_at_peoples_data() -> None:
    federation = returning_people()
    half, looks = partial(in_halves, federation, 2, "random"), []

    def view(positions: IntArray) -> Held:
        looks.extend(positions.tolist())
        return half(positions)

    scorers = {"one": in_moments(45), "other": marking(45, 1.0)}
    found = measure(view, everybody(federation), scorers, n_items=45)
    assert looks == list(range(40))
    for name, scorer in scorers.items():
        assert found[name].report() == evaluate(federation, everybody(federation), scorer, seed=2)


def test_rows_of_scores_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each line has a context and a row of its own, lines count, and not people."""
    federation = returning_people()
    whole = evaluate(federation, everybody(federation), in_moments(45), seed=2)
    lines_at_once: list[tuple[int, int]] = []

    def spy(first: Clients, lines: Clients) -> Iterator[Scores]:
        lines_at_once.append((len(first), len(lines.item)))
        return iter(in_moments(45)(first, lines))

    monkeypatch.setattr(scorer_module, "TABLE_SIZE", 45 * 10)
    assert evaluate(federation, everybody(federation), spy, seed=2) == whole
    assert all(lines <= 10 or people == 1 for people, lines in lines_at_once)
    assert len(lines_at_once) > 4
