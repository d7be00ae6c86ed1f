"""Coverage, novelty, popular hits, groups of people, and warnings: toys whose answer is plain."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from test_metrics import clients

from privrec.core.scorer import TableScorer
from privrec.data.clients import Clients
from privrec.evaluation.metrics import KS, PARTS, by_items, parts_of
from privrec.evaluation.protocols import Held
from privrec.evaluation.ranking import measure
from privrec.runs.documents import Evaluation
from privrec.runs.evaluate import warnings_of
from privrec.types import Candidates, IntArray

N_ITEMS = 40


def ordered(*firsts: list[int]) -> TableScorer:
    """Return a scorer that ranks these items first for each person in turn, then by number."""
    table = np.tile(-np.arange(N_ITEMS, dtype=np.float64), (len(firsts), 1))
    for person, items in enumerate(firsts):
        table[person, items] = 100.0 - np.arange(len(items))
    return TableScorer(table=lambda devices: table[devices.ids])


def reached(scorers: dict[str, TableScorer], surprise: Any = None) -> dict[str, Any]:
    """Three people: the first keeps item 0, and items 20 and 21 are tested; and so on."""
    kept, likes = [[0], [1], [2, 3]], [[20, 21], [4], [5, 30]]

    def view(positions: IntArray) -> Held:
        hidden = clients(likes).take(positions)
        return Held(kept=clients(kept).take(positions), hidden=hidden, tested=hidden)

    return measure(view, np.arange(3), scorers, n_items=N_ITEMS, surprise=surprise)


def test_coverage_is_the_share_of_the_catalogue_in_some_list() -> None:
    found = reached({"same": ordered([], [], []), "own": ordered([39, 38], [37], [36, 35, 34, 33])})
    # Everybody gets 0, 1, 2, … without what she keeps: 1-5, 0 and 2-5, 0, 1, 4, 5, 6.
    assert found["same"].report().beyond["coverage"][5] == 7 / N_ITEMS
    # 39, 38, 1, 2, 3; then 37, 0, 2, 3, 4; then 36, 35, 34, 33, 0.
    assert found["own"].report().beyond["coverage"][5] == 12 / N_ITEMS
    assert found["own"].report().beyond["coverage"][30] == 37 / N_ITEMS


def test_novelty_is_the_mean_surprise_of_what_is_listed() -> None:
    surprise = np.arange(N_ITEMS, dtype=np.float64)
    found = reached({"own": ordered([39, 38], [37], [36, 35, 34, 33])}, surprise)["own"]
    lists = [[39, 38, 1, 2, 3], [37, 0, 2, 3, 4], [36, 35, 34, 33, 0]]
    assert found.figures.novelty[:, 0].tolist() == [np.mean(one) for one in lists]
    assert found.report().beyond["novelty"][5] == pytest.approx(np.mean(lists))
    assert reached({"own": ordered([], [], [])})["own"].report().beyond["novelty"][5] is None


def test_popular_hits_are_those_that_popularity_has_too() -> None:
    # The first five by popularity: 4 and 5 are among them. Ours hits 20, 4 and 30.
    scorers = {"ours": ordered([20], [4], [30]), "popularity": ordered([], [], [])}
    found = reached(scorers)
    ours = found["ours"].report()
    # Shares: one of two lines, the one line, one of two and 5 as well, as 0, 1, 4, 5 come next.
    assert found["ours"].figures.hits[:, 0].tolist() == [0.5, 1.0, 1.0]
    assert found["popularity"].figures.hits[:, 0].tolist() == [0.0, 1.0, 0.5]
    assert ours.beyond["popular_hits"][5] == pytest.approx((0 + 1 + 0.5) / (0.5 + 1 + 1))
    assert found["popularity"].report().beyond["popular_hits"][5] == 1
    assert reached({"ours": ordered([20], [4], [30])})["ours"].report().beyond[
        "popular_hits"
    ] == dict.fromkeys((5, 10, 20, 30))


def test_parts_of_the_catalogue_have_a_third_of_the_likes_each() -> None:
    likes = np.random.default_rng(0).permutation(np.arange(1, 301)).astype(np.float64)
    parts = parts_of(-np.log2(likes / 1_000))
    assert likes[parts == 0].min() > likes[parts == 1].max()
    assert likes[parts == 1].min() > likes[parts == 2].max()
    for part in range(len(PARTS)):
        assert likes[parts == part].sum() == pytest.approx(likes.sum() / 3, rel=0.02)


def test_hits_are_told_apart_by_how_popular_the_tested_item_is() -> None:
    # Items 0 to 9 are the head, 10 to 24 the middle, the others the tail.
    shares = np.repeat([0.3, 0.2, 0.2], [10, 15, 15])
    shares[25:] -= 1e-3
    surprise = -np.log2(shares)
    assert np.bincount(parts_of(surprise)).tolist() == [10, 15, 15]
    scorer = ordered([20], [4], [30])
    found = reached({"ours": scorer}, surprise)["ours"].figures
    # Tested: 20 and 21 of the middle; 4 of the head; 5 of the head and 30 of the tail. The first
    # five of each list have 20; 4; 30 and 5.
    nan = math.nan
    np.testing.assert_array_equal(found.head[:, 0], [nan, 1.0, 1.0])
    np.testing.assert_array_equal(found.middle[:, 0], [0.5, nan, nan])
    np.testing.assert_array_equal(found.tail[:, 0], [nan, nan, 1.0])
    unknown = reached({"ours": scorer})["ours"].figures
    assert np.isnan([getattr(unknown, name) for name in PARTS]).all()


def test_a_part_of_the_people_has_no_coverage() -> None:
    whole = reached({"ours": ordered([], [], [])})["ours"]
    assert whole.ids.tolist() == [0, 1, 2]
    assert whole.items.tolist() == [1, 1, 2]
    part = whole.of(np.array([False, False, True]))
    assert part.report().beyond == {}
    assert part.ids.tolist() == [2]


@pytest.mark.parametrize("people", [1, 19, 39, 40, 130, 1000])
def test_groups_have_20_people_or_more_and_about_as_many(people: int) -> None:
    items = np.random.default_rng(people).geometric(0.05, people)
    groups = by_items(items)
    sizes = [int(group.sum()) for group in groups]
    assert sum(sizes) == people
    assert len(groups) == max(1, min(5, people // 20)) or min(sizes) >= 20
    assert min(sizes) >= min(20, people)
    assert max(sizes) < 2 * people / len(groups) or people < 100
    for low, high in pairwise(groups):
        assert items[low].max() < items[high].min()


def test_people_with_the_same_number_are_not_parted() -> None:
    assert [int(group.sum()) for group in by_items(np.full(500, 7))] == [500]
    sizes = [int(group.sum()) for group in by_items(np.repeat([1, 2, 9], [300, 190, 10]))]
    # Ten people are too few for a group of their own.
    assert sizes == [300, 200]
    assert by_items(np.zeros(0, np.int64)) == []


def evaluation(
    own: tuple[float, float], popular: tuple[float, float], *, repeats: bool = True, **privacy: Any
) -> Evaluation:
    """Return an evaluation with these ends of the differences to the two simple rules."""

    def by(ends: tuple[float, float]) -> Any:
        return every_k({"by": sum(ends) / 2, "low": ends[0], "high": ends[1]})

    new = {"hits": every_k(0.15)}
    document = {
        "recipe": "dp-privrec-plus",
        "data": "mine",
        "seed": 0,
        "users": {"test": 300, "skipped": 0},
        "hits": every_k(0.30),
        "new_only": {
            "hits": every_k(0.20),
            "differences": {"popularity": by(popular), "own-items": by(popular)},
        },
        "differences": {"popularity": by(own), "own-items": by(own)},
        "references": {
            "popularity": {"hits": every_k(0.10), "new_only": new},
            "own-items": {"hits": every_k(0.31 if repeats else 0.10), "new_only": new},
        },
        "privacy": {"statement": "", "epsilon_of_mechanism": 2.0, **privacy},
    }
    return Evaluation.model_validate(document, strict=False)


def every_k(value: object) -> dict[int, object]:
    return dict.fromkeys(KS, value)


BETTER, UNCLEAR, WORSE = (0.01, 0.03), (-0.01, 0.03), (-0.05, -0.01)


def test_a_run_with_noise_that_is_not_worth_it_is_told() -> None:
    assert warnings_of(evaluation(BETTER, BETTER)) == []
    (own,) = warnings_of(evaluation(UNCLEAR, BETTER))
    assert own == (
        "On all items this run is not clearly better than 'own-items' (a person's own items first,"
        " then popular ones): Hits@20 0.300 against 0.310, a difference of +0.010 (95 %: -0.010 to"
        " +0.030). There are too few tested people to tell."
    )
    popular, help_ = warnings_of(evaluation(BETTER, WORSE))
    assert popular.startswith(
        "On items that are new to a person this run is worse than 'popularity'"
    )
    assert "Hits@20 0.200 against 0.150, a difference of -0.030" in popular
    assert "too few" not in popular
    assert "usually help" in help_
    assert "privrec frontier --data mine" in help_
    assert len(warnings_of(evaluation(WORSE, WORSE))) == 3
    # Where no own item is tested, the two rules are one.
    assert len(warnings_of(evaluation(WORSE, WORSE, repeats=False))) == 2


def test_without_noise_nothing_is_said_and_what_was_not_checked_is_named() -> None:
    assert warnings_of(evaluation(WORSE, WORSE, epsilon_of_mechanism=None)) == []
    local = evaluation(WORSE, WORSE, epsilon_of_mechanism=None, local_noise=True)
    assert len(warnings_of(local)) == 3
    second = evaluation(WORSE, WORSE, epsilon_of_mechanism=None, stage_two_epsilon=8.0)
    assert len(warnings_of(second)) == 3
    document = evaluation(WORSE, WORSE).as_json() | {"references": {}, "differences": {}}
    document["new_only"] = {"hits": every_k(0.2)}
    bare = Evaluation.model_validate(document, strict=False)
    (said,) = warnings_of(bare)
    assert said.startswith("It was not checked whether this run with noise is better than")
    assert "'own-items'" in said
    assert "'popularity'" in said
    noiseless = bare.privacy.model_copy(update={"epsilon_of_mechanism": None})
    assert warnings_of(bare.model_copy(update={"privacy": noiseless})) == []


def test_ids_are_of_those_who_are_tested() -> None:
    nobody: Clients = clients([[], [3]])
    assert nobody.ids.tolist() == [0, 1]

    def view(positions: IntArray) -> Held:
        likes = nobody.take(positions)
        return Held(kept=clients([[], []]).take(positions), hidden=likes, tested=likes)

    found = measure(view, np.arange(2), {"ours": ordered([], [])}, n_items=N_ITEMS)["ours"]
    assert (found.asked, found.ids.tolist()) == (2, [1])
    assert math.isclose(found.report().hits[5], 1.0)


def test_the_digest_tells_other_items_of_the_same_people() -> None:
    """The same numbers of people and of items, so that nothing but the items can tell."""

    def digest(kept: list[int], tested: list[int], among: Candidates = "unseen") -> str:
        def view(positions: IntArray) -> Held:
            first, second = clients([kept, [1]]), clients([tested, [2]])
            both = [one.take(positions) for one in (first, second, second)]
            return Held(kept=both[0], hidden=both[1], tested=both[2])

        found = measure(
            view, np.arange(2), {"ours": ordered([], [])}, n_items=N_ITEMS, candidates=among
        )
        return found["ours"].digest

    one = digest([0], [3])
    assert one == digest([0], [3])
    assert len({one, digest([0], [4]), digest([5], [3]), digest([0], [3], "not-kept")}) == 4
