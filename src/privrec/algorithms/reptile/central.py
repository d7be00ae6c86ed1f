"""PrivRec-CEN: the same network and tasks, trained where all the data lies in one place."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import optax

from privrec.algorithms.reptile.model import Network
from privrec.core.local import LocalTrain
from privrec.core.optimize import mean_step
from privrec.core.phase import Advance, CentralPlay, RoundReport, ServerState, silent
from privrec.core.round import cohort_draw
from privrec.data.federation import Federation
from privrec.privacy.aggregate import clip
from privrec.simulate.lanes import cohort_runner
from privrec.types import IntArray


def central_round(
    network: Network,
    local: LocalTrain,
    federation: Federation,
    *,
    optimizer: optax.GradientTransformation,
    draw: Callable[[np.random.Generator | None], IntArray],
    group: int,
    seed: int,
) -> CentralPlay:
    """Return a round of central training: Reptile, with a step after every few tasks.

    Each person is a task. Where the data lies in one place nothing has to be sent between two
    steps, so the optimizer takes one after each `group` of tasks instead of one in a round.
    """
    randomness = cohort_draw(seed, secret=False)
    train = cohort_runner(local, clip, network.items)
    step = mean_step(optimizer, group)

    def play(state: ServerState, advance: Advance = silent) -> tuple[ServerState, RoundReport]:
        people = draw(randomness(state.round_index))
        tasks = network.pack(federation.take(people), state.round_index)
        params, opt_state, loss = state.params, state.opt_state, 0.0
        for begin in range(0, len(tasks), group):
            found = train(params, tasks[begin : begin + group], math.inf, advance)
            params, opt_state = step(params, opt_state, found.update)
            loss += float(found.loss)
        after = replace(
            state, round_index=state.round_index + 1, params=params, opt_state=opt_state
        )
        return after, RoundReport(
            round_index=state.round_index, clients=len(people), loss=loss / max(len(people), 1)
        )

    return play
