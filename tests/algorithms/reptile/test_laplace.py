"""lm-privrec: the weight on item rows comes before the bound, and changes nothing else."""

from typing import Any

import numpy as np
import pytest

import privrec
from privrec.algorithms.recipes import configure, prepare
from privrec.core.bound import bounded
from privrec.core.contribution import length, shapes_of
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import Phase
from privrec.data.federation import Federation
from privrec.testing import small
from tiny import DATA


@pytest.fixture(scope="module")
def data() -> Federation:
    return privrec.load(DATA)


def phase_of(data: Federation, **more: Any) -> Phase:
    """Return the one phase of lm-privrec under small settings."""
    settings = small("lm-privrec", embedding_scale=0.5, **more)
    (phase,) = prepare(configure("lm-privrec", data.name, settings), data).stages()
    assert isinstance(phase, Phase)
    return phase


def test_the_weight_multiplies_the_item_rows_and_nothing_else(data: Federation) -> None:
    plain, heavy = (phase_of(data, item_weight=weight) for weight in (1.0, 100.0))
    person, told = data.take(plain.population[:1]), plain.tell(plain.start(None))
    one, other = (phase.device.contribute(told, person, 0) for phase in (plain, heavy))
    rows = np.asarray(one.rows[ITEM_TABLE].values)
    assert np.abs(rows).max() > 0
    np.testing.assert_allclose(other.rows[ITEM_TABLE].values, 100 * rows, rtol=1e-5)
    for name, leaf in one.dense.items():
        np.testing.assert_allclose(other.dense[name], leaf, rtol=1e-5, atol=1e-8, err_msg=name)


def test_the_bound_holds_after_the_weight_and_the_rows_get_most_of_it(data: Federation) -> None:
    shares = []
    for weight in (1.0, 100.0):
        phase = phase_of(data, item_weight=weight)
        assert phase.aggregator.norm == "l1"
        told, bound = phase.tell(phase.start(None)), 1e-3
        sent = phase.device.contribute(told, data.take(phase.population[:1]), 0)
        usual = shapes_of(sent)
        assert usual is not None
        cut = bounded(sent, bound, "l1", expected=usual).contribution
        assert length(cut, "l1") <= bound
        shares.append(float(np.abs(cut.rows[ITEM_TABLE].values).sum()) / bound)
    assert shares[0] < 0.9
    assert shares[1] > 0.95


def test_the_presets_are_one_number_an_item_and_everybody() -> None:
    """Half of an L1 bound on two numbers is half the signal, so an item is one number."""
    for name, people in (("movielens-1m", 4349), ("frappe", 766)):
        settings = configure("lm-privrec", name, {})
        assert (settings.embedding_size, settings.cohort) == (1, people)
        assert settings.mechanism == "laplace"
