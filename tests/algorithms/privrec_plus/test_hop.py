"""Pairs of items beside the vectors: against slow loops, and through a whole run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import privrec
from privrec.algorithms.privrec_plus import hop as hops
from privrec.algorithms.privrec_plus.budget import layout_for
from privrec.algorithms.privrec_plus.hop import COUNTS, PAIRS, neighbours, pair_sums
from privrec.algorithms.privrec_plus.rows import Hop, rows_of
from privrec.algorithms.privrec_plus.scoring import (
    FREQUENCY,
    HOP_ITEMS,
    HOP_VALUES,
    HOP_WEIGHT,
    Layout,
    check_tower,
    closed_form,
    from_neighbours,
)
from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Cohort
from privrec.core.round import fastest, one_by_one
from privrec.core.tables import standardised
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.errors import FederationError, RunFolderError
from privrec.privacy.aggregate import Published
from privrec.protocol.terms import phases_of
from privrec.runs import loop
from privrec.runs.journal import load_params
from privrec.runs.run import export_run
from privrec.testing import phases_of as places_of
from stops import Stopped
from tiny import DATA

HOP: dict[str, Any] = {
    "history": "subspace",
    "subspace_rank": 6,
    "rounds": 0,
    "hop_weight": 0.7,
    "hop_items": 5,
    "hop_people": 2,
    "choose": False,
}


def random_likes(people: int = 30, n_items: int = 12) -> sp.csr_array:
    draw = np.random.default_rng(1)
    return sp.csr_array((draw.uniform(size=(people, n_items)) < 0.3).astype(np.float32))


def slow_pairs(likes: sp.csr_array, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n_items = likes.shape[1]
    pairs, counts = np.zeros((n_items, n_items)), np.zeros((n_items, n_items))
    for row, weight in zip(likes.toarray(), weights, strict=True):
        for i in np.flatnonzero(row):
            for j in np.flatnonzero(row):
                if i != j:
                    pairs[i, j] += weight
                    counts[i, j] += 1
    return pairs, counts


@pytest.mark.parametrize("at_once", [20, 2**24])
@pytest.mark.parametrize("least", [1, 3])
def test_pair_sums_are_those_of_a_slow_loop(
    least: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hops, "AT_ONCE_PAIRS", at_once)
    likes = random_likes()
    weights = np.random.default_rng(2).uniform(0.1, 1.0, likes.shape[0])
    pairs, counts = slow_pairs(likes, weights)
    found = pair_sums(likes, weights, least=least)
    kept = counts >= least
    np.testing.assert_allclose(found[PAIRS].toarray(), np.where(kept, pairs, 0), rtol=1e-5)
    np.testing.assert_array_equal(found[COUNTS].toarray(), np.where(kept, counts, 0))
    assert (counts == 1).any()


def test_items_that_nobody_likes_have_no_neighbours() -> None:
    likes = sp.csr_array(np.array([[0, 1, 1, 0], [0, 1, 1, 0]], np.float32))
    sums = pair_sums(likes, np.ones(2), least=1)
    found = neighbours(
        sums, np.array([0, 2.0, 2.0, 0]), Hop(weight=1, items=2, people=2, activity=0)
    )
    assert (found[HOP_VALUES] > 0).tolist() == [
        [False] * 2,
        [True, False],
        [True, False],
        [False] * 2,
    ]
    assert found[HOP_ITEMS][1, 0] == 2


def test_an_item_keeps_its_strongest_neighbours() -> None:
    likes = random_likes()
    weights, frequency = np.full(30, 0.5), 0.5 * likes.toarray().sum(0).astype(np.float64)
    pairs, counts = slow_pairs(likes, weights)
    hop = Hop(weight=1.0, items=3, people=2, activity=0.5)
    found = neighbours({PAIRS: pairs.ravel(), COUNTS: counts.ravel()}, frequency, hop)
    values = np.where(counts >= 2, pairs, 0) * frequency[:, None] ** -0.5 * frequency**-0.4
    for item in range(12):
        best = np.sort(values[item])[::-1][:3]
        np.testing.assert_allclose(found[HOP_VALUES][item], best, rtol=1e-5)
        kept = found[HOP_VALUES][item] > 0
        at = found[HOP_ITEMS][item].astype(int)[kept]
        np.testing.assert_allclose(values[item][at], best[kept], rtol=1e-5)


def test_scores_are_those_of_a_slow_loop_for_dense_and_sparse_rows() -> None:
    draw = np.random.default_rng(3)
    tower = {
        HOP_ITEMS: draw.integers(0, 9, (9, 4)).astype(np.float32),
        HOP_VALUES: draw.uniform(size=(9, 4)).astype(np.float32),
    }
    # Nine likes, nine dislikes: the latter have no neighbours.
    rows = (draw.uniform(size=(5, 18)) < 0.4).astype(np.float32)
    rows[1] = 0
    rows[2, 3] = 2.5
    wanted = np.zeros((5, 9))
    for person in range(5):
        for item in range(9):
            for place in range(4):
                at = int(tower[HOP_ITEMS][item, place])
                wanted[person, at] += rows[person, item] * tower[HOP_VALUES][item, place]
    score = from_neighbours(tower)
    np.testing.assert_allclose(score(rows), wanted, rtol=1e-5)
    np.testing.assert_allclose(score(sp.csr_array(rows)), wanted, rtol=1e-5)


def test_the_round_gives_what_one_person_after_another_gives(federation: Federation) -> None:
    prepared = prepare(configure("privrec-plus", DATA, HOP), federation)
    place = list(places_of(prepared))[-1]
    assert place.phase.name == PAIRS
    cohort = Cohort(place.phase.population, federation.take)
    slow, fast = (
        place.phase.absorb(
            place.state,
            Published(
                dict(run(place.phase, place.told, cohort, place.phase.first, np.inf).update), np.inf
            ),
        ).params
        for run in (one_by_one, fastest)
    )
    np.testing.assert_allclose(fast[HOP_VALUES], slow[HOP_VALUES], rtol=1e-5)
    assert np.asarray(fast[HOP_VALUES]).max() > 0


def test_people_with_very_many_likes_add_no_pairs(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody = federation.take(np.arange(federation.n_clients))
    layout = Layout(n_items=federation.n_items)
    sizes = np.diff(hops.likes_of(everybody, layout).indptr)
    monkeypatch.setattr(hops, "LARGEST", int(np.median(sizes)))
    few = np.diff(hops.likes_of(everybody, layout).indptr)
    np.testing.assert_array_equal(few, np.where(sizes <= np.median(sizes), sizes, 0))
    assert (few != sizes).any()


@pytest.fixture(scope="module")
def federation() -> Federation:
    return privrec.load(DATA)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> privrec.Run:
    return privrec.train("privrec-plus", DATA, out=tmp_path_factory.mktemp("hop") / "run", **HOP)


def test_a_runs_scores_are_the_two_opinions_standardised(run: privrec.Run) -> None:
    tower = {name: np.asarray(array) for name, array in load_params(run.folder).items()}
    assert float(tower[HOP_WEIGHT]) == pytest.approx(0.7)
    plan = run.prepared
    people = plan.task.federation.take(np.arange(20))
    settings: Any = plan.task.settings
    layout = layout_for(settings, run.catalogue)
    rows = rows_of(people, layout)
    parts = closed_form(tower, layout)(rows), from_neighbours(tower)(rows)
    wanted = standardised(parts[0]) + 0.7 * standardised(parts[1]) + tower["items/bias"]
    table: Any = plan.ranker(load_params(run.folder))
    np.testing.assert_allclose(table.table(people), wanted, rtol=1e-4, atol=1e-4)
    assert tower[FREQUENCY].shape == (layout.size,)


def test_a_phone_ranks_as_the_run_does(run: privrec.Run, tmp_path: Path) -> None:
    export_run(run, tmp_path / "model.privrec")
    likes = run.catalogue.item_ids[:4]
    here = run.device(likes=likes).recommend(10)
    there = privrec.open_model(tmp_path / "model.privrec").device(likes=likes).recommend(10)
    assert [one.item for one in here] == [one.item for one in there]
    again = privrec.open_run(run.folder.path).device(likes=likes).recommend(10)
    assert [one.item for one in again] == [one.item for one in here]
    without = dict(load_params(run.folder))
    del without[HOP_ITEMS], without[HOP_VALUES], without[HOP_WEIGHT]
    table: Any = run.prepared.ranker(without)
    people: Clients = run.prepared.task.federation.take(np.arange(20))
    with_hop: Any = run.prepared.ranker(load_params(run.folder))
    order = [np.argsort(-one.table(people), axis=1)[:, :5] for one in (table, with_hop)]
    assert (order[0] != order[1]).any()


def test_a_stopped_run_goes_on_to_the_same_bytes(
    run: privrec.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)

    def stop(what: str, done: int, total: int) -> None:
        if what == f"rounds for {PAIRS}" and done == 1:
            raise Stopped

    with pytest.raises(Stopped):
        privrec.train("privrec-plus", DATA, out=tmp_path / "cut", on_progress=stop, **HOP)
    again = privrec.train("privrec-plus", DATA, out=tmp_path / "cut", resume=True)
    assert again.folder.params_path.read_bytes() == run.folder.params_path.read_bytes()


@pytest.mark.parametrize("wrong", [-1.0, 40.0, 0.5, 1e30])
def test_positions_that_are_no_items_are_refused(run: privrec.Run, wrong: float) -> None:
    params = {name: np.array(array) for name, array in load_params(run.folder).items()}
    params[HOP_ITEMS][3, 1] = wrong
    model = replace(run.model(), params=params)
    with pytest.raises(RunFolderError, match="must have positions of items"):
        model.device(likes=run.catalogue.item_ids[:2])
    with pytest.raises(RunFolderError, match="'hop/values' must have shape"):
        check_tower({**params, HOP_VALUES: params[HOP_VALUES][:, :2]}, Layout(n_items=40))


def test_a_federation_refuses_it_and_says_what_to_do(federation: Federation) -> None:
    prepared = prepare(configure("privrec-plus", DATA, HOP), federation)
    with pytest.raises(FederationError, match="set `hop_weight` to 0"):
        phases_of(prepared)
    without = {**HOP, "hop_weight": 0.0}
    assert len(phases_of(prepare(configure("privrec-plus", DATA, without), federation))) == 2


def test_a_closed_form_and_noise_have_no_pairs(federation: Federation) -> None:
    closed = {**HOP, "history": "closed-form"}
    names = [s.name for s in prepare(configure("privrec-plus", DATA, closed), federation).stages()]
    assert names == ["popularity", "moments"]
