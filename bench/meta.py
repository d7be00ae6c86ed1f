"""Seconds of a round of second-order MAML against other ways to train."""

from figures import Figure
from privrec.data.sources import load
from privrec.reproduce.meta_cost import CONTENDERS, MAML, seconds_of_rounds

DATA, COHORTS, ROUNDS = "movielens-1m", (5, 10, 20, 30, 40), 11


def meta() -> list[Figure]:
    """Return the median time of a round of MAML against that of each other contender."""
    figures = []
    for cohort in COHORTS:
        seconds = seconds_of_rounds(load(DATA), cohort=cohort, rounds=ROUNDS)
        figures += [
            Figure(
                name=f"a round of {MAML}, {cohort} people",
                value=1000 * seconds[MAML],
                unit="ms",
                against=name,
                against_value=1000 * seconds[name],
            )
            for name in CONTENDERS
            if name != MAML
        ]
    return figures
