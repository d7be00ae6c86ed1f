"""The second opinion: people's and items' vectors against normal equations written out slowly."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import privrec
from privrec.algorithms.privrec_plus import sweeps
from privrec.algorithms.privrec_plus.opinion import (
    ALPHA,
    DISLIKED,
    SECOND,
    SECOND_WEIGHT,
    entries_in,
    person_vectors,
    ridge,
    second_opinion,
    turned,
)
from privrec.algorithms.privrec_plus.rows import rows_of
from privrec.algorithms.privrec_plus.scoring import (
    BIAS,
    DISLIKES,
    LIKES,
    OUT,
    Layout,
    closed_form,
    row_scorer,
)
from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Phase, ServerState
from privrec.core.tables import added
from privrec.data.federation import Federation
from privrec.errors import SettingsError
from privrec.runs import loop
from privrec.runs.journal import load_params
from privrec.testing import small
from privrec.types import F64
from stops import Stopped
from tiny import DATA, round_of

ITEMS, WIDTH = 9, 4
DRAW = np.random.default_rng(0)
VECTORS = DRAW.normal(size=(ITEMS, WIDTH))
ROWS = np.zeros((5, 2 * ITEMS + 2), np.float32)
ROWS[0, [1, 3, 5]] = 1  # Likes alone, fewer than directions.
ROWS[1, [0, 2, 4, 6, 8, ITEMS + 1, ITEMS + 3]] = 1  # More items than directions.
ROWS[2, [7, ITEMS + 7, ITEMS + 2]] = 1  # Item 7 is liked and disliked.
ROWS[3, ITEMS + 5] = 1  # A dislike alone.
ROWS[:, -2:] = 0.3  # Features, which are not part of it; the last person has nothing else.
TARGETS: list[dict[int, float]] = [
    {1: 1.0, 3: 1.0, 5: 1.0},
    {0: 1.0, 2: 1.0, 4: 1.0, 6: 1.0, 8: 1.0, 1: DISLIKED, 3: DISLIKED},
    {7: 1.0, 2: DISLIKED},
    {5: DISLIKED},
    {},
]


def slow_vector(others: F64, targets: dict[int, float]) -> F64:
    """Minimise Σ_(has) (1 + α)(t - uᵀv)² + Σ_(has not) (uᵀv)² + ridge‖u‖²: least squares."""
    lines = [
        (np.sqrt(1 + ALPHA * (k in targets)), targets.get(k, 0.0), vector)
        for k, vector in enumerate(others)
    ]
    root = np.sqrt(ridge(len(targets), len(others)))
    left = np.vstack([*(weight * vector for weight, _, vector in lines), root * np.eye(WIDTH)])
    right = np.array([weight * target for weight, target, _ in lines] + [0.0] * WIDTH)
    return np.asarray(np.linalg.lstsq(left, right, rcond=None)[0])


@pytest.mark.parametrize("sparse", [False, True])
def test_a_persons_vector_is_the_least_squares_solution(sparse: bool) -> None:
    rows = sp.csr_array(ROWS) if sparse else ROWS
    found = person_vectors(turned(VECTORS), entries_in(rows, ITEMS, 2 * ITEMS))
    wanted = [slow_vector(VECTORS, targets) for targets in TARGETS]
    np.testing.assert_allclose(found, wanted, atol=1e-10)
    assert found[1].any()
    assert not found[-1].any()


def test_the_ridge_grows_with_what_there_is() -> None:
    assert ridge(10, 3883) == pytest.approx(1.4 * (8 * 10 + 0.05 * 3883) ** 0.5)


def test_without_columns_of_dislikes_there_are_none() -> None:
    rows = np.delete(ROWS, np.s_[ITEMS : 2 * ITEMS], axis=1)
    entries = entries_in(rows, ITEMS, ITEMS)
    assert np.diff(entries.offsets).tolist() == [3, 5, 1, 0, 0]
    assert set(entries.target.tolist()) == {1.0}


# --- sweeps ------------------------------------------------------------------------------------


def begun(data: Federation, **more: Any) -> tuple[Phase, ServerState, list[dict[int, float]]]:
    """Return the phase of the sweeps, its start, and what each of its people has."""
    settings = small(
        "privrec-plus", second_opinion=2.0, rounds=0, stage1_cohort=10**9, validation_share=0.0
    )
    prepared = prepare(configure("privrec-plus", data.name, {**settings, **more}), data)
    *before, phase = prepared.stages()
    params = None
    for stage in before:
        params = round_of(data, stage, stage.start(params))[0].params
    assert isinstance(phase, Phase)
    people = data.take(phase.population)
    mine: list[dict[int, float]] = [{} for _ in range(len(people))]
    for owner, item, liked in zip(people.owner, people.item, people.liked, strict=True):
        mine[owner][int(item)] = max(mine[owner].get(int(item), DISLIKED), float(liked))
    return phase, phase.start(params), mine


def played(data: Federation, phase: Phase, state: ServerState, rounds: int) -> ServerState:
    for _ in range(rounds):
        state = round_of(data, phase, state)[0]
    return state


def test_with_enough_steps_items_solve_their_normal_equations(
    data: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conjugate gradients end after as many steps as there are directions."""
    monkeypatch.setattr(sweeps, "STEPS", WIDTH)
    phase, state, mine = begun(data, second_sweeps=1)
    before = np.asarray(state.params[SECOND], np.float64)
    people = np.array([slow_vector(before, targets) for targets in mine])
    after = np.asarray(played(data, phase, state, phase.rounds).params[SECOND])
    for item in range(data.n_items):
        has = {k: targets[item] for k, targets in enumerate(mine) if item in targets}
        wanted = slow_vector(people, has)
        np.testing.assert_allclose(after[item], wanted, atol=2e-3 * (1 + np.abs(wanted).max()))


