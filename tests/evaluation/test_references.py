import math
import tracemalloc

import numpy as np
import pytest

from privrec.core.scorer import Scores
from privrec.data.clients import Clients, split_clients
from privrec.data.federation import Federation, chunks
from privrec.data.synthetic import SyntheticSettings, synthetic
from privrec.errors import SettingsError
from privrec.evaluation import references
from privrec.evaluation.ranking import evaluate
from privrec.evaluation.ranks import Rows, rank_table
from privrec.evaluation.references import (
    ITEM_KNN,
    OWN_ITEMS,
    POPULARITY,
    REFERENCES,
    Arrays,
    Fitted,
    Reference,
    Sums,
    ease,
    fit_references,
    neighbours,
)
from privrec.testing import checkerboard, toy
from privrec.types import IntArray

ALL: dict[str, Reference] = {
    "popularity": POPULARITY,
    "own-items": OWN_ITEMS,
    "item-knn": ITEM_KNN,
    "ease": ease(2.0),
}
HAIR = 1e-6
"""How much popularity may add to a weight, to order what scores the same."""


def random_toy(*, people: int = 30, n_items: int = 12) -> Federation:
    """Everybody has 8 lines, some of them repeated, some disliked."""
    draw = np.random.default_rng(1)
    fame = 1 / np.arange(1, n_items + 1)
    lines = [
        (person, int(draw.choice(n_items, p=fame / fame.sum())), float(draw.integers(2, 6)))
        for person in range(people)
        for _ in range(8)
    ]
    return toy(lines, n_items=n_items)


def everybody(federation: Federation) -> IntArray:
    return np.arange(federation.n_clients)


def liked_by(federation: Federation) -> list[set[int]]:
    clients = federation.take(everybody(federation))
    return [
        {int(i) for i in clients.item[(clients.owner == k) & clients.liked]}
        for k in range(len(clients))
    ]


def scores_of(reference: Reference, arrays: Arrays, first: Clients) -> list[Scores]:
    return [np.asarray(table) for table in reference.scorer(arrays)(first, first)]


def test_popularity_counts_people_who_like_not_lines() -> None:
    federation = toy(
        [
            (0, 0, 5.0),
            (0, 0, 4.0),
            (0, 0, 5.0),
            (0, 1, 5.0),
            (1, 1, 4.0),
            (1, 2, 3.0),
            (2, 2, 1.0),
            (3, 1, 5.0),
            (3, 2, 5.0),
        ],
        n_items=4,
    )
    fitted = POPULARITY.fit(federation, np.array([0, 1, 2]))
    # Person 0 has item 0 twice; item 2 was only disliked; person 3 is not in `people`.
    assert fitted["popularity"].tolist() == [1, 2, 0, 0]
    first = federation.take(np.array([3, 0]))
    assert [table.tolist() for table in scores_of(POPULARITY, fitted, first)] == [
        [[1, 2, 0, 0]],
        [[1, 2, 0, 0]],
    ]


@pytest.mark.parametrize("name", ["own-items", "item-knn", "ease"])
def test_own_likes_come_first(name: str) -> None:
    federation = random_toy()
    fitted = ALL[name].fit(federation, everybody(federation)[:20])
    first = federation.take(everybody(federation))
    likes = first.keep(first.liked)
    scorer = ALL[name].scorer(fitted)
    found = rank_table(
        scorer.table(first),
        Rows(np.arange(len(first)), likes.owner),
        kept=first,
        hidden=likes,
        tested=likes,
        own_first=scorer.own_first,
    )
    assert set(found.rank) == {1}


def test_after_own_items_come_the_most_liked() -> None:
    lines = [(0, 3, 5.0), (1, 0, 5.0), (1, 1, 5.0), (2, 1, 5.0), (2, 3, 1.0)]
    federation = toy(lines, n_items=5)
    fitted = OWN_ITEMS.fit(federation, everybody(federation))
    (table,) = scores_of(OWN_ITEMS, fitted, federation.take(np.array([0])))
    assert [item for item in np.argsort(-table[0], kind="stable") if item != 3][:2] == [1, 0]


def test_item_knn_is_the_cosine_of_a_slow_loop() -> None:
    federation = random_toy()
    likes = liked_by(federation)
    fitted = ITEM_KNN.fit(federation, everybody(federation))["weights"]
    for i in range(12):
        for j in range(12):
            both = sum(1 for liked in likes if i in liked and j in liked)
            alone = [sum(1 for liked in likes if item in liked) for item in (i, j)]
            cosine = both / math.sqrt(alone[0] * alone[1]) if i != j and both else 0.0
            assert fitted[i, j] == pytest.approx(cosine, abs=2 * HAIR)
    # A person's score of an item is the sum over her likes.
    tables = scores_of(ITEM_KNN, {"weights": fitted}, federation.take(everybody(federation)))
    for liked, (table,) in zip(likes, tables, strict=True):
        for item in set(range(12)) - liked:
            assert table[item] == pytest.approx(sum(fitted[own, item] for own in liked), rel=1e-5)


