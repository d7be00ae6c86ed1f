"""Figures of a model on the people who are tested, or on those who validate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from privrec.algorithms.prepared import PreparedRun
from privrec.core.contribution import to_bytes
from privrec.core.phase import Phase
from privrec.core.scorer import Scorer
from privrec.data.federation import Federation
from privrec.errors import DataError
from privrec.evaluation.protocols import View
from privrec.evaluation.ranking import EvalReport, evaluate_view, with_few_items
from privrec.evaluation.references import (
    DENSE_LIMIT,
    Reference,
    ease,
    item_knn,
    own_items,
    popularity,
)
from privrec.privacy.statement import PrivacyReport
from privrec.settings import RunSettings
from privrec.simulate.cost import usual_person
from privrec.types import IntArray, Params

FEW_ITEMS = 20
"""The paper calls people with fewer items inactive."""
OnProgress = Callable[[str, int, int], None]
"""(name of the step, how much is done, how much there is)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The final report: figures on the test people, and the reference rows of the same run.

    `few` is for test people with few items on their device, `few_unadapted` for the same people
    without adaptation. `bytes_sent` is what one person of usual size sends in one round.
    """

    config: RunSettings
    protocol: str
    candidates: str
    train: int
    validation: int
    report: EvalReport
    few: EvalReport
    few_unadapted: EvalReport | None
    references: Mapping[str, EvalReport]
    privacy: PrivacyReport
    bytes_sent: int

    @property
    def hits(self) -> dict[int, float]:
        """Hits@k by k."""
        return self.report.hits

    def as_json(self) -> dict[str, Any]:
        """Return the content of `evaluation.json`."""
        config, report = self.config, self.report
        return {
            "recipe": config.recipe,
            "data": config.data,
            "seed": config.seed,
            "users": {
                "train": self.train,
                "validation": self.validation,
                "test": report.tested,
                "skipped": report.skipped,
            },
            "protocol": self.protocol,
            "candidates": self.candidates,
            **report.as_json(),
            "few_items": {
                "fewer_than": FEW_ITEMS,
                "people": self.few.tested,
                "hits": self.few.as_json()["hits"],
                "without_adaptation": self.few_unadapted and self.few_unadapted.as_json()["hits"],
            },
            "references": {name: figures.as_json() for name, figures in self.references.items()},
            "privacy": self.privacy.as_json(),
            "cost": {"bytes_sent": self.bytes_sent},
        }


def evaluate_run(
    prepared: PreparedRun,
    params: Params,
    privacy: PrivacyReport,
    *,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Return the figures on the test people, for the run and for the reference recommenders."""
    config, federation, split = prepared.config, prepared.federation, prepared.split
    protocol = prepared.protocol
    view = protocol.testing(prepared.whole)
    report = _evaluate_on(prepared, view, split.test, prepared.rankers.adapted(params), on_progress)
    if report.tested == 0:
        raise DataError(
            f"none of the {len(split.test)} test people has two likes, one of them to be tested"
        )
    few = with_few_items(view, split.test, fewer_than=FEW_ITEMS)
    unadapted = prepared.rankers.unadapted
    references = {}
    for name, reference in _references(federation).items():
        arrays = reference.fit(federation, split.fitted)
        references[name] = _evaluate_on(prepared, view, split.test, reference.scorer(arrays), None)
    return Evaluation(
        config=config,
        protocol=protocol.name,
        candidates=protocol.candidates,
        train=len(split.train),
        validation=len(split.validation),
        report=report,
        few=_evaluate_on(prepared, view, few, prepared.rankers.adapted(params), None),
        few_unadapted=unadapted and _evaluate_on(prepared, view, few, unadapted(params), None),
        references=references,
        privacy=privacy,
        bytes_sent=bytes_sent(prepared, params),
    )


def _references(federation: Federation) -> dict[str, Reference]:
    references = {"popularity": popularity(), "own-items": own_items()}
    if federation.n_items <= DENSE_LIMIT:
        references |= {"item-knn": item_knn(), "ease": ease()}
    return references


def _evaluate_on(
    prepared: PreparedRun,
    view: View,
    people: IntArray,
    scorer: Scorer,
    on_progress: OnProgress | None,
) -> EvalReport:
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report_progress(on_progress, "people tested", done, len(people))

    protocol = prepared.protocol
    return evaluate_view(
        view,
        people,
        scorer,
        candidates=protocol.candidates,
        with_recall=protocol.name != "halves",
        on_progress=advance,
    )


def bytes_sent(prepared: PreparedRun, params: Params) -> int:
    """Return the bytes of the largest message of the person of usual size; 0 if nobody sends any.

    The message is the one that a round would ask for with these parameters, as it goes over the
    wire without masks.
    """
    sizes = [0]
    for stage in prepared.stages():
        if not isinstance(stage, Phase) or not len(stage.population):
            continue
        state = stage.start(params if stage.first else None)
        person = prepared.federation.take(usual_person(prepared.federation, stage.population))
        told = {name: np.asarray(leaf) for name, leaf in stage.tell(state).items()}
        sizes.append(len(to_bytes(stage.device.contribute(told, person, stage.first))))
    return max(sizes)


def validate(prepared: PreparedRun, params: Params) -> Mapping[str, float | None]:
    """Return Hits@k on the validation people, by k."""
    scorer = prepared.rankers.adapted(params)
    view = prepared.protocol.validating(prepared.whole)
    report = _evaluate_on(prepared, view, prepared.split.validation, scorer, None)
    hits: dict[str, float | None] = report.as_json()["hits"]
    return {k: value if value is None else round(value, 5) for k, value in hits.items()}


def report_progress(on_progress: OnProgress | None, what: str, done: int, total: int) -> None:
    """Say how far something is, to whoever wants to know."""
    if on_progress is not None:
        on_progress(what, done, total)
