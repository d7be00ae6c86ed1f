"""Training in one place: the same tasks as on devices, with a step after every few of them."""

import jax
import numpy as np
import optax
import pytest

import privrec
from privrec.algorithms.recipes import configure, prepare
from privrec.core.contribution import add_to
from privrec.core.phase import CentralFit, Phase, silent
from privrec.core.round import cohort_draw
from privrec.testing import small
from privrec.types import Leaf
from tiny import DATA


@pytest.mark.slow
def test_a_step_follows_every_group_of_tasks() -> None:
    """Against a plain loop over what single devices would send: 8 tasks, three to a step."""
    data = privrec.load(DATA)
    more = {"server_lr": 0.02, "sampling": "fixed"}
    central = prepare(
        configure("privrec-cen", DATA, {**small("privrec-cen", group=3), **more}), data
    )
    devices = prepare(configure("privrec", DATA, {**small("privrec"), **more}), data)
    (fit,), (phase,) = central.stages(), devices.stages()
    assert isinstance(fit, CentralFit)
    assert isinstance(phase, Phase)
    state = fit.start(None)
    found, report = fit.play(state, silent)
    people = phase.release.sampling.draw(phase.population, cohort_draw(0, secret=False)(0))
    optimizer = optax.adam(0.02)
    params = {name: np.asarray(value) for name, value in state.params.items()}
    memory = optimizer.init(params)
    for begin in (0, 3, 6):
        total: dict[str, Leaf] = {}
        for person in people[begin : begin + 3]:
            sent = phase.device.contribute(params, data.take(np.array([person])), 0)
            add_to(total, sent)
        slope = {name: np.asarray(-value / 3, np.float32) for name, value in total.items()}
        change, memory = optimizer.update(slope, memory, params)
        params = jax.tree.map(np.asarray, optax.apply_updates(params, change))
    assert report.clients == 8
    assert found.round_index == 1
    for name, value in params.items():
        np.testing.assert_allclose(found.params[name], value, atol=2e-5, err_msg=name)
