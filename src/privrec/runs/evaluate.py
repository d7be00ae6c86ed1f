"""Figures of a model for the test people or for the validation people.

The figures of each person are also written, so that two evaluations can be compared person by
person. They come from raw data, so they are in `simulation/`. Hashes of ids identify the people.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from privrec.algorithms.recipe import Plan
from privrec.core.contribution import to_bytes
from privrec.core.phase import Phase
from privrec.core.scorer import Scorer
from privrec.errors import DataError, RunFolderError, SettingsError, first_fault
from privrec.evaluation.intervals import Difference, People, differences, intervals
from privrec.evaluation.metrics import KS, PARTS, by_items, means, parts_of
from privrec.evaluation.protocols import Protocol, View, resolve
from privrec.evaluation.ranking import EvalReport, Tested, measure
from privrec.evaluation.references import MEMORY_GB, Fitted, fit_references
from privrec.privacy.statement import PrivacyReport
from privrec.runs import folder as records
from privrec.runs.documents import Cost, Evaluation, FewItems, Figures, Group, Part
from privrec.runs.figures import ADVICE, signed
from privrec.simulate.cost import usual_person
from privrec.types import F64, IntArray, OnProgress, Params

FEW_ITEMS = 20
"""People with fewer items are called inactive in the paper."""
VALIDATED = 5_000
"""The validation figures of a round use at most this many people, the first ones, so that they are
fast for large data sets. With 5,000 people, a share of 0.2 has a standard error of 0.006."""


class Asked(BaseModel):
    """The options of an evaluation.

    `references` are names; None means all references that fit into `memory_gb` together.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    protocol: str | None = None
    candidates: str | None = None
    references: Annotated[list[str], Strict(False)] | None = None
    memory_gb: Annotated[float, Field(gt=0)] = MEMORY_GB


def checked_asked(**given: object) -> Asked:
    """Return the checked options of an evaluation."""
    try:
        return Asked.model_validate(given)
    except ValidationError as error:
        raise SettingsError(first_fault(error)) from error


_K = 20


