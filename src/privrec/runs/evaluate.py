"""Figures of a model on the people who are tested, or on those who validate.

The figures of each person who was tested, so that two evaluations can be paired over people.

They are computed from raw data and lie in `simulation/`. A person is known by her number, which is
a hash of her id.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from privrec.algorithms.recipe import PreparedRun
from privrec.core.contribution import to_bytes
from privrec.core.phase import Phase
from privrec.core.scorer import Scorer
from privrec.data.text import short
from privrec.errors import DataError, RunFolderError, SettingsError
from privrec.evaluation.intervals import Differences, Interval, People, differences, intervals
from privrec.evaluation.metrics import KS, by_items, means
from privrec.evaluation.protocols import View
from privrec.evaluation.ranking import EvalReport, Tested, ends_json, measure, text_keys
from privrec.evaluation.references import MEMORY_GB, Fitted, fit_references
from privrec.privacy.statement import PrivacyReport
from privrec.runs import folder as records
from privrec.runs.figures import (
    hits_table,
    html_table,
    paragraph,
    text_table,
    title_of,
    warnings_of,
)
from privrec.runs.recommend import evaluation_frame
from privrec.seeds import client_words
from privrec.settings import RunSettings
from privrec.simulate.cost import usual_person
from privrec.types import F64, IntArray, OnProgress, Params

FEW_ITEMS = 20
"""The paper calls people with fewer items inactive."""
VALIDATED = 5_000
"""How many validation people a round's figures are of, the first ones: a look every few rounds must
stay cheap where there are hundreds of thousands. Of 5,000, a share of 0.2 has a standard error of
0.006."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """People who have from `least` to `most` items on their device; figures by k."""

    least: int
    most: int
    people: int
    hits: dict[int, float]
    interval: dict[int, Interval]
    references: Mapping[str, dict[int, float]]

    def as_json(self) -> dict[str, Any]:
        """Return the group as `evaluation.json` has it."""
        references = {name: text_keys(hits) for name, hits in self.references.items()}
        return {
            "from": self.least,
            "to": self.most,
            "people": self.people,
            "hits": text_keys(self.hits),
            "interval": ends_json(self.interval),
            "references": references,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The final report: figures on the test people, and the reference rows of the same run.

    `few` is for test people with few items on their device, `few_unadapted` for the same people
    without adaptation. `bytes_sent` is what one person of usual size sends in one round.
    `sampled_of` is how many test people there are, where only some were drawn to be tested.
    `left_out` says why references are not there. `differences` and `new_differences` (over new
    items alone) are ours minus each reference's, paired over people. `groups` are people by the
    number of items on their device. `tested` has each person's figures, `tested_references` those
    of the references. `scorer` tells the code of a recommender of one's own from another's.
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
    left_out: Mapping[str, str] = field(default_factory=dict)
    sampled_of: int | None = None
    data_name: str = ""
    differences: Differences = field(default_factory=dict)
    new_differences: Differences = field(default_factory=dict)
    groups: Sequence[Group] = ()
    tested: Tested | None = field(default=None, repr=False, compare=False)
    scorer: str = ""
    tested_references: Mapping[str, Tested] = field(default_factory=dict, repr=False, compare=False)

    @property
    def hits(self) -> dict[int, float]:
        """Hits@k by k."""
        return self.report.hits

    def frame(self) -> pl.DataFrame:
        """Return the figures as a frame: a row for each recommender and k."""
        return evaluation_frame(self.as_json())

    def __repr__(self) -> str:
        found = self.as_json()
        warnings = "".join(f"\n{short(said, 150)}" for said in found["warnings"][:1])
        return f"Evaluation: {title_of(found)}\n{text_table(*hits_table(found))}{warnings}"

    def _repr_html_(self) -> str:
        found = self.as_json()
        table = html_table(*hits_table(found), title_of(found))
        return table + "".join(map(paragraph, [*found["warnings"], found["privacy"]["statement"]]))

    @property
    def ndcg(self) -> dict[int, float]:
        """nDCG@k by k, of one like per list."""
        return self.report.ndcg

    @property
    def interval(self) -> dict[int, Interval]:
        """The 95 % interval of Hits@k over people, by k."""
        return self.report.interval

    def as_json(self) -> dict[str, Any]:
        """Return the content of `evaluation.json`."""
        config, report = self.config, self.report
        figures = report.as_json()
        few, bare = self.few.as_json(), self.few_unadapted and self.few_unadapted.as_json()
        figures["new_only"] |= {"differences": _differences_json(self.new_differences)}
        drawn = {"people": report.tested + report.skipped, "of": self.sampled_of}
        found = {
            "recipe": config.recipe,
            "data": config.data,
            "data_name": self.data_name or config.data,
            "seed": config.seed,
            **({"scorer": self.scorer} if self.scorer else {}),
            "users": {
                "train": self.train,
                "validation": self.validation,
                "test": report.tested,
                "skipped": report.skipped,
            },
            **({} if self.sampled_of is None else {"sampled": drawn}),
            "protocol": self.protocol,
            "candidates": self.candidates,
            **figures,
            "differences": _differences_json(self.differences),
            "by_items": [group.as_json() for group in self.groups],
            "few_items": {
                "fewer_than": FEW_ITEMS,
                "people": self.few.tested,
                "hits": few["hits"],
                "interval": few.get("interval", {}),
                "without_adaptation": bare and bare["hits"],
                "interval_without": (bare or {}).get("interval", {}),
            },
            "references": {name: figures.as_json() for name, figures in self.references.items()},
            **({"references_left_out": dict(self.left_out)} if self.left_out else {}),
            "privacy": self.privacy.as_json(),
            "cost": {"bytes_sent": self.bytes_sent},
        }
        return {**found, "warnings": warnings_of(found)}


def _differences_json(found: Differences) -> dict[str, dict[str, dict[str, float]]]:
    return {
        name: {str(k): one.as_json() for k, one in by_k.items()} for name, by_k in found.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an evaluation is to test, beside the run itself.

    `references` are names; None means all that fit into `memory_gb` together. `people` is how many
    of the test people are drawn; None means all.
    """

    references: Sequence[str] | None = None
    people: int | None = None
    memory_gb: float = MEMORY_GB

    def __post_init__(self) -> None:
        if isinstance(self.references, str):
            raise SettingsError(f"`references` must be a list of names; got {self.references!r}")
        if self.people is not None and self.people < 1:
            raise SettingsError(f"`people` must be >= 1; got {self.people}")
        if not self.memory_gb > 0:
            raise SettingsError(f"`memory_gb` must be > 0; got {self.memory_gb:g}")


