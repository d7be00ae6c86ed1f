"""The paper's tables of ε: the printed cells, reproduced; and the recomputed ones."""

import math

import pytest

from privrec.privacy import paper as paper_tables
from privrec.privacy.paper import PRINTED_EPSILONS, PRINTED_USERS, Cell


@pytest.mark.slow
def test_counting_once_a_client_gives_all_36_printed_cells() -> None:
    """To the fourth decimal, after which the paper cuts off."""
    cells = 0
    for data, rows in PRINTED_EPSILONS.items():
        for cohort, row in rows.items():
            found = paper_tables.autodp_epsilon(PRINTED_USERS[data], cohort, 1000 * cohort)
            for delta, printed in row.items():
                assert math.floor(found(delta) * 1e4) / 1e4 == printed, (data, cohort, delta)
                cells += 1
    assert cells == 36


@pytest.fixture(scope="module")
def shown() -> dict[int, Cell]:
    """The cells of MovieLens at δ = 1e-6 for two cohorts, by cohort."""
    rows = {cohort: {1e-6: PRINTED_EPSILONS["movielens-1m"][cohort][1e-6]} for cohort in (5, 30)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_tables, "PRINTED_EPSILONS", {"movielens-1m": rows})
        return {cell.cohort: cell for cell in paper_tables.paper_tables()}


@pytest.mark.slow
def test_every_column_of_the_specification(shown: dict[int, Cell]) -> None:
    columns = ("paper", "per_round", "rdp", "tight", "poisson", "poisson_half")
    wanted = {
        5: (1.3602, 1.1931, 0.899, 0.283, 0.064, 0.194),
        30: (16.6081, 2.8384, 2.446, 1.929, 0.436, 1.298),
    }
    for cohort, figures in wanted.items():
        found = [getattr(shown[cohort], name) for name in columns]
        assert found == pytest.approx(figures, abs=6e-4)


def test_the_paper_says_more_than_it_need(shown: dict[int, Cell]) -> None:
    for cell in shown.values():
        assert cell.per_client == pytest.approx(cell.paper, abs=1e-4)
        assert cell.per_client > cell.per_round > cell.rdp > cell.tight
        assert cell.tight > cell.poisson_half > cell.poisson