def loss(vectors: F64, people: F64, mine: list[dict[int, float]]) -> float:
    """Return what both sides minimise, written out."""
    total = 0.0
    counts = [sum(item in targets for targets in mine) for item in range(len(vectors))]
    for vector, targets in zip(people, mine, strict=True):
        for item, other in enumerate(vectors):
            guess = float(vector @ other)
            known = item in targets
            total += (1 + ALPHA) * (targets[item] - guess) ** 2 if known else guess**2
        total += ridge(len(targets), len(vectors)) * float(vector @ vector)
    for other, count in zip(vectors, counts, strict=True):
        total += ridge(count, len(mine)) * float(other @ other)
    return total


def test_every_sweep_lowers_the_loss(data: Federation) -> None:
    phase, state, mine = begun(data, second_sweeps=4)
    losses = []
    for _ in range(4):
        vectors = np.asarray(state.params[SECOND], np.float64)
        people = np.array([slow_vector(vectors, targets) for targets in mine])
        losses.append(loss(vectors, people, mine))
        state = played(data, phase, state, sweeps.STEPS + 1)
    assert all(later < before for before, later in pairwise(losses))


def test_an_item_that_nobody_has_gets_no_vector(data: Federation) -> None:
    phase, state, _ = begun(data, second_sweeps=1)
    rare = 3

    def without(positions: Any) -> Any:
        people = data.take(positions)
        return people.keep(people.item != rare)

    after = played(replace(data, take=without), phase, state, phase.rounds)
    vectors = np.asarray(after.params[SECOND])
    assert np.abs(vectors[rare]).max() < 1e-4 * np.abs(vectors).max()


# --- both opinions together --------------------------------------------------------------------


def test_both_opinions_are_standardised_and_added() -> None:
    layout = Layout(n_items=ITEMS, dislikes=True)
    tower: dict[str, Any] = {
        LIKES: DRAW.normal(size=(ITEMS, 3)).astype(np.float32),
        DISLIKES: DRAW.normal(size=(ITEMS, 3)).astype(np.float32),
        OUT: DRAW.normal(size=(ITEMS, 3)).astype(np.float32),
        BIAS: np.linspace(0, 1e-6, ITEMS).astype(np.float32),
        SECOND: VECTORS.astype(np.float32),
        SECOND_WEIGHT: np.float32(2.0),
    }
    rows = ROWS[:, : layout.size]
    first = closed_form(tower, layout)(rows)
    second = second_opinion(tower, ITEMS, 2 * ITEMS)(rows)
    np.testing.assert_allclose(
        second, [VECTORS @ slow_vector(VECTORS, targets) for targets in TARGETS], atol=1e-4
    )
    found = row_scorer(tower, layout)(rows)
    np.testing.assert_allclose(found, added(first, second, 2.0) + tower[BIAS], atol=1e-5)


def test_weight_zero_leaves_it_out(tmp_path: Path) -> None:
    settings = small("privrec-plus", second_opinion=0.0)
    run = loop.train("privrec-plus", DATA, out=tmp_path / "run", **settings)
    assert not {SECOND, SECOND_WEIGHT} & load_params(run.folder).keys()


def test_under_noise_there_is_none() -> None:
    with pytest.raises(SettingsError, match="unknown key 'second_opinion'"):
        configure("dp-privrec-plus", DATA, {"second_opinion": 1.0})
    noised = small("privrec-plus", second_opinion=1.0, mechanism="gaussian", noise_multiplier=9.0)
    prepared = prepare(
        configure("privrec-plus", DATA, {**noised, "force_delta": True}), privrec.load(DATA)
    )
    assert sweeps.NAME not in [stage.name for stage in prepared.stages()]


def test_a_sweep_that_was_stopped_goes_on_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small("privrec-plus", second_opinion=1.0, second_sweeps=2)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    whole = loop.train("privrec-plus", DATA, out=tmp_path / "whole", **settings)
    real = sweeps.stepped

    def stop(*given: Any) -> Any:
        monkeypatch.setattr(sweeps, "stepped", real)
        raise Stopped

    monkeypatch.setattr(sweeps, "stepped", stop)
    with pytest.raises(Stopped):
        loop.train("privrec-plus", DATA, out=tmp_path / "part", **settings)
    part = loop.train("privrec-plus", DATA, out=tmp_path / "part", resume=True, **settings)
    one, other = load_params(whole.folder), load_params(part.folder)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_rows_of_people_are_what_a_sweep_reads(data: Federation) -> None:
    """Features and contexts are columns too, and must not be taken for items."""
    prepared = prepare(configure("privrec-plus", data.name, small("privrec-plus")), data)
    people = data.take(np.arange(5))
    layout = Layout(
        n_items=data.n_items, users=prepared.task.federation.catalogue.schema.of("user")
    )
    entries = entries_in(rows_of(people, layout), data.n_items, layout.item_columns)
    for k in range(5):
        own = set(people.take(np.array([k])).item.tolist())
        found = entries.item[entries.offsets[k] : entries.offsets[k + 1]]
        assert set(found.tolist()) == own