def evaluate_run(
    prepared: PreparedRun,
    params: Params,
    privacy: PrivacyReport,
    *,
    asked: Asked | None = None,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Return the figures on the test people, for the run and for the reference recommenders."""
    asked = asked or Asked()
    config, split, protocol = prepared.config, prepared.split, prepared.protocol
    if nobody := nobody_to_test(prepared):
        raise DataError(nobody)
    people = split.test if asked.people is None else _drawn(prepared, asked.people)
    fitted = _fitted(prepared, asked, on_progress)
    scorers: dict[str, Scorer] = {_OURS: prepared.rankers.adapted(params), **fitted.scorers}
    unadapted = prepared.rankers.unadapted
    if unadapted is not None:
        scorers[_UNADAPTED] = unadapted(params)
    view = protocol.testing(prepared.whole)
    measured = _measure(prepared, view, people, scorers, fitted.surprise, on_progress)
    found = {name: one.in_order() for name, one in measured.items()}
    ours = found.pop(_OURS)
    if not len(ours.items):
        raise DataError(
            f"none of the {len(people)} test people has two likes, one of them to be tested"
        )
    few = found.pop(_UNADAPTED, None)
    with_recall = protocol.name != "halves"
    mine, theirs = ours.figures, {name: one.figures for name, one in found.items()}
    return Evaluation(
        config=config,
        protocol=protocol.name,
        candidates=protocol.candidates,
        train=len(split.train),
        validation=len(split.validation),
        report=ours.report(with_recall=with_recall),
        few=ours.of(ours.items < FEW_ITEMS).report(with_recall=with_recall),
        few_unadapted=None if few is None else few.report(with_recall=with_recall),
        references={n: one.report(with_recall=with_recall) for n, one in found.items()},
        privacy=privacy,
        bytes_sent=bytes_sent(prepared, params),
        left_out=fitted.left_out,
        sampled_of=None if asked.people is None else len(split.test),
        data_name=prepared.whole.name,
        differences={n: differences(mine.hits, one.hits) for n, one in theirs.items()},
        new_differences={n: differences(mine.new_only, one.new_only) for n, one in theirs.items()},
        groups=_groups(ours, found),
        tested=ours,
        tested_references=found,
    )


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


def _groups(ours: Tested, references: Mapping[str, Tested]) -> list[Group]:
    """Return the figures of people by the number of items on their device."""
    return [
        Group(
            least=int(ours.items[who].min()),
            most=int(ours.items[who].max()),
            people=int(who.sum()),
            hits=means(ours.figures.hits[who]),
            interval=intervals(ours.figures.hits[who]),
            references={name: means(one.figures.hits[who]) for name, one in references.items()},
        )
        for who in by_items(ours.items)
    ]


_OURS, _UNADAPTED = "ours", "unadapted"
"""No reference has one of these names."""


def _drawn(prepared: PreparedRun, count: int) -> IntArray:
    """Return `count` of the test people, or all if there are fewer.

    A hash of (seed, her id) draws a person: the same people are drawn again, and a larger sample
    has all of a smaller one.
    """
    test = prepared.split.test
    ids = prepared.whole.ids(test)
    words = client_words(prepared.config.seed, 0, "sample test", ids, np.zeros(1, np.int64))
    return np.sort(test[np.argsort(words, kind="stable")[:count]])


def _fitted(prepared: PreparedRun, asked: Asked, on_progress: OnProgress | None) -> Fitted:
    people = prepared.split.fitted
    advance = counting(on_progress, "people read for references", len(people))
    return fit_references(
        prepared.federation,
        people,
        asked.references,
        memory_gb=asked.memory_gb,
        on_progress=advance,
        on_fit=lambda name, done, total: report_progress(
            on_progress, f"solving the reference {name}", done, total
        ),
    )


def _measure(
    prepared: PreparedRun,
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
        n_items=prepared.whole.n_items,
        candidates=prepared.protocol.candidates,
        few_only=[_UNADAPTED],
        fewer_than=FEW_ITEMS,
        surprise=surprise,
        on_progress=counting(on_progress, "people tested", len(people)),
    )


def counting(on_progress: OnProgress | None, what: str, total: int) -> Callable[[int], None]:
    """Return what is told how many more are done."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report_progress(on_progress, what, done, total)

    return advance


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


def validate(prepared: PreparedRun, params: Params, most: int = VALIDATED) -> dict[str, Any]:
    """Return Hits@k on the first `most` validation people, as a line about a round has it.

    `validation` has the figures by k, `validation_interval` their 95 % ends over people.
    """
    view = prepared.protocol.validating(prepared.whole)
    scorers = {_OURS: prepared.rankers.adapted(params)}
    people = prepared.split.validation[:most]
    found = _measure(prepared, view, people, scorers)
    report = found[_OURS].report().as_json()
    hits, ends = report["hits"], report.get("interval", {})
    return {
        "validation": {k: None if hit is None else round(hit, 5) for k, hit in hits.items()},
        "validation_interval": {k: [round(end, 5) for end in both] for k, both in ends.items()},
    }


def report_progress(on_progress: OnProgress | None, what: str, done: int, total: int) -> None:
    """Say how far something is, to whoever wants to know."""
    if on_progress is not None:
        on_progress(what, done, total)


_OF_REFERENCE = "hits of "
_NEAR = 1e-5
"""How far the means of figures in 32 bits may be off."""


def people_of(tested: Tested, references: Mapping[str, Tested]) -> People:
    """Return the figures of each person.

    `references` are what the references reached for the same people.
    """
    return People(
        ids=tested.ids,
        hits=tested.figures.hits,
        new_only=tested.figures.new_only,
        digest=tested.digest,
        references={name: one.figures.hits for name, one in references.items()},
    )


def tested_path(evaluation: Path) -> Path:
    """Return where the figures of each person are, beside an `evaluation….json`."""
    ending = evaluation.stem.removeprefix("evaluation")
    return evaluation.with_name(f"tested{ending}.safetensors")


def write_people(evaluation: Path, people: People) -> None:
    """Write the figures of each person beside an `evaluation….json`, in 32 bits."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "ids": people.ids,
        "hits": people.hits.astype(np.float32),
        "new_only": people.new_only.astype(np.float32),
    }
    for name, hits in people.references.items():
        arrays[f"{_OF_REFERENCE}{name}"] = hits.astype(np.float32)
    records.write_arrays(tested_path(evaluation), arrays, {"digest": people.digest})


def read_people(evaluation: Path, hits: Mapping[str, float]) -> People | None:
    """Return the figures of each person; None if there is no whole file of them.

    `hits` are the Hits@k in the `evaluation….json`. They must be the means of the figures, which
    belong to another evaluation otherwise.
    """
    path = tested_path(evaluation)
    if not path.is_file():
        return None
    arrays = records.read_arrays(path)
    if not arrays.keys() >= {"ids", "hits", "new_only"}:
        return None
    figures = {name: one.astype(np.float64) for name, one in arrays.items() if name != "ids"}
    shape, mean = (*arrays["ids"].shape, len(KS)), [hits[str(k)] for k in KS]
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
