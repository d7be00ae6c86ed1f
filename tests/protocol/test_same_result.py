"""What every recipe of the table must hold in a federation: the result of the simulator.

The nodes are in this process (`loopback.py`); `tests/transport/test_processes.py` has real ones.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopback import Loopback
from privrec.algorithms.recipes import RECIPES, configure, prepare
from privrec.core.phase import Cohort
from privrec.data.federation import Federation
from privrec.errors import FederationError
from privrec.protocol.coding import coding_of, layout_of
from privrec.protocol.server import executor
from privrec.protocol.terms import phases_of, plan_of
from privrec.runs import folder as records
from privrec.runs.loop import play_stages
from rounding import coding_error
from same import PLAIN_STEPS, assert_same_run, without_noise
from subspace import SUBSPACE
from tiny import PLUS_WAYS, each_recipe, go_plus_way, new_folder

IN_SUBSPACE = "privrec-plus-in-a-subspace"
SECOND = "privrec-plus-with-a-second-opinion"
LARGE = "dp-privrec-plus-with-many-items"
NAMES = [*RECIPES, "subspace", IN_SUBSPACE, SECOND, LARGE, *PLUS_WAYS]
CENTRAL = {"privrec-cen", "ncf", "popularity", "own-items", "item-knn", "ease"}


@pytest.fixture(scope="module", autouse=True)
def _example_in_the_table() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "subspace", SUBSPACE)
        plus = RECIPES["privrec-plus"]
        values = {**plus.values, "history": "subspace", "subspace_rank": 12}
        patch.setitem(RECIPES, IN_SUBSPACE, replace(plus, values=values))
        values = {**plus.values, "second_opinion": 2.0}
        patch.setitem(RECIPES, SECOND, replace(plus, values=values))
        noised = RECIPES["dp-privrec-plus"]
        values = {**noised.values, "history": "closed-form", "history_items": 9}
        patch.setitem(RECIPES, LARGE, replace(noised, values=values))
        for name in PLUS_WAYS:
            patch.setitem(RECIPES, name, RECIPES["dp-privrec-plus"])
        yield


@pytest.mark.parametrize("how", ["plain", "masked"])
@each_recipe(NAMES)
def test_a_federation_learns_what_the_simulator_learns(
    recipe: str, how: str, data: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one sequence of cohorts and no noise, parameters agree to 1e-5."""
    go_plus_way(monkeypatch, recipe)
    steps = PLAIN_STEPS if how == "masked" else {}
    prepared = prepare(configure(recipe, data.name, without_noise(recipe, **steps)), data)
    if recipe in CENTRAL:
        with pytest.raises(FederationError, match="all data in one place"):
            phases_of(Loopback(prepared, tmp_path, secure_sum=False).run())
        return
    alone = new_folder(tmp_path / "alone", prepared)
    play_stages(prepared, alone)
    net = Loopback(prepared, tmp_path / "net", secure_sum=how == "masked")
    run = net.run()
    together = records.create_run(tmp_path / "run", run.task.settings, "{}", None)
    play_stages(run, together, network=net.server.network())
    assert_same_run(alone, together)


@pytest.mark.parametrize(
    "recipe", ["privrec", "dp-privrec", "privrec-plus", "dp-privrec-plus", "subspace"]
)
def test_a_secure_sum_is_as_exact_as_its_coding_says_beforehand(
    recipe: str, data: Federation, tmp_path: Path
) -> None:
    prepared = prepare(configure(recipe, data.name, without_noise(recipe)), data)
    nets = {
        secure: Loopback(prepared, tmp_path / str(secure), secure_sum=secure)
        for secure in (False, True)
    }
    bound = plan_of(nets[True].terms, data.catalogue)
    phase, state = phases_of(bound)[0], phases_of(bound)[0].start(None)
    told, cohort = phase.tell(state), Cohort(phase.population, bound.task.federation.take)
    sums = {
        secure: executor(net.server)(phase, told, cohort, 0, state.clip_norm).update
        for secure, net in nets.items()
    }
    layout = layout_of(phase, told, cohort.take(phase.population[:1]), 0, state.clip_norm)
    coding = coding_of(nets[True].terms.people, phase, layout, state.clip_norm)
    for name, exact in sums[False].items():
        allowed = coding_error(coding, 3, float(np.abs(exact).max()))
        worst = float(np.abs(np.asarray(sums[True][name]) - exact).max())
        assert worst <= allowed < 1e-6 * max(1.0, float(np.abs(exact).max())), name
    if recipe != "privrec-plus":
        # Rounding leaves something behind, or the sum was never coded.
        assert any((np.asarray(sums[True][n]) != sums[False][n]).any() for n in sums[True])