def evaluate_run(
    prepared: Plan,
    params: Params,
    privacy: PrivacyReport,
    *,
    asked: Asked | None = None,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Return the figures of the run and of the references for the test people."""
    config, split, protocol = prepared.task.settings, prepared.task.split, prepared.task.protocol
    if nobody := nobody_to_test(prepared):
        raise DataError(nobody)
    fitted = _fitted(prepared, asked or Asked(), on_progress)
    scorers: dict[str, Scorer] = {_OURS: prepared.ranker(params), **fitted.scorers}
    unadapted = prepared.unadapted
    if unadapted is not None:
        scorers[_UNADAPTED] = unadapted(params)
    view = protocol.testing(prepared.task.whole)
    measured = _measure(prepared, view, split.test, scorers, fitted.surprise, on_progress)
    found = {name: one.in_order() for name, one in measured.items()}
    ours = found.pop(_OURS)
    if not len(ours.items):
        raise DataError(
            f"none of the {len(split.test)} test people has two likes, one of them to be tested"
        )
    evaluation = _evaluation(prepared, privacy, ours, found, fitted)
    cost = Cost(bytes_sent=bytes_sent(prepared, params))
    evaluation = evaluation.model_copy(update={"cost": cost, "warnings": warnings_of(evaluation)})
    evaluation.keep(config, people_of(ours, found))
    return evaluation


def _evaluation(
    prepared: Plan,
    privacy: PrivacyReport,
    ours: Tested,
    references: dict[str, Tested],
    fitted: Fitted,
) -> Evaluation:
    """Return the figures as a document; removes the model without adaptation from `references`."""
    config, split, protocol = prepared.task.settings, prepared.task.split, prepared.task.protocol
    few = references.pop(_UNADAPTED, None)
    with_recall = protocol.name != "halves"
    mine, theirs = ours.figures, {name: one.figures for name, one in references.items()}
    report = ours.report(with_recall=with_recall)
    values = report.as_json()
    values["new_only"]["differences"] = {
        name: differences(mine.new_only, one.new_only) for name, one in theirs.items()
    }
    if fitted.left_out:
        values["references_left_out"] = dict(fitted.left_out)
    if fitted.surprise is not None:
        values["by_popularity"] = _parts(ours, references, fitted.surprise)
    return Evaluation.model_validate(
        {
            "recipe": config.recipe,
            "data": config.data,
            "data_name": prepared.task.whole.name or config.data,
            "seed": config.seed,
            "users": {
                "train": len(split.train),
                "validation": len(split.validation),
                "test": report.tested,
                "skipped": report.skipped,
            },
            "protocol": protocol.name,
            "candidates": protocol.candidates,
            **values,
            "differences": {n: differences(mine.hits, one.hits) for n, one in theirs.items()},
            "by_items": _groups(ours, references),
            "few_items": _few_items(
                ours.of(ours.items < FEW_ITEMS).report(), None if few is None else few.report()
            ),
            "references": {
                name: _figures(one.report(with_recall=with_recall))
                for name, one in references.items()
            },
            "privacy": privacy.as_json(),
        },
        strict=False,
    )


def _figures(report: EvalReport) -> Figures:
    return Figures.model_validate(report.as_json(), strict=False)


def _few_items(adapted: EvalReport, unadapted: EvalReport | None) -> FewItems:
    return FewItems(
        fewer_than=FEW_ITEMS,
        people=adapted.tested,
        hits=_known(adapted.hits),
        interval=adapted.interval,
        without_adaptation=None if unadapted is None else _known(unadapted.hits),
        interval_without={} if unadapted is None else unadapted.interval,
    )


def _groups(ours: Tested, references: Mapping[str, Tested]) -> list[Group]:
    return [
        Group(
            least=int(ours.items[who].min()),
            most=int(ours.items[who].max()),
            people=int(who.sum()),
            hits=_known(means(ours.figures.hits[who])),
            interval=intervals(ours.figures.hits[who]),
            references={n: _known(means(one.figures.hits[who])) for n, one in references.items()},
        )
        for who in by_items(ours.items)
    ]


def _parts(ours: Tested, references: Mapping[str, Tested], surprise: F64) -> list[Part]:
    sizes = np.bincount(parts_of(surprise), minlength=len(PARTS))
    return [
        Part(
            part=name,
            items=int(size),
            people=int((~np.isnan(getattr(ours.figures, name)[:, 0])).sum()),
            hits=_known(means(getattr(ours.figures, name))),
            interval=intervals(getattr(ours.figures, name)),
            references={
                n: _known(means(getattr(one.figures, name))) for n, one in references.items()
            },
        )
        for name, size in zip(PARTS, sizes, strict=True)
    ]


def _known(figures: Mapping[int, float]) -> dict[int, float | None]:
    return {k: None if math.isnan(value) else value for k, value in figures.items()}


_OWN, _POPULAR = "own-items", "popularity"
_RULES = {
    _OWN: "'own-items' (a person's own items first, then popular ones)",
    _POPULAR: "'popularity' (the same list for everybody)",
}


def warnings_of(evaluation: Evaluation) -> list[str]:
    """Return warnings for a run with noise that is not clearly better than a simple rule.

    There are two rules. `own-items` ranks a person's own items first, and is compared on all items.
    `popularity` ranks by popularity, and is compared on the items that are new to a person. If no
    own items are tested, both rules give the same figures, and one sentence is enough. The advice
    to use more people or more epsilon is given only if the run is clearly worse: if the interval of
    the difference contains 0, there may just be too few test people. Rules that were not tested are
    named.
    """
    references, new = evaluation.references, evaluation.new_only
    if not evaluation.privacy.has_noise or new is None:
        return []
    own = evaluation.differences.get(_OWN, {}).get(_K)
    popular = new.differences.get(_POPULAR, {}).get(_K)
    lines = []
    if own and own.low <= 0 and not (popular and _are_same(references)):
        hits = evaluation.hits[_K], references[_OWN].hits[_K]
        lines.append(_sentence("On all items", _OWN, hits, own))
    by_popularity = references[_POPULAR].new_only if popular else None
    if popular and popular.low <= 0 and by_popularity is not None:
        hits = new.hits[_K] or 0.0, by_popularity.hits[_K] or 0.0
        lines.append(_sentence("On items that are new to a person", _POPULAR, hits, popular))
    if any(by and by.high < 0 for by in (own, popular)):
        lines.append(
            f"{ADVICE}: twice the people about as much as twice the epsilon."
            f" 'privrec frontier --data {evaluation.data}' shows Hits@{_K} by epsilon."
        )
    if missing := [name for name in _RULES if name not in references]:
        lines.append(
            "It was not checked whether this run with noise is better than"
            f" {' and '.join(_RULES[name] for name in missing)}: test it with these references."
        )
    return lines


def _are_same(references: Mapping[str, Figures]) -> bool:
    """Return whether both rules have the same Hits@k, because no own item is tested."""
    return references[_OWN].hits == references[_POPULAR].hits


def _sentence(where: str, rule: str, hits: tuple[float, float], by: Difference) -> str:
    is_worse = by.high < 0
    how = "worse than" if is_worse else "not clearly better than"
    why = "" if is_worse else " There are too few tested people to tell."
    return (
        f"{where} this run is {how} {_RULES[rule]}: Hits@{_K} {hits[0]:.3f} against"
        f" {hits[1]:.3f}, a difference of {signed(by.by)} (95 %: {signed(by.low)} to"
        f" {signed(by.high)}).{why}"
    )


def tested_by(prepared: Plan, name: str | None, candidates: str | None) -> Plan:
    """Return the plan of the run with another evaluation protocol, or with its own by default.

    The training is over, so a protocol is allowed only if its test lines cannot have been training
    data of the run.

    Raises:
        SettingsError: Test lines may be training data, or the data lacks what the protocol needs.
    """
    own = prepared.task.protocol
    asked, default = resolve(name or own.name, None, prepared.task.whole)
    if asked == own.name:
        _, among = resolve(own.name, candidates or own.candidates, prepared.task.whole)
        other = replace(own, candidates=among)
        return replace(prepared, task=replace(prepared.task, protocol=other))
    if own.name != "halves":
        raise SettingsError(
            f"`protocol` must be {own.name!r} for a run that was trained under it, because"
            f" everybody trained, perhaps on lines that others would test; got {asked!r}"
        )
    _, among = resolve(asked, candidates or default, prepared.task.whole)
    # The training is over, so no lines are held back for validation.
    protocol = Protocol(
        name=asked, candidates=among, seed=prepared.task.settings.seed, validation_share=0.0
    )
    split = prepared.task.split
    if asked == "files":
        # No run trains on lines of the test file, so everybody may be tested on them.
        split = replace(split, test=np.arange(prepared.task.whole.n_clients))
    return replace(prepared, task=replace(prepared.task, protocol=protocol, split=split))


def ending_of(prepared: Plan, tested: Plan) -> str:
    """Return the end of the evaluation's file names, "" for the run's own protocol."""
    own, other = prepared.task.protocol, tested.task.protocol
    if (own.name, own.candidates) == (other.name, other.candidates):
        return ""
    _, usual = resolve(other.name, None, prepared.task.whole)
    among = "" if other.candidates == usual else f"-{other.candidates}"
    return f"-{other.name}{among}"


def nobody_to_test(prepared: Plan) -> str:
    """Return a message with a remedy if there are no test people, else ""."""
    if len(prepared.task.split.test):
        return ""
    config, people = prepared.task.settings, prepared.task.whole.n_clients
    who = "the 1 person" if people == 1 else f"any of the {people:,} people"
    return (
        f"nobody can be tested: the seed {config.seed} did not draw {who} to be a test person"
        f" (test_share {config.test_share:g}); train with another --seed, a larger test_share or"
        " more people"
    )


_OURS, _UNADAPTED = "ours", "unadapted"
"""Names of the run's model with and without adaptation; no reference has these names."""


def _fitted(prepared: Plan, asked: Asked, on_progress: OnProgress | None) -> Fitted:
    people = prepared.task.split.fitted
    advance = counting(on_progress, "people read for references", len(people))
    return fit_references(
        prepared.task.federation,
        people,
        asked.references,
        memory_gb=asked.memory_gb,
        on_progress=advance,
        on_fit=lambda name, done, total: report_progress(
            on_progress, f"solving the reference {name}", done, total
        ),
    )


def _measure(
    prepared: Plan,
    view: View,
    people: IntArray,
    scorers: Mapping[str, Scorer],
    surprise: F64 | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Tested]:
    return measure(
        view,
        people,
        scorers,
        n_items=prepared.task.whole.n_items,
        candidates=prepared.task.protocol.candidates,
        few_only=[_UNADAPTED],
        fewer_than=FEW_ITEMS,
        surprise=surprise,
        on_progress=counting(on_progress, "people tested", len(people)),
    )


def counting(on_progress: OnProgress | None, what: str, total: int) -> Callable[[int], None]:
    """Return a callback whose argument is the number of further people done."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report_progress(on_progress, what, done, total)

    return advance


def bytes_sent(prepared: Plan, params: Params) -> int:
    """Return the bytes of the largest message of a person of median size; 0 if no messages.

    The message is her contribution to a round with these parameters, without the masks of secure
    summation.
    """
    sizes = [0]
    for stage in prepared.stages():
        if not isinstance(stage, Phase) or not len(stage.population):
            continue
        state = stage.start(params if stage.first else None)
        person = prepared.task.federation.take(
            usual_person(prepared.task.federation, stage.population)
        )
        told = {name: np.asarray(leaf) for name, leaf in stage.tell(state).items()}
        sizes.append(len(to_bytes(stage.device.contribute(told, person, stage.first))))
    return max(sizes)


def validate(prepared: Plan, params: Params, most: int = VALIDATED) -> dict[str, Any]:
    """Return Hits@k for the first `most` validation people, as values for the line of a round.

    `validation` has the figures by k. `validation_interval` has the ends of their 95 % intervals.
    """
    view = prepared.task.protocol.validating(prepared.task.whole)
    scorers = {_OURS: prepared.ranker(params)}
    people = prepared.task.split.validation[:most]
    found = _measure(prepared, view, people, scorers)
    report = found[_OURS].report().as_json()
    hits, ends = report["hits"], report.get("interval", {})
    return {
        "validation": {k: None if hit is None else round(hit, 5) for k, hit in hits.items()},
        "validation_interval": {k: [round(end, 5) for end in both] for k, both in ends.items()},
    }


def report_progress(on_progress: OnProgress | None, what: str, done: int, total: int) -> None:
    """Call `on_progress` if it is not None."""
    if on_progress is not None:
        on_progress(what, done, total)


_OF_REFERENCE = "hits of "
_NEAR = 1e-5
"""The allowed error of means when figures are stored as 32-bit floats."""


def people_of(tested: Tested, references: Mapping[str, Tested]) -> People:
    """Return the figures of each person, for the run and for the references."""
    return People(
        ids=tested.ids,
        hits=tested.figures.hits,
        new_only=tested.figures.new_only,
        digest=tested.digest,
        references={name: one.figures.hits for name, one in references.items()},
    )


def tested_path(evaluation: Path) -> Path:
    """Return the path of the figures of each person, beside an `evaluation….json`."""
    ending = evaluation.stem.removeprefix("evaluation")
    return evaluation.with_name(f"tested{ending}.safetensors")


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Write `evaluation….json` and, beside it, the figures of each person as 32-bit floats."""
    if (people := evaluation.people) is not None:
        arrays: dict[str, npt.NDArray[Any]] = {
            "ids": people.ids,
            "hits": people.hits.astype(np.float32),
            "new_only": people.new_only.astype(np.float32),
        }
        for name, hits in people.references.items():
            arrays[f"{_OF_REFERENCE}{name}"] = hits.astype(np.float32)
        records.write_arrays(tested_path(path), arrays, {"digest": people.digest})
    records.write_whole(path, evaluation.text())


def read_people(evaluation: Path, hits: Mapping[int, float]) -> People | None:
    """Return the figures of each person; None if the file is missing or incomplete.

    `hits` are the Hits@k in the `evaluation….json`. If they are not the means of the figures, the
    figures belong to another evaluation, and an error is raised.
    """
    path = tested_path(evaluation)
    if not path.is_file():
        return None
    arrays = records.read_arrays(path)
    if not arrays.keys() >= {"ids", "hits", "new_only"}:
        return None
    figures = {name: one.astype(np.float64) for name, one in arrays.items() if name != "ids"}
    shape, mean = (*arrays["ids"].shape, len(KS)), [hits[k] for k in KS]
    if {one.shape for one in figures.values()} != {shape} or not np.allclose(
        figures["hits"].mean(axis=0), mean, atol=_NEAR
    ):
        raise RunFolderError(f"{path} is not of {evaluation.name}: evaluate again")
    return People(
        ids=arrays["ids"],
        hits=figures["hits"],
        new_only=figures["new_only"],
        digest=str(records.read_about(path).get("digest", "")),
        references={
            name.removeprefix(_OF_REFERENCE): one
            for name, one in figures.items()
            if name.startswith(_OF_REFERENCE)
        },
    )
