"""The history tower from subspace iteration: against dense matrices and least squares."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.linalg import subspace_angles
from test_solve import COLUMNS, ITEMS, likes_and_more, slow_ridge

import privrec
from privrec.algorithms.privrec_plus.rows import SparseRows, rows_of
from privrec.algorithms.privrec_plus.scoring import DISLIKES, LIKES, OUT, Layout, closed_form
from privrec.algorithms.privrec_plus.settings import in_subspace
from privrec.algorithms.privrec_plus.solve import regression_within
from privrec.algorithms.privrec_plus.subspace import leading, orthonormal, taste_shares
from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Accepted, Cohort, Phase, check_told, weights
from privrec.core.round import fastest, one_by_one
from privrec.data.federation import Federation
from privrec.data.importing import import_files, write_import
from privrec.errors import WireError
from privrec.runs import loop
from privrec.runs.journal import load_params
from privrec.runs.ledger import read_ledger
from privrec.testing import expected_cohort, phases_of, small, sums
from privrec.types import F64, Leaf
from stops import Stopped
from tiny import DATA, round_of


def weighted_squares(rows: F64, weights: F64) -> F64:
    return (rows * weights[:, None]).T @ rows


# --- the regression within a subspace ----------------------------------------------------------


@pytest.mark.parametrize(("l2", "dropout"), [(0.5, 0.0), (20.0, 0.0), (0.5, 0.7)])
def test_with_all_directions_it_is_the_regression_of_the_closed_form(
    l2: float, dropout: float
) -> None:
    rows, weights = likes_and_more()
    shrink = np.linspace(0.3, 1.5, COLUMNS)
    squares = weighted_squares(rows * shrink, weights)
    strength, vectors = np.linalg.eigh(squares)
    found = regression_within(
        vectors, strength, np.diag(squares), shrink, n_items=ITEMS, l2=l2, dropout=dropout
    )
    wanted = slow_ridge(rows, rows[:, :ITEMS], weights, l2=l2, dropout=dropout)
    np.testing.assert_allclose(shrink[:, None] * (vectors @ found.T), wanted, atol=1e-4)


@pytest.mark.parametrize("also", [0.0, 0.6])
@pytest.mark.parametrize("d", [2, 5])
def test_an_item_is_predicted_from_directions_without_its_own_columns(d: int, also: float) -> None:
    """A slow loop: the own columns are taken out of each row, then least squares on Vᵀx."""
    rows, weights = likes_and_more()
    rows = rows.copy()
    rows[:, ITEMS : 2 * ITEMS] *= rows[:, :ITEMS] == 0  # Nobody both likes and dislikes an item.
    # Rows within d directions, so that V diag(strength) Vᵀ is exact.
    squares = weighted_squares(rows, weights)
    strength, vectors = np.linalg.eigh(squares)
    strength, vectors = strength[-d:], vectors[:, -d:]
    flat = vectors @ np.diag(strength) @ vectors.T
    l2, dropout = 0.5, 0.3
    found = regression_within(
        vectors,
        strength,
        np.diag(squares),
        np.ones(COLUMNS),
        n_items=ITEMS,
        l2=l2,
        dropout=dropout,
        also=also,
    )
    ridge = vectors.T @ np.diag(l2 + dropout / (1 - dropout) * np.diag(squares)) @ vectors
    for item in range(ITEMS):
        owns = [(item, 1.0), *([(ITEMS + item, also)] if also else [])]
        left, right = np.diag(strength) + ridge, np.zeros(d)
        for own, weight in owns:
            mine, often = vectors[own], squares[own, own]
            along = vectors.T @ flat[:, own]
            left += often * np.outer(mine, mine) - np.outer(mine, along) - np.outer(along, mine)
            right += weight * (along - often * mine)
        np.testing.assert_allclose(found[item], np.linalg.solve(left, right), rtol=1e-3, atol=1e-5)


# --- the power method --------------------------------------------------------------------------


def low_rank(d: int) -> F64:
    draw = np.random.default_rng(1)
    half = draw.normal(size=(30, d)) * np.linspace(3, 1, d)
    return half @ half.T


def test_a_matrix_of_low_rank_is_found_exactly_from_one_product() -> None:
    matrix = low_rank(4)
    basis = np.random.default_rng(2).normal(size=(30, 6)).astype(np.float32)
    vectors, strength = leading(basis, (matrix @ basis).astype(np.float32))
    np.testing.assert_allclose((vectors * strength) @ vectors.T, matrix, atol=1e-3)
    np.testing.assert_allclose(np.sort(strength)[:2], 0, atol=1e-3)


def test_rounds_turn_the_basis_to_the_leading_directions() -> None:
    matrix = low_rank(8) + 0.01 * np.eye(30)
    basis = np.random.default_rng(3).normal(size=(30, 3)).astype(np.float32)
    for _ in range(40):
        basis = orthonormal((matrix @ basis).astype(np.float32))
        np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-4)
    wanted = np.linalg.eigh(matrix)[1][:, -3:]
    assert subspace_angles(basis.astype(np.float64), wanted).max() < 1e-2


def test_sums_that_span_too_little_are_no_error() -> None:
    sums = np.zeros((5, 3), np.float32)
    assert np.isfinite(orthonormal(sums)).all()
    sums[:, 0] = sums[:, 1] = 1
    found = orthonormal(sums)
    assert np.isfinite(found).all()
    assert np.linalg.norm(found, axis=0).max() == pytest.approx(1, abs=1e-3)
    assert np.isfinite(leading(found, sums)[0]).all()


# --- runs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federation() -> Federation:
    return privrec.load(DATA)


def phase_and_sum(federation: Federation, **settings: Any) -> tuple[Phase, Leaf]:
    """Return the phase, and what its first round publishes for a basis of unit vectors."""
    settings = {"history": "subspace", "subspace_rank": 10**6, "rounds": 0, **settings}
    prepared = prepare(configure("privrec-plus", DATA, settings), federation)
    first, second = prepared.stages()
    assert isinstance(first, Phase)
    assert isinstance(second, Phase)
    state = second.start(round_of(federation, first, first.start(None))[0].params)
    told = dict(second.tell(state))
    told["basis"] = np.eye(len(told["basis"]), dtype=np.float32)
    cohort = Cohort(second.population, federation.take)
    return second, np.asarray(fastest(second, told, cohort, 1, np.inf).update["basis"])


def test_a_round_sums_the_matrix_of_the_closed_form_times_the_basis(
    federation: Federation,
) -> None:
    """With unit vectors as the basis, the sum is the matrix itself: a slow loop over people."""
    phase, found = phase_and_sum(federation, subspace_power=0.0, activity_power=0.7)
    layout = Layout(n_items=federation.n_items, users=federation.schema.of("user"), contexts=())
    assert found.shape == (layout.size, layout.size)
    scale = np.repeat([1.0, 0.5, *(0.2 for _ in layout.users)], layout.sizes)
    wanted = np.zeros(found.shape)
    for person in phase.population:
        row = rows_of(federation.take(np.array([person])), layout).toarray()[0] * scale
        likes = max(int((row[: layout.n_items] > 0).sum()), 1)
        wanted += likes**-0.7 * np.outer(row, row)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_run_with_every_direction_scores_as_the_closed_form(tmp_path: Path) -> None:
    """More people than columns, and no targets for dislikes: both solve the same regression."""
    data = "synthetic:users=800,items=20,longest=10"
    federation, layout = privrec.load(data), Layout(n_items=20)
    rows = rows_of(federation.take(np.arange(20)), layout)
    scores = []
    for history, rank in (("closed-form", 0), ("subspace", 128)):
        run = privrec.train(
            "privrec-plus",
            data,
            out=tmp_path / history,
            history=history,
            history_rank=rank,
            subspace_rank=40,
            popularity_discount=0.0,
            rounds=0,
            dislike_target=0.0,
            feature_input=0.0,
            history_l2=5.0,
        )
        tower = {name: np.asarray(array) for name, array in load_params(run.folder).items()}
        scores.append(closed_form(tower, layout)(rows))
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-3)
    assert np.abs(scores[0]).max() > 0.1


SMALL = small("privrec-plus", history="subspace", subspace_rounds=3)


def test_what_runs_a_cohort_gives_what_one_by_one_gives(federation: Federation) -> None:
    found = list(phases_of(prepare(configure("privrec-plus", DATA, SMALL), federation)))
    assert [place.phase.name for place in found] == ["popularity", "subspace", "train"]
    assert [place.phase.first for place in found] == [0, 1, 4]
    for place in found[:2]:
        cohort = expected_cohort(place, federation)
        slow, fast = (
            sums(run(place.phase, place.told, cohort, place.phase.first, np.inf))
            for run in (one_by_one, fastest)
        )
        assert slow.keys() == fast.keys()
        for name, wanted in slow.items():
            np.testing.assert_allclose(fast[name], wanted, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("after", [1, 3])
def test_a_stopped_run_goes_on_to_the_same_bytes(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = privrec.train("privrec-plus", DATA, out=tmp_path / "whole", **SMALL)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)

    def stop(what: str, done: int, total: int) -> None:
        if what == "rounds for subspace" and done == after:
            raise Stopped

    with pytest.raises(Stopped):
        privrec.train("privrec-plus", DATA, out=tmp_path / "cut", on_progress=stop, **SMALL)
    again = privrec.train("privrec-plus", DATA, out=tmp_path / "cut", resume=True)
    assert again.folder.params_path.read_bytes() == whole.folder.params_path.read_bytes()


def test_it_is_chosen_where_the_catalogue_is_too_large() -> None:
    def chosen(n_items: int, **settings: Any) -> bool:
        return in_subspace(configure("privrec-plus", DATA, settings), n_items)

    assert not chosen(8000)
    assert chosen(8001)
    assert chosen(10, history="subspace")
    assert not chosen(10**6, history="closed-form")
    assert chosen(31, history_items=30)


@pytest.mark.slow
def test_data_without_dislikes_has_no_columns_for_them(tmp_path: Path) -> None:
    lines = "\n".join(f"{u},{i}" for u in range(30) for i in range(u % 5, 20, 1 + u % 3))
    (tmp_path / "lines.csv").write_text("user,item\n" + lines + "\n")
    write_import(import_files(tmp_path / "lines.csv", mapping={}), tmp_path / "data")
    data = privrec.load(str(tmp_path / "data"))
    assert not data.catalogue.has_dislikes
    for history in ("closed-form", "subspace"):
        run = privrec.train(
            "privrec-plus",
            str(tmp_path / "data"),
            out=tmp_path / history,
            history=history,
            rounds=2,
            cohort=5,
            embedding_size=2,
            validation_share=0.0,
        )
        params = load_params(run.folder)
        assert LIKES in params
        assert OUT in params
        assert DISLIKES not in params
        assert "learn/dislike" not in params
        assert run.device(likes=["3"], dislikes=["4"]).recommend(3)


# --- under noise: hostile servers and people ---------------------------------------------------

HONEST = {"basis": np.linalg.qr(np.eye(6)[:, :2] + 0.1)[0], "scale": np.linspace(0.5, 2, 6)}


def person_with(items: list[int]) -> SparseRows:
    row = np.zeros((1, 12), np.float32)
    row[0, items] = 1
    return SparseRows(row)


@pytest.mark.parametrize("dislike", [1e-30, 0.5, 1e6])
@pytest.mark.parametrize("items", [[], [1], [7], [1, 7], list(range(6)), list(range(12))])
def test_nobody_adds_more_than_one_to_a_round(items: list[int], dislike: float) -> None:
    unit, taste = taste_shares(person_with(items), Layout(n_items=6), HONEST, dislike)
    added = np.linalg.norm(unit.T @ taste)
    assert added == pytest.approx(1.0, abs=1e-9) if items else added == 0


@pytest.mark.parametrize(
    "hostile",
    [
        {"scale": np.full(6, 1.5e-162)},
        {"scale": np.full(6, 1e300)},
        {"scale": -np.ones(6)},
        {"scale": np.full(6, np.nan)},
        {"basis": np.full((6, 2), 1.7e308)},
        {"basis": np.full((6, 2), np.inf)},
        {"basis": np.ones((5, 2))},
        {"scale": np.ones(7)},
    ],
)
def test_what_would_spoil_lengths_is_refused(hostile: dict[str, Leaf]) -> None:
    accepts = {"basis": Accepted(shape=(6, 2)), "scale": weights((6,), or_zero=True)}
    check_told(HONEST, accepts)
    with pytest.raises(WireError, match="the server tells"):
        check_told({**HONEST, **hostile}, accepts)


@pytest.mark.slow
def test_a_noised_run_costs_its_budget_in_four_releases(tmp_path: Path) -> None:
    """One accountant for four Gaussians of everybody; all rounds are played."""
    run = privrec.train(
        "dp-privrec-plus", DATA, out=tmp_path / "run", history="subspace", epsilon=5.0, delta=1e-3
    )
    lines = read_ledger(run.folder)
    assert [line.stage for line in lines] == ["popularity", *["subspace"] * 3]
    assert [line.round for line in lines] == [0, 1, 2, 3]
    one, *rest = (pld.from_gaussian_mechanism(line.noise_multiplier) for line in lines)
    for other in rest:
        one = one.compose(other)
    assert run.privacy().epsilon == pytest.approx(one.get_epsilon_for_delta(1e-3), rel=0.01)
    assert 4.9 < (run.privacy().epsilon or 0) <= 5.0
