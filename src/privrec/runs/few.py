"""Whether a data set has enough people: to learn anything under noise, and to test anybody."""

import numpy as np

from privrec.algorithms.prepared import PreparedRun
from privrec.core.phase import Cohort, Phase
from privrec.core.round import fastest
from privrec.privacy.few import Sums, people_needed, too_few_words
from privrec.runs.ledgerfile import release_of, settled_ledger
from privrec.runs.records import RunFolder


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


def too_few_have_learned(folder: RunFolder) -> str:
    """Return the same of a run that was trained, by its ledger.

    Ledgers of earlier versions do not have how many numbers were published: "".
    """
    lines = settled_ledger(folder)
    stages = list(dict.fromkeys(line["stage"] for line in lines))
    of_stages = [[line for line in lines if line["stage"] == stage] for stage in stages]
    kinds = [
        Sums(
            release=release_of(some[0]),
            count=len(some),
            numbers=min(int(line.get("numbers", 0)) for line in some),
        )
        for some in of_stages
    ]
    people = max((sums.release.sampling.users for sums in kinds), default=0)
    return too_few_words(people, people_needed(kinds))


def nobody_to_test(prepared: PreparedRun) -> str:
    """Return that nobody was drawn to be tested, and what would draw somebody; "" if there is."""
    if len(prepared.split.test):
        return ""
    config, people = prepared.config, prepared.whole.n_clients
    who = "the 1 person" if people == 1 else f"any of the {people:,} people"
    return (
        f"nobody can be tested: the seed {config.seed} did not draw {who} to be a test person"
        f" (test_share {config.test_share:g}); train with another --seed, a larger test_share or"
        " more people"
    )
