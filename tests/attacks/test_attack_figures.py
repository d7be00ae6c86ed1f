"""Attacks on made-up losses and lists, where the right answer is known."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privrec.attacks import attackers
from privrec.attacks.attackers import (
    LIST_LENGTH,
    NO_ITEM,
    RATES,
    Answers,
    Views,
    _asked,
    area_of,
    forest_attack,
    loss_attack,
    mean_figure,
    measured,
    ratio_attack,
    ratio_scores,
    read_views,
    rows_of,
    views_of,
    write_views,
)
from privrec.attacks.membership import (
    Options,
    Part,
    coins_of,
    figures_of,
    parts_of,
    prepare_attack,
    who_trains,
)
from privrec.core.scorer import TableScorer
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.schema import Bag
from privrec.data.sources import load
from privrec.errors import RunFolderError, SettingsError
from privrec.testing import toy
from privrec.types import F64, IntArray

DATA = "synthetic:users=400,items=60,longest=20"


# --- figures from scores ----------------------------------------------------------------------


@pytest.mark.slow
def test_random_scores_are_one_half_within_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attackers, "_RESAMPLES", 200)
    found = []
    for seed in range(40):
        draw = np.random.default_rng(seed)
        found.append(measured(draw.normal(size=150), draw.normal(size=100), seed=seed).auc)
    # The variance of the area under no signal is (m + n + 1) / 12mn.
    error = np.sqrt(251 / (12 * 150 * 100) / 40)
    assert abs(np.mean([one.value for one in found]) - 0.5) < 3.5 * error
    # 38 of 40 are expected; fewer than 34 have a probability below 1 %.
    assert sum(one.low <= 0.5 <= one.high for one in found) >= 34


@pytest.mark.slow
def test_shifted_normal_scores_have_the_figures_of_the_closed_form() -> None:
    draw, shift, normal, count = np.random.default_rng(0), 1.5, NormalDist(), 20_000
    found = measured(draw.normal(size=count) + shift, draw.normal(size=count))
    assert found.auc.value == pytest.approx(normal.cdf(shift / np.sqrt(2)), abs=0.006)
    assert found.accuracy == pytest.approx(normal.cdf(shift / 2), abs=0.006)
    for rate, room in zip(RATES, (0.02, 0.015), strict=True):
        wanted = normal.cdf(shift - normal.inv_cdf(1 - rate))
        figure = found.rates[f"{rate:g}"]
        assert figure.value == pytest.approx(wanted, abs=room)
        assert (figure.low or 0) <= wanted <= (figure.high or 0)
    # The variance of the area for large groups: two members above one other, and the reverse.
    middle = shift / np.sqrt(2)
    both = stats.multivariate_normal.cdf([middle, middle], cov=[[1, 0.5], [0.5, 1]])
    error = np.sqrt(2 * (both - normal.cdf(middle) ** 2) / count)
    assert found.auc.high - found.auc.low == pytest.approx(2 * 1.96 * error, rel=0.15)


@given(
    members=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    others=st.lists(st.integers(0, 4), min_size=1, max_size=8),
)
def test_the_area_counts_pairs(members: list[int], others: list[int]) -> None:
    pairs = [(m > o) + (m == o) / 2 for m in members for o in others]
    found = area_of(np.array(members, np.float64), np.array(others, np.float64))
    assert found == pytest.approx(np.mean(pairs))


def test_scores_that_cannot_be_judged_are_refused() -> None:
    with pytest.raises(SettingsError, match="others; got none"):
        measured(np.ones(3), np.ones(0))
    with pytest.raises(SettingsError, match="members have some that are not"):
        measured(np.array([np.nan]), np.ones(2))


def test_the_mean_over_repetitions_has_students_interval() -> None:
    values = [0.61, 0.55, 0.58, 0.6, 0.49]
    found = mean_figure(values)
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), low, high))
    assert (mean_figure([0.9]).low, mean_figure([0.9]).high) == (0, 1)


# --- who trains what ----------------------------------------------------------------------------


@given(people=st.integers(30, 9000), seed=st.integers(0, 9), repetition=st.integers(0, 9))
def test_parts_are_disjoint_and_balanced(people: int, seed: int, repetition: int) -> None:
    target, shadow = parts_of(people, seed=seed, repetition=repetition, most=700)
    inside, outside = np.split(target.asked, 2)
    everybody = np.concatenate([shadow.asked, target.members, outside])
    assert len(np.unique(everybody)) == len(everybody)
    assert set(everybody) <= set(range(people))
    assert abs(2 * len(target.members) + len(shadow.asked) - people) <= 1
    assert set(inside) <= set(target.members)
    assert len(inside) == min(700, len(target.members))
    assert len(shadow.asked) == min(1000, people // 6)
    assert abs(len(shadow.members) - 0.8 * len(shadow.asked)) <= 0.5
    assert set(shadow.members) < set(shadow.asked)
    other, _ = parts_of(people, seed=seed, repetition=repetition + 1)
    assert not np.array_equal(target.members, other.members)


def test_coins_are_fair_and_independent() -> None:
    coins = coins_of(4000, seed=0, models=8)
    assert coins.mean(axis=1) == pytest.approx(0.5, abs=4 * 0.5 / 4000**0.5)
    agree = (coins[:, None] == coins[None]).mean(axis=2)[~np.eye(8, dtype=bool)]
    assert agree == pytest.approx(0.5, abs=4.5 * 0.5 / 4000**0.5)


def test_only_the_games_of_the_kinds_are_played() -> None:
    asked = {kind: Options(kinds=[kind], repetitions=3, shadows=7) for kind in ("loss", "ratio")}
    loss, ratio = (who_trains(100, options) for options in asked.values())
    assert list(loss) == ["target-0", "target-1", "target-2"]
    assert list(ratio) == [f"half-{k}" for k in range(7)]
    few = who_trains(100, replace(asked["ratio"], people=20))["half-3"]
    assert len(few.asked) == len(np.unique(few.asked)) == 40
    for kind in ("loss", "sums"):
        with pytest.raises(SettingsError, match="at least 30 people; got 29"):
            who_trains(29, Options(kinds=[kind]))


# --- what a model says --------------------------------------------------------------------------


def stars(*lines: tuple[int, int, float]) -> Federation:
    return toy(list(lines), n_items=14)


def by_person(table: F64) -> Iterator[F64]:
    return (row[None, :] for row in table)


def test_the_loss_is_the_mean_cross_entropy_of_the_likes() -> None:
    data = stars((0, 3, 5.0), (0, 4, 5.0), (0, 5, 1.0), (1, 6, 1.0), (2, 7, 5.0))
    table = np.random.default_rng(0).normal(size=(3, 14)) * 3

    def scorer(kept: Clients, asked: Clients) -> Iterator[F64]:
        assert kept.sizes.tolist() == [3, 1, 1]  # The device keeps all lines.
        assert not asked.item.any()
        assert not asked.value.any()
        return by_person(table)

    found = views_of(data, np.arange(3), scorer)
    share = np.exp(table) / np.exp(table).sum(1, keepdims=True)
    assert found.losses[0] == pytest.approx(-np.log(share[0, [3, 4]]).mean())
    assert np.isnan(found.losses[1])  # She has no like.
    assert found.losses[2] == pytest.approx(-np.log(share[2, 7]))
    wanted = [item for item in np.argsort(-table[0]) if item not in (3, 4, 5)][:LIST_LENGTH]
    assert found.lists[0].tolist() == wanted
    assert 6 not in found.lists[1]


def test_each_line_has_the_scores_of_its_context() -> None:
    data = stars((0, 3, 5.0), (0, 4, 5.0))
    table = np.random.default_rng(0).normal(size=(2, 14))
    found = views_of(data, np.arange(1), lambda kept, asked: iter([table]))
    share = np.exp(table) / np.exp(table).sum(1, keepdims=True)
    assert found.losses[0] == pytest.approx(-np.log([share[0, 3], share[1, 4]]).mean())
    wanted = [item for item in np.argsort(-table.sum(0)) if item not in (3, 4)][:LIST_LENGTH]
    assert found.lists[0].tolist() == wanted


def test_the_rule_that_puts_own_items_first_does_not_count_as_learnt() -> None:
    data = stars((0, 3, 5.0), (0, 4, 5.0), (0, 5, 1.0))
    table = np.random.default_rng(0).normal(size=(1, 14)).astype(np.float32)
    plain = views_of(data, np.arange(1), lambda kept, asked: by_person(table.astype(np.float64)))
    ruled = views_of(data, np.arange(1), TableScorer(table=lambda first: table, own_first=True))
    assert ruled.losses == plain.losses


def test_scores_that_are_no_numbers_give_finite_losses_and_short_lists_are_marked() -> None:
    data = toy([(0, item, 5.0) for item in range(9)], n_items=12)
    broken = np.full((1, 12), np.nan)
    broken[0, :3] = np.inf
    found = views_of(data, np.arange(1), lambda kept, asked: iter([broken]))
    assert np.isfinite(found.losses).all()
    assert found.lists[0].tolist() == [9, 10, 11] + [NO_ITEM] * 7


def test_views_do_not_depend_on_who_else_is_asked() -> None:
    data = load(DATA)

    def scorer(kept: Clients, asked: Clients) -> Iterator[F64]:
        return (np.random.default_rng(int(one)).normal(size=(1, 60)) for one in kept.ids)

    people = np.random.default_rng(0).permutation(150)
    whole = views_of(data, people, scorer)
    for k in (0, 63, 64, 149):
        alone = views_of(data, people[k : k + 1], scorer)
        assert whole.losses[k] == pytest.approx(alone.losses[0], nan_ok=True)
        assert whole.lists[k].tolist() == alone.lists[0].tolist()


def test_views_are_read_back_and_those_of_other_people_refused(tmp_path: Path) -> None:
    path = tmp_path / "simulation" / "views.npz"
    views = Views(people=np.arange(2), losses=np.ones(2), lists=np.zeros((2, 10), np.int32))
    write_views(path, views)
    assert np.array_equal(read_views(path, np.arange(2)).losses, views.losses)
    with pytest.raises(RunFolderError, match="other people"):
        read_views(path, np.array([0, 2]))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunFolderError, match="cannot read"):
        read_views(path, np.arange(2))


# --- the attacks --------------------------------------------------------------------------------


def losses_of(member: npt.NDArray[np.bool_], gain: float, seed: int = 0) -> F64:
    """Everybody has her own level; a model that she trained is better for her by `gain`."""
    draw = np.random.default_rng(seed)
    models, people = member.shape
    level = draw.normal(size=people) * 3 + draw.normal(size=(models, 1)) * 2
    found: F64 = level + draw.normal(size=member.shape) - gain * member
    return found


def test_ratios_are_those_of_a_slow_loop() -> None:
    member = coins_of(40, seed=0, models=9)
    member[:, 7] = True  # In every model: there is nothing to compare with.
    losses = losses_of(member, 1.0)
    losses[:, 3] = np.nan
    found = ratio_scores(losses, member, 2)
    groups, squares = {}, {}
    for person in range(40):
        shadows = [k for k in range(9) if k != 2]
        inside = [losses[k, person] for k in shadows if member[k, person]]
        outside = [losses[k, person] for k in shadows if not member[k, person]]
        if inside and outside and person != 3:
            groups[person] = (inside, outside)
            squares[person] = sum(len(g) * np.var(g) for g in groups[person])
    shared = sum(squares.values()) / sum(len(i) + len(o) - 2 for i, o in groups.values())
    assert set(np.flatnonzero(np.isfinite(found))) == set(groups)
    assert {3, 7}.isdisjoint(groups)
    for person, (inside, outside) in groups.items():
        free = len(inside) + len(outside) - 2
        width = np.sqrt((squares[person] + 4 * shared) / (free + 4))
        x = losses[2, person]
        wanted = stats.norm.logpdf(x, np.mean(inside), width)
        wanted -= stats.norm.logpdf(x, np.mean(outside), width)
        assert found[person] == pytest.approx(wanted)


def test_the_targets_own_loss_does_not_shape_its_distributions() -> None:
    member = coins_of(30, seed=1, models=8)
    losses = losses_of(member, 1.0)
    flipped = member.copy()
    flipped[0] = ~flipped[0]
    known = np.isfinite(ratio_scores(losses, member, 0))
    assert known.any()
    again = ratio_scores(losses, flipped, 0)
    assert again[known] == pytest.approx(ratio_scores(losses, member, 0)[known])


def test_ratio_and_loss_find_members_of_a_model_that_memorises_and_of_no_other() -> None:
    member = coins_of(400, seed=0, models=12)
    sure = ratio_attack(losses_of(member, 6.0), member, targets=3)
    assert sure.auc.value > 0.99
    assert sure.rates["0.01"].value > 0.9
    assert sure.members == member[:3].sum()
    # A member's loss differs by three deviations of hers, and people differ by as much.
    some = ratio_attack(losses_of(member, 3.0), member, targets=3).auc
    parts = [parts_of(400, seed=0, repetition=k)[0] for k in range(3)]
    assert some.low > 0.9
    assert loss_attack([losing(part, 3.0) for part in parts]).auc.value < some.low
    assert loss_attack([losing(part, 20.0) for part in parts]).auc.value > 0.99
    nothing = ratio_attack(losses_of(member, 0.0), member, targets=3).auc
    assert nothing.low < 0.5 < nothing.high
    assert loss_attack([losing(part, 0.0) for part in parts]).auc.low < 0.5


def test_how_good_a_model_is_for_everybody_does_not_matter() -> None:
    first, (views, inside) = (losing(parts_of(400, seed=0, repetition=k)[0], 3.0) for k in (0, 1))
    worse = replace(views, losses=views.losses + 100)
    assert loss_attack([first, (worse, inside)]).auc == loss_attack([first, (views, inside)]).auc
    member = coins_of(300, seed=0, models=6)
    losses = losses_of(member, 3.0)
    moved = losses + 100 * np.arange(6)[:, None]
    plain, found = (ratio_attack(one, member, targets=2).auc for one in (losses, moved))
    assert found.value == pytest.approx(plain.value)


def losing(part: Part, gain: float) -> Answers:
    """The losses of a target, with a level of the whole model that says nothing."""
    people, inside = part.asked, np.isin(part.asked, part.members)
    losses = losses_of(inside[None, :], gain, seed=int(people[0]))[0]
    return listed(people, np.zeros((len(people), 10), np.int32), losses), inside


def listed(people: IntArray, lists: npt.NDArray[np.integer], losses: F64 | None = None) -> Views:
    return Views(
        people=people,
        losses=np.zeros(len(people)) if losses is None else losses,
        lists=lists.astype(np.int32),
    )


def random_lists(count: int, seed: int) -> npt.NDArray[np.int64]:
    draw = np.random.default_rng(seed)
    return np.stack([draw.choice(60, LIST_LENGTH, replace=False) for _ in range(count)])


def test_the_forest_sees_features_and_list_and_nothing_else() -> None:
    data = load(DATA)
    people = parts_of(400, seed=0, repetition=0)[1].asked
    lists = random_lists(len(people), 0)
    rows = rows_of(data, listed(people, lists)).toarray()
    clients = data.take(people)
    columns = [
        np.eye(f.rows)[clients.features[f.table].codes[:, 0]] for f in data.schema.of("user")
    ]
    columns.append(np.stack([np.isin(np.arange(60), one) for one in lists]).astype(np.float64))
    assert np.array_equal(rows, np.concatenate(columns, axis=1))
    short = np.full((1, 10), NO_ITEM)
    assert rows_of(data, listed(people[:1], short)).sum() == len(data.schema.of("user"))


@pytest.mark.slow
def test_the_forest_learns_what_lists_tell_and_nothing_from_lists_that_tell_nothing() -> None:
    data = load(DATA)
    games = [parts_of(400, seed=0, repetition=k) for k in range(3)]

    def answers(part: Part, seed: int, *, telling: bool) -> Answers:
        lists, inside = random_lists(len(part.asked), seed), np.isin(part.asked, part.members)
        if telling:  # Members' lists are of the first half of the items.
            lists = lists // 2 + 30 * ~inside[:, None]
        return listed(part.asked, lists), inside

    for telling in (True, False):
        targets = [answers(target, 9 + k, telling=telling) for k, (target, _) in enumerate(games)]
        shadows = [answers(shadow, k, telling=telling) for k, (_, shadow) in enumerate(games)]
        accuracy, auc = forest_attack(data, shadows, targets, seed=0)
        if telling:
            assert accuracy.value > 0.95
            assert auc.value > 0.99
        else:
            assert abs(auc.value - 0.5) < 0.05
            assert abs(accuracy.value - 0.5) < 0.05


def test_figures_take_each_answer_for_its_own_game_and_curves_stay_short(tmp_path: Path) -> None:
    options = Options(kinds=["loss", "ratio"], repetitions=2, shadows=8)
    data = load("synthetic:users=2000,items=60,longest=20")
    prepared = prepare_attack("ease", data, data=None, out=tmp_path, options=options, settings={})
    parts = who_trains(2000, options)
    answers = {f"target-{k}": losing(parts[f"target-{k}"], 20.0) for k in range(2)}
    halves = [parts[f"half-{k}"] for k in range(8)]
    member = np.stack([np.isin(half.asked, half.members) for half in halves])
    lists = np.zeros((member.shape[1], 10), np.int32)
    for k, losses in enumerate(losses_of(member, 6.0)):
        answers[f"half-{k}"] = (listed(halves[k].asked, lists, losses), member[k])
    found = {name: kind.as_json() for name, kind in figures_of(prepared, answers).items()}  # type: ignore[union-attr]
    assert list(found) == ["loss", "ratio"]
    assert found["loss"]["auc"]["value"] > 0.99
    assert found["ratio"]["auc"]["value"] > 0.99
    assert found["ratio"]["shadows"] == 8
    for kind in found.values():
        assert len(kind["curve"]) < 310
        assert kind["curve"][-1] == [1.0, 1.0]
        assert set(kind["rates"]) == {"0.01", "0.001"}
    mixed = {**answers, "target-0": (answers["target-0"][0], ~answers["target-0"][1])}
    wrong = figures_of(replace(prepared, options=replace(options, kinds=["loss"])), mixed)
    assert wrong["loss"].auc.value < 0.6  # type: ignore[union-attr]


def test_with_contexts_some_likes_of_everybody_are_asked_about() -> None:
    """Three people with 45 likes, with none, and with two likes among dislikes."""
    liked = np.array([True] * 45 + [False] * 3 + [False, True, False, True])
    bag = Bag(np.zeros((len(liked), 1), np.int32), np.ones((len(liked), 1), np.float32))
    clients = Clients(
        ids=np.arange(3),
        offsets=np.array([0, 45, 48, 52]),
        item=np.arange(len(liked), dtype=np.int32),
        value=np.ones(len(liked), np.float32),
        liked=liked,
        time=np.arange(len(liked), dtype=np.float64),
        features={},
        context={"embed/context.day": bag},
    )
    asked = _asked(clients)
    assert asked.item.tolist() == [*range(0, 45, 3), 45, 49, 51]
    assert asked.offsets.tolist() == [0, 15, 16, 18]
    assert len(_asked(replace(clients, context={})).item) == 52
