"""Whether there are enough people to learn anything from under noise, before a training."""

import numpy as np

from privrec.algorithms.prepared import PreparedRun
from privrec.core.phase import Cohort, Phase
from privrec.core.round import fastest
from privrec.privacy.few import Sums, people_needed, too_few_words


def too_few_to_learn(prepared: PreparedRun) -> str:
    """Return that nothing can be learned from so few people under the run's noise; "" if it can."""
    if prepared.config.budget.mechanism == "none":
        return ""
    return too_few_words(prepared.split.public_train, people_needed(_planned(prepared)))


def _planned(prepared: PreparedRun) -> list[Sums]:
    """Return what the stages would publish: how many numbers, a sum over nobody tells."""
    found, params = [], None
    for stage in prepared.stages():
        state = stage.start(params)
        params = state.params
        numbers = 0
        if isinstance(stage, Phase) and stage.release.is_private:
            nobody = Cohort(stage.population[:0], prepared.federation.take)
            total = fastest(stage, stage.tell(state), nobody, stage.first, state.clip_norm)
            numbers = sum(int(np.size(leaf)) for leaf in total.update.values())
        found.append(Sums(release=stage.release, count=stage.rounds, numbers=numbers))
    return found