@pytest.mark.parametrize("l2", [0.5, 20.0])
def test_ease_is_ridge_regression_of_each_item_on_the_others(l2: float) -> None:
    federation = random_toy()
    matrix = np.zeros((30, 12))
    for person, liked in enumerate(liked_by(federation)):
        matrix[person, list(liked)] = 1
    fitted = ease(l2).fit(federation, everybody(federation))["weights"]
    for item in range(12):
        others = [other for other in range(12) if other != item]
        # |x - A b|² + l2 |b|² as one least-squares problem, without item `item` in A.
        stacked = np.vstack([matrix[:, others], math.sqrt(l2) * np.eye(11)])
        wanted = np.concatenate([matrix[:, item], np.zeros(11)])
        ridge = np.linalg.lstsq(stacked, wanted, rcond=None)[0]
        assert fitted[others, item] == pytest.approx(ridge, abs=1e-5)
        assert abs(fitted[item, item]) < 2 * HAIR


def test_items_that_score_the_same_are_ordered_by_popularity() -> None:
    # Person 0 likes item 0 only, which nobody likes together with anything.
    lines = [(0, 0, 5.0), (1, 2, 5.0), (2, 2, 5.0), (3, 1, 5.0)]
    federation = toy(lines, n_items=4)
    for reference in (ITEM_KNN, ease(1.0)):
        fitted = reference.fit(federation, everybody(federation))
        (table,) = scores_of(reference, fitted, federation.take(np.array([0])))
        assert [item for item in np.argsort(-table[0]) if item != 0] == [2, 1, 3]


def test_who_sees_the_two_tastes_solves_the_checkerboard() -> None:
    federation = checkerboard()
    split = split_clients(np.arange(120), seed=0)
    hits = {}
    # Within a group, likes are random. A strong ridge prevents EASE from fitting this randomness.
    for name, reference in {**ALL, "ease": ease(500.0)}.items():
        scorer = reference.scorer(reference.fit(federation, split.train))
        hits[name] = evaluate(federation, split.test, scorer, seed=0).hits[10]
    # A held-out like has 6 rivals of its own group and 20 of the other: its rank is at most 7.
    assert hits["item-knn"] == hits["ease"] == 1
    # Popularity cannot distinguish the groups: 10 of 27 places.
    assert 0.2 < hits["popularity"] < 0.6
    assert hits["own-items"] == hits["popularity"]


@pytest.mark.parametrize("name", sorted(ALL))
def test_no_reference_looks_at_what_is_held_out(name: str) -> None:
    federation = synthetic(SyntheticSettings(users=40, items=50))
    reference = ALL[name]
    scorer = reference.scorer(reference.fit(federation, np.arange(20)))
    first, other = federation.take(np.arange(20, 30)), federation.take(np.arange(30, 40))
    for one, two in zip(scorer(first, first), scorer(first, other), strict=True):
        assert one.shape == (1, 50)
        assert np.asarray(one).tolist() == np.asarray(two).tolist()


@pytest.mark.parametrize("name", sorted(ALL))
def test_only_the_training_people_matter_and_pieces_do_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = random_toy()
    asked = np.array([3, 4, 11, 20, 29])
    (fitted,) = ALL[name].fit(federation, asked).values()
    clients = federation.take(asked)
    alone = toy(
        [
            (int(owner), int(item), 5.0 if liked else 1.0)
            for owner, item, liked in zip(clients.owner, clients.item, clients.liked, strict=True)
        ],
        n_items=12,
    )
    (again,) = ALL[name].fit(alone, everybody(alone)).values()
    assert fitted == pytest.approx(again)
    monkeypatch.setattr(references, "chunks", lambda people: chunks(people, 2))
    (pieces,) = ALL[name].fit(federation, asked).values()
    assert fitted == pytest.approx(pieces)


@pytest.mark.parametrize("reference", [ITEM_KNN, ease()])
def test_too_many_items_are_refused_in_words(
    reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "MEMORY_GB", 5e-7)
    with pytest.raises(SettingsError, match=r"for 12 items; the limit is 5e-07 GB$"):
        reference.fit(random_toy(), np.arange(3))


