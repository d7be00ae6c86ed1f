"""PrivRec+: what asking more people buys, in quality and in seconds, and how soon it is good."""

import tempfile
import time
from pathlib import Path
from typing import Any

from figures import Figure
from privrec.data.sources import load
from privrec.evaluation.ranking import evaluate
from privrec.evaluation.references import popularity
from privrec.runs import Run, train

COHORTS = (100, 500, 2000)
MARK = 0.206
"""Hits@10 of the paper's centralised NCF, its upper bound."""


def cohorts() -> list[Figure]:
    """Return Hits@20 on validation people against popularity, and seconds against everybody's."""
    federation = load("movielens-1m")
    figures, everybody = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for cohort in (10**9, *COHORTS):
            started = time.perf_counter()
            place = Path(folder) / str(cohort)
            run = train("privrec-plus", federation, out=place, cohort=cohort, validation_share=0.1)
            seconds = time.perf_counter() - started
            everybody = everybody or seconds
            last: dict[str, Any] = run.rounds_played[-1]["simulation_only"]
            who = "everybody" if cohort > federation.n_clients else f"{cohort:,} people"
            if cohort > federation.n_clients:
                figures.append(_to_the_mark(run, last))
            else:
                figures.append(
                    Figure(
                        name=f"seconds of privrec-plus, {who}",
                        value=seconds,
                        unit="s",
                        against="everybody",
                        against_value=everybody,
                    )
                )
            figures.append(
                Figure(
                    name=f"quality of privrec-plus, {who}",
                    value=last["validation"]["20"],
                    unit="Hits@20",
                    against="popularity",
                    against_value=_popularity(run),
                )
            )
    return figures


def _to_the_mark(run: Run, last: dict[str, Any]) -> Figure:
    if last["validation"]["10"] < MARK:
        raise RuntimeError(f"Hits@10 is {last['validation']['10']}, below {MARK}")
    return Figure(
        name=f"seconds of privrec-plus to Hits@10 = {MARK}",
        value=sum(line["seconds"] for line in run.rounds_played),
        unit="s",
        against="the limit",
        against_value=60.0,
    )


def _popularity(run: Run) -> float:
    experiment, reference = run.experiment, popularity()
    arrays = reference.fit(experiment.federation, experiment.split.train)
    report = evaluate(
        experiment.federation,
        experiment.split.validation,
        reference.scorer(arrays),
        seed=run.config.seed,
    )
    return report.hits[20]
