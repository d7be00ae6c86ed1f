"""What privrec-plus chooses for itself, from whom, and where it does not."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from commands import done
from privrec.algorithms.privrec_plus import choice
from privrec.algorithms.privrec_plus.choice import ahead, figures_on, find, usual
from privrec.algorithms.privrec_plus.hop import PAIRS
from privrec.algorithms.privrec_plus.recipe import PRIVREC_PLUS, plus_plan
from privrec.algorithms.privrec_plus.scoring import (
    HOP_ITEMS,
    HOP_VALUES,
    HOP_WEIGHT,
    OUT,
    Layout,
    dense_rows,
)
from privrec.algorithms.privrec_plus.settings import PlusSettings
from privrec.algorithms.recipe import Chosen
from privrec.algorithms.recipes import RECIPES, configure, prepare
from privrec.core.round import tell_nobody
from privrec.core.scorer import TableScorer
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.synthetic import SyntheticSettings, synthetic
from privrec.evaluation.choosing import trial_of
from privrec.runs.journal import load_params
from privrec.runs.loop import train_and_evaluate
from privrec.runs.run import export_run
from privrec.testing import phases_of
from privrec.types import F64
from protocol_toys import timed

MANY = "synthetic:users=500,items=300,longest=40"
FEW = "synthetic:users=60,items=40,longest=20"
SUBSPACE: dict[str, Any] = {"history": "subspace", "subspace_rank": 8, "subspace_rounds": 3}
Figure = Callable[[PlusSettings], float]


@pytest.fixture(scope="module")
def many() -> Federation:
    return synthetic(SyntheticSettings(users=500, items=300, longest=40))


@pytest.fixture
def judged_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Figure], list[PlusSettings]]:
    """Candidates get a figure from their settings; what is returned has all that were looked at."""

    def install(figure: Figure) -> list[PlusSettings]:
        seen: list[PlusSettings] = []

        def figures(self: Any, candidates: Sequence[Any]) -> Any:
            seen.extend(one.settings for one in candidates)
            return np.stack([np.full(60, figure(one.settings)) for one in candidates])

        monkeypatch.setattr(choice._Search, "_figures", figures)
        return seen

    return install


def chosen(data: Federation, given: dict[str, Any]) -> Chosen:
    task = prepare(configure("privrec-plus", MANY, given), data).task
    found = find(plus_plan, task, given, tell_nobody)
    assert found is not None
    return found


def near(value: float, wanted: float) -> float:
    return -abs(math.log(value + 1e-9) - math.log(wanted + 1e-9))


def test_it_finds_what_is_best_in_every_setting(
    many: Federation, judged_by: Callable[[Figure], list[PlusSettings]]
) -> None:
    judged_by(
        lambda s: near(s.history_l2, 500) + near(s.activity_power, 1.0) + (s.history_rank == 0)
    )
    found = chosen(many, {"rounds": 0})
    assert found.values == {
        "activity_power": 1.0,
        "history_l2": 500.0,
        "history_dropout": 0.8,
        "history_rank": 0,
        "validation_share": 0.0,
    }
    assert "activity_power = 1; Hits@20 " in found.line
    assert "held-out people (" in found.line
    judged_by(lambda s: near(s.history_l2, 5))
    assert chosen(many, {"rounds": 0}).values["history_l2"] == 5


def test_in_a_subspace_it_also_finds_the_discount_and_the_pairs(
    many: Federation, judged_by: Callable[[Figure], list[PlusSettings]]
) -> None:
    judged_by(lambda s: near(s.hop_weight, 1.0) + near(s.popularity_discount, 0.2))
    found = chosen(many, {"rounds": 0, **SUBSPACE})
    wanted = {"popularity_discount": 0.2, "hop_weight": 1.0, "validation_share": 0.0}
    assert found.values == wanted


@pytest.mark.parametrize(
    "given",
    [
        {"rounds": 0},
        {"rounds": 0, **SUBSPACE},
        {"rounds": 0, **SUBSPACE, "history_l2": 7.0, "popularity_discount": 0.1, "hop_weight": 0.3},
        {"rounds": 0, "activity_power": 0.5, "history_rank": 7},
    ],
)
def test_a_forecast_counts_what_is_played_where_nothing_is_better(
    given: dict[str, Any],
    many: Federation,
    judged_by: Callable[[Figure], list[PlusSettings]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, added_up = judged_by(lambda s: 0.0), []
    sums = choice._Search._sums

    def counted(self: Any, stages: Any) -> Any:
        added_up.append(stages)
        return sums(self, stages)

    monkeypatch.setattr(choice._Search, "_sums", counted)
    free = {key: value for key, value in given.items() if key != "subspace_rank"}
    monkeypatch.setattr(choice, "_MORE_DIRECTIONS", 32)
    task = prepare(configure("privrec-plus", MANY, given), many).task
    assert find(plus_plan, task, free, tell_nobody) is not None
    expected = ahead(plus_plan, task, free)
    assert expected is not None
    assert sum(some.looks for some in expected.candidates) == len(seen)
    towers = [some for some in expected.candidates if len(some.stages) == 2]
    assert sum(some.sums for some in towers) == len(added_up)
    if "hop_weight" in expected.values:
        assert expected.values["hop_weight"] == max(one.hop_weight for one in seen)
    if "history" in given:
        assert expected.values["subspace_rank"] == max(one.subspace_rank for one in seen) == 32


def test_what_was_given_stays(
    many: Federation, judged_by: Callable[[Figure], list[PlusSettings]]
) -> None:
    seen = judged_by(lambda s: near(s.history_l2, 500) + near(s.activity_power, 1.0))
    given = {
        "activity_power": 0.5,
        "history_dropout": 0.3,
        "history_rank": 7,
        "rounds": 0,
        "validation_share": 0.1,
    }
    assert chosen(many, given).values == {"history_l2": 500.0}
    assert {(s.activity_power, s.history_dropout, s.history_rank) for s in seen} == {(0.5, 0.3, 7)}


def test_if_nothing_is_better_the_usual_settings_stay(
    many: Federation, judged_by: Callable[[Figure], list[PlusSettings]]
) -> None:
    judged_by(lambda s: 0.25)
    found = chosen(many, {"rounds": 3})
    assert found.values == {}  # Validation people say after which of the rounds to stop.
    assert found.line.endswith("people): the usual settings, Hits@20 0.2500")


def test_candidates_that_share_sums_are_those_that_have_their_own(many: Federation) -> None:
    """The discount scales vectors, and one sum of pairs has all weights."""
    config = configure("privrec-plus", MANY, {"rounds": 0, **SUBSPACE})
    task = prepare(config, many).task
    trial = trial_of(task.protocol, many, task.split.train, task.split.validation)
    assert trial is not None
    assert isinstance(task.settings, PlusSettings)
    search = choice._Search(plus_plan, task, task.settings, trial, frozenset(), tell_nobody)
    best = search.looked_at(search.candidate(config))
    other = config.model_copy(update={"history_l2": 5.0, "popularity_discount": 0.2})
    own = search.candidate(other)
    shared = search.candidate(
        other.model_copy(update={"popularity_discount": 0.1}), best.candidate.sums
    )
    base = choice._Best(shared, best.figures)
    (scaled,) = [one for one in search._discounts(base) if one.settings.popularity_discount == 0.2]
    np.testing.assert_allclose(scaled.params[OUT], own.params[OUT], rtol=1e-3, atol=1e-5)
    assert np.abs(np.asarray(scaled.params[OUT]) - np.asarray(shared.params[OUT])).max() > 1e-3

    hops = list(search._hops(base))
    assert [float(one.params[HOP_WEIGHT]) for one in hops] == pytest.approx([0.15, 0.3, 1.0])
    alone = search.plan(hops[1].settings)
    *_, place = phases_of(alone)
    assert place.phase.name == PAIRS
    fresh = place.phase.absorb(place.state, search._published(place.phase, place.state)).params
    for name in (HOP_ITEMS, HOP_VALUES):
        np.testing.assert_allclose(hops[1].params[name], fresh[name], rtol=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> privrec.Run:
    place = tmp_path_factory.mktemp("choice") / "run"
    usual_ridge = {**PRIVREC_PLUS.values, "history_l2": 5.0, "history_dropout": 0.2}
    with pytest.MonkeyPatch.context() as patch:
        # From a poor start something better is found.
        patch.setitem(RECIPES, "privrec-plus", replace(PRIVREC_PLUS, values=usual_ridge))
        return privrec.train("privrec-plus", MANY, out=place, rounds=0)


@pytest.mark.slow
def test_a_run_trains_with_what_it_chose_and_says_so(run: privrec.Run, tmp_path: Path) -> None:
    settings: Any = run.config
    assert run.choice.startswith("chosen on held-out people (")
    assert settings.history_l2 > 5.0
    assert settings.validation_share == 0.0
    # The same as if somebody had given these settings.
    given = settings.model_dump(include=choice.KEYS)
    again = privrec.train("privrec-plus", MANY, out=tmp_path / "given", choose=False, **given)
    one, other = load_params(run.folder), load_params(again.folder)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    assert again.choice == ""


@pytest.mark.slow
def test_the_command_prints_the_line(tmp_path: Path) -> None:
    printed = done(
        "train", "privrec-plus", "--data", MANY, "--rounds", "0", "--out", tmp_path / "run"
    )
    line = privrec.open_run(tmp_path / "run").choice
    assert line
    assert line in " ".join(printed.split())


@pytest.mark.slow
def test_a_comparison_goes_on_with_what_was_chosen(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 0}
    first = train_and_evaluate("privrec-plus", MANY, tmp_path / "run", **settings)
    again = train_and_evaluate("privrec-plus", MANY, tmp_path / "run", **settings)
    assert first.hits == again.hits


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        (MANY, {"rounds": 0, "choose": False}),
        (FEW, {"rounds": 0}),
        (MANY, {"rounds": 0, "mechanism": "gaussian", "epsilon": 8.0}),
    ],
)
def test_nothing_is_chosen_if_it_is_switched_off_or_there_are_few_people_or_noise(
    data: str, settings: dict[str, Any]
) -> None:
    run = privrec.train("privrec-plus", data, **settings)
    wanted = configure("privrec-plus", data, settings).model_dump(
        exclude={"protocol", "candidates"}
    )
    assert run.config.model_dump(exclude={"protocol", "candidates"}) == wanted
    assert run.choice == ""


def test_under_noise_no_recipe_of_ours_chooses() -> None:
    assert [name for name, recipe in RECIPES.items() if recipe.choice] == ["privrec-plus"]


def test_large_catalogues_have_no_rounds_on_top_unless_asked_for(many: Federation) -> None:
    def rounds(**given: Any) -> dict[str, Any]:
        return usual(prepare(configure("privrec-plus", MANY, given), many).task, given)

    assert rounds() == {}
    assert rounds(history="subspace") == {"rounds": 0}
    assert rounds(history="subspace", rounds=9) == {}
    assert rounds(history="subspace", choose=False) == {}
    assert rounds(protocol="leave-last") == {"rounds": 0}


def test_figures_are_of_the_same_people_in_the_order_of_the_scorers(many: Federation) -> None:
    task = prepare(configure("privrec-plus", MANY, {}), many).task
    trial = trial_of(task.protocol, many, task.split.train, task.split.validation)
    assert trial is not None
    held = trial.view(trial.tested)
    answers = {int(one): held.tested.take(np.array([k])) for k, one in enumerate(held.kept.ids)}

    def right(devices: Clients) -> F64:
        table = np.zeros((len(devices), many.n_items))
        for row, one in enumerate(devices.ids):
            table[row, answers[int(one)].item] = 1.0
        return table

    wrong = TableScorer(table=lambda devices: -right(devices))
    figures = figures_on(trial, {"right": TableScorer(table=right), "wrong": wrong})
    assert figures.shape[0] == 2
    np.testing.assert_array_equal(figures[0], 1.0)
    assert figures[1].mean() < 0.2


# --- how long ago ------------------------------------------------------------------------------


def test_a_last_line_weighs_more_when_ranking() -> None:
    # In the order of time: 1 liked, 2 disliked, 0 liked, 1 liked again.
    lines = [("ann", 1, 5.0, 1.0), ("ann", 2, 1.0, 2.0), ("ann", 0, 5.0, 3.0), ("ann", 1, 5.0, 4.0)]
    people = timed(lines, people=["ann"]).take(np.array([0]))
    n_items = 1 + max(line[1] for line in lines)
    row = dense_rows(people, Layout(n_items=n_items), 3.0)[0]
    since = np.array([1.0, 0.0])
    np.testing.assert_allclose(row[:2], 1 + 3.0 * 2.0 ** (-since / 3), rtol=1e-6)
    np.testing.assert_allclose(row[n_items + 2], 1 + 3.0 * 2.0 ** (-2 / 3), rtol=1e-6)
    assert np.count_nonzero(row) == 3
    assert set(dense_rows(people, Layout(n_items=n_items))[0].tolist()) == {0.0, 1.0}


def test_a_model_with_recency_ranks_the_same_on_a_phone(tmp_path: Path) -> None:
    runs = {
        recency: privrec.train("privrec-plus", FEW, rounds=0, recency=recency, choose=False)
        for recency in (0.0, 5.0)
    }
    likes = runs[5.0].catalogue.item_ids[:12]
    lists = {}
    for recency, run in runs.items():
        export_run(run, tmp_path / f"{recency}")
        phone = privrec.open_model(tmp_path / f"{recency}").device(likes=likes).recommend(10)
        lists[recency] = [one.score for one in run.device(likes=likes).recommend(10)]
        assert [one.score for one in phone] == pytest.approx(lists[recency])
    assert lists[0.0] != pytest.approx(lists[5.0])
    back = runs[5.0].device(likes=likes[::-1]).recommend(10)
    assert [one.score for one in back] != pytest.approx(lists[5.0])