@pytest.mark.parametrize("dense", [0.0, 1e9])
def test_pairs_are_counted_by_a_slow_loop(dense: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By dense products, and by sparse ones in blocks of about one person."""
    monkeypatch.setattr(references, "_DENSE", dense)
    monkeypatch.setattr(references, "_PAIRS", 20)
    monkeypatch.setattr(references, "chunks", lambda people: chunks(people, 7))
    federation = random_toy()
    seen: list[int] = []
    sums = references.sums_of(
        federation, everybody(federation), pairs=True, on_progress=seen.append
    )
    likes = liked_by(federation)
    expected = [
        [sum(i in liked and j in liked for liked in likes) for j in range(12)] for i in range(12)
    ]
    assert sums.pairs is not None
    assert sums.pairs.tolist() == expected
    assert sums.likes.tolist() == [row[i] for i, row in enumerate(expected)]
    assert seen == [7, 7, 7, 7, 2]


def test_the_inverse_takes_no_second_matrix() -> None:
    """It is mirrored in blocks of 1,024 rows, so there are more of them than that."""
    draw = np.random.default_rng(0)
    n_items = 1500
    likes = (draw.random((400, n_items)) < 0.05).astype(np.float32)
    pairs = likes.T @ likes
    expected = np.linalg.inv(pairs.astype(np.float64) + 10 * np.eye(n_items))
    expected /= -np.diag(expected)[None, :]
    np.fill_diagonal(expected, 0)
    place = pairs.ctypes.data
    tracemalloc.start()
    weights = ease(10.0).solve(Sums(likes.sum(0), pairs))["weights"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.abs(weights - expected).max() < 2e-5
    assert weights.ctypes.data == place
    # The largest piece is a corner of 1,024 by 1,024, three times: less than two matrices.
    assert peak < 1.5 * pairs.nbytes


def test_references_are_fitted_together_as_alone() -> None:
    federation = random_toy()
    people = everybody(federation)[:20]
    fitted = fit_references(federation, people)
    assert list(fitted.scorers) == ["popularity", "own-items", "item-knn", "ease"]
    assert fitted.left_out == {}
    first = federation.take(everybody(federation))
    for name, reference in REFERENCES.items():
        alone = reference.scorer(reference.fit(federation, people))
        assert fitted.scorers[name].table(first) == pytest.approx(alone.table(first))


def test_what_does_not_fit_is_left_out_and_an_error_by_name() -> None:
    federation = random_toy()
    people = everybody(federation)
    # A matrix of 12 by 12 numbers of 4 bytes takes 576 bytes: there is room for one.
    one = 800e-9
    found = fit_references(federation, people, memory_gb=one)
    assert list(found.scorers) == ["popularity", "own-items", "item-knn"]
    assert list(found.left_out) == ["ease"]
    assert found.left_out["ease"].startswith("needs 0.0 GB, the limit is 8e-07 GB and")
    none = fit_references(federation, people, memory_gb=500e-9)
    assert list(none.scorers) == ["popularity", "own-items"]
    assert none.left_out.keys() == {"item-knn", "ease"}
    assert fit_references(federation, people, ["ease"], memory_gb=one).left_out == {}
    assert list(fit_references(federation, people, ["ease"], memory_gb=one).scorers) == ["ease"]
    assert fit_references(federation, people, []) == Fitted({}, {}, None)
    with pytest.raises(SettingsError, match=r"^the reference 'ease' needs 0.0 GB, the limit is"):
        fit_references(federation, people, ["popularity", "ease"], memory_gb=500e-9)
    with pytest.raises(SettingsError, match="unknown reference 'eas'; did you mean 'ease'"):
        fit_references(federation, people, ["eas"])


def test_neighbours_are_cosines_without_a_matrix_of_items_by_items() -> None:
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(12, 3)).astype(np.float32)
    vectors[4] = 0
    federation = random_toy()
    tables = neighbours(vectors).table(federation.take(everybody(federation)))
    for liked, table in zip(liked_by(federation), tables, strict=True):
        for item in range(12):
            score = 0.0
            for own in liked - {item}:
                length = np.linalg.norm(vectors[own]) * np.linalg.norm(vectors[item])
                score += float(vectors[own] @ vectors[item] / length) if length else 0.0
            assert table[item] == pytest.approx(score, abs=1e-5)
    many = draw.normal(size=(40_000, 2)).astype(np.float32)
    tracemalloc.start()
    neighbours(many).table(federation.take(everybody(federation)[:2]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * many.nbytes  # 40,000 by 40,000 numbers would be 6.4 GB.
