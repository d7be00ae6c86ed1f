"""Runs, and recommenders of one's own, side by side: one line for each, and which is better."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from privrec.data.text import brief, data_title, short
from privrec.errors import SettingsError, got
from privrec.evaluation.intervals import (
    Difference,
    OfRuns,
    People,
    apart,
    distinct,
    mean_above,
    mean_difference,
    mean_hits,
    mean_of,
)
from privrec.evaluation.metrics import KS
from privrec.privacy.paper import PRINTED_HITS
from privrec.privacy.statement import epsilon_text
from privrec.runs import folder as records
from privrec.runs.documents import Attacked, Cost, Evaluation, Figures, Privacy, RoundFigures
from privrec.runs.evaluate import read_people
from privrec.runs.figures import (
    arm_text,
    around,
    at_least,
    digits,
    figure,
    html_table,
    is_papers_protocol,
    paragraph,
    protocol_words,
    signed,
    text_table,
)
from privrec.runs.run import Run, attacked_in

Comparable = str | PathLike[str] | Run | Evaluation
"""What can be a row: a folder, an open run or an evaluation."""
_K = 20
_SHOWN = (10, 20)
"""The k of a table in text; all of them would make it too wide."""


Evaluations = Mapping[str, Evaluation]
"""By the name of the run."""
Settings = Mapping[str, Mapping[str, Any]]
"""The settings of each run, by its name."""


PeopleOfRuns = Mapping[str, People | None]
"""The figures of each person, by the name of the run."""


PAPER_NAMES = {
    "privrec": "PrivRec",
    "privrec-paper": "PrivRec",
    "privrec-cen": "PrivRec-CEN",
    "fcf": "FCF",
    "fedgnn": "FedGNN",
    "nn-self": "NN-SELF",
    "fofl-self": "FOFL-SELF",
    "ncf": "NCF, centralised",
}
"""Our recipe -> the name of the same system in the paper's tables."""


_USUAL = "random"
"""The halving of the paper: a person's data is halved at random."""


def columns(ks: Sequence[int] = KS, *, attacked: bool = False) -> tuple[str, ...]:
    """Return the names of the table's columns, with Hits at these k.

    `attacked` adds what attacks and audits found.
    """
    found = ("attacked",) if attacked else ()
    beside = (f"paper @{k}" for k in _SHOWN)
    return (
        "",
        *(f"@{k}" for k in ks),
        "± at 20",
        *beside,
        "seconds",
        "bytes sent",
        *found,
        "privacy",
    )


def any_attacked(evaluations: Evaluations) -> bool:
    """Return whether attacks or audits of any of the runs are known."""
    return any(evaluation.attacked for evaluation in evaluations.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table: a run, or the mean of runs that differ in their seed alone.

    `printed` has the paper's figures of the same system. `bytes_sent` and `seconds` are None where
    they are not known, `privacy` is what the runs promise in a few words, `attacked` what attacks
    and audits found. `interval` has the ends over people by k; `by_seed` are the figures of each
    seed at 20. Both are empty if not known.
    """

    name: str
    kind: str
    hits: Mapping[int, float | None]
    printed: Mapping[int, float]
    seconds: float | None = None
    bytes_sent: int | None = None
    privacy: str = ""
    attacked: str = ""
    interval: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    by_seed: Mapping[int, float | None] = field(default_factory=dict)

    def cells(self, ks: Sequence[int] = KS, *, attacked: bool = False) -> tuple[str, ...]:
        """Return the line as text, one cell for each of `columns` with the same arguments."""
        return (
            self.name,
            *(figure(self.hits[k]) for k in ks),
            arm_text(self.hits[_K], self.interval.get(_K)),
            *(figure(self.printed[k]) if self.printed else "" for k in _SHOWN),
            "" if self.seconds is None else f"{self.seconds:.0f}",
            "" if self.bytes_sent is None else f"{self.bytes_sent:,}",
            *((self.attacked,) if attacked else ()),
            self.privacy,
        )


def comparison(
    evaluations: Evaluations, settings: Settings, people: PeopleOfRuns | None = None
) -> dict[str, list[Line]]:
    """Return for each data set and protocol the runs, the references and the paper's other systems.

    `settings` has the settings of each run, `people` the figures of each person where they are
    known. Runs that differ in their seed alone are one line. References depend on the split, so
    they are the mean over the seeds among the runs. One that was also trained as a recipe is not
    shown twice.
    """
    known = people or {}
    tables: dict[str, list[Line]] = {}
    for title, groups in groups_of(evaluations, settings).items():
        names = [name for group in groups for name in group]
        runs = [evaluations[name] for name in names]
        lines = [_line(group, evaluations, known) for group in groups]
        shown = {run.recipe for run in runs}
        for reference in dict.fromkeys(one for run in runs for one in run.references):
            if reference not in shown:
                lines += _reference_lines(reference, {n: evaluations[n] for n in names}, known)
        tables[title] = lines + _others(runs)
    return tables


def _reference_lines(name: str, runs: Evaluations, people: PeopleOfRuns) -> list[Line]:
    """Return a reference's line (mean over seeds), or no line if a seed lacks it.

    Runs of the same seed may have tested other people or items. Then there is a line for each
    figure, which says beside which run it was found.
    """
    found: dict[tuple[int, tuple[float, ...]], str] = {}
    for run, evaluation in runs.items():
        if name in evaluation.references:
            hits = evaluation.references[name].hits
            key = evaluation.seed, tuple(round(hits[k], 9) for k in KS)
            if people.get(found.setdefault(key, run)) is None and people.get(run) is not None:
                found[key] = run
    seeds = {seed for seed, _ in found}
    if seeds != {evaluation.seed for evaluation in runs.values()}:
        return []
    if len(found) > len(seeds):
        return [
            _reference_line(name, f"beside {run}", {run: runs[run]}, people)
            for run in found.values()
        ]
    chosen = {run: runs[run] for run in found.values()}
    return [_reference_line(name, _seeds(len(found), min(seeds)), chosen, people)]


def _reference_line(name: str, where: str, runs: Evaluations, people: PeopleOfRuns) -> Line:
    found = [run.references[name] for run in runs.values()]
    return Line(
        name=f"{name} ({where})",
        kind="reference",
        hits=_mean_hits(found),
        printed={},
        privacy="none",
        interval=mean_interval(found, [people.get(run) for run in runs], name),
        by_seed={run.seed: run.references[name].hits[_K] for run in runs.values()},
    )


def table_title(evaluation: Evaluation, settings: Mapping[str, Any]) -> str:
    """Return the title of the table that a run is in: its data, and how people were tested."""
    halving = settings.get("halving", _USUAL)
    is_halved = evaluation.protocol == "halves"
    how = f", halved by {halving}" if is_halved and halving != _USUAL else ""
    data = data_title(evaluation.data_name or evaluation.data, evaluation.data)
    return f"{data}{protocol_words(evaluation.protocol, evaluation.candidates)}{how}"


def groups_of(evaluations: Evaluations, settings: Settings) -> dict[str, list[list[str]]]:
    """Return for each data set and protocol the runs, those together that differ in their seed."""
    titles = {name: table_title(e, settings.get(name, {})) for name, e in evaluations.items()}
    return {
        title: _groups(
            [name for name in evaluations if titles[name] == title], evaluations, settings
        )
        for title in dict.fromkeys(titles.values())
    }


def _groups(names: Sequence[str], evaluations: Evaluations, settings: Settings) -> list[list[str]]:
    """Return the runs, those together that differ in their seed alone.

    Recommenders of one's own must have the same code too, not only the same name.
    """

    def asked(name: str) -> dict[str, Any]:
        made = settings.get(name, {"run": name})
        return {**made, "seed": None, "scorer": evaluations[name].scorer}

    groups: list[list[str]] = []
    for name in names:
        for group in groups:
            known = {evaluations[one].seed for one in group}
            if asked(name) == asked(group[0]) and evaluations[name].seed not in known:
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _line(group: Sequence[str], evaluations: Evaluations, people: PeopleOfRuns) -> Line:
    runs = [evaluations[name] for name in group]
    first = runs[0]
    printed = PRINTED_HITS.get(first.data, {}).get(PAPER_NAMES.get(first.recipe, ""), {})
    if not is_papers_protocol(first.protocol, first.candidates):
        printed = {}
    seconds = [run.cost.seconds for run in runs if run.cost.seconds is not None]
    sent = [run.cost.bytes_sent for run in runs if run.cost.bytes_sent is not None]
    return Line(
        name=group[0] if len(group) == 1 else f"{first.recipe} ({_seeds(len(group), first.seed)})",
        kind="ours",
        hits=_mean_hits(runs),
        printed={int(k): value for k, value in printed.items()},
        seconds=statistics.fmean(seconds) if len(seconds) == len(runs) else None,
        bytes_sent=round(statistics.fmean(sent)) if len(sent) == len(runs) else None,
        privacy=weakest([run.privacy for run in runs]),
        attacked=attacked_cell([run.attacked for run in runs if run.attacked]),
        interval=mean_interval(runs, [people.get(name) for name in group]),
        by_seed={run.seed: run.hits[_K] for run in runs},
    )


def attacked_cell(summaries: Sequence[Attacked]) -> str:
    """Return what attacks and audits found as a cell of a table: the strongest of each kind."""
    areas = [one.auc for one in summaries if one.auc is not None]
    bounds = [one.epsilon_lower for one in summaries if one.epsilon_lower is not None]
    parts = [f"AUC {max(areas):.2f}"] if areas else []
    if bounds:
        broken = any(one.holds is False for one in summaries)
        parts.append(f"audit ε ≥ {at_least(max(bounds))}{', does NOT hold' if broken else ''}")
    return ", ".join(parts)


def mean_interval(
    runs: Sequence[Figures], people: OfRuns, reference: str | None = None
) -> dict[int, tuple[float, float]]:
    """Return the ends of the mean over runs, or over their references, by k; empty if not known."""
    if not all(run.interval for run in runs):
        return {}
    means = mean_with_ends(runs, people, reference)
    return {k: (one.low, one.high) for k, one in means.items()}


def mean_with_ends(
    runs: Sequence[Figures], people: OfRuns, reference: str | None = None
) -> dict[int, Difference]:
    """Return the mean of Hits@k over runs that have intervals, with its ends, by k.

    The same people may be in several of them. `people` has the figures of each, or of `reference`
    for each; where they are not known, the mean is taken to be no surer than one run.
    """
    known = mean_hits(people, reference) if len(runs) > 1 else None
    if known is not None:
        return dict(known)
    return {k: mean_of([_with_ends(run, k) for run in runs]) for k in KS}


def _with_ends(run: Figures, k: int) -> Difference:
    low, high = run.interval[k]
    return Difference(by=run.hits[k], low=low, high=high)


def _others(runs: Sequence[Evaluation]) -> list[Line]:
    """Return the paper's systems that are not beside a run of ours."""
    first = runs[0]
    if not is_papers_protocol(first.protocol, first.candidates):
        return []
    beside = {PAPER_NAMES.get(run.recipe) for run in runs}
    return [
        Line(
            name=f"{name} (paper)",
            kind="paper",
            hits={int(k): value for k, value in hits.items()},
            printed={},
        )
        for name, hits in PRINTED_HITS.get(first.data, {}).items()
        if name not in beside
    ]


def _mean_hits(runs: Sequence[Figures]) -> dict[int, float]:
    return {k: statistics.fmean(run.hits[k] for run in runs) for k in KS}


def _seeds(count: int, first: int) -> str:
    return f"seed {first}" if count == 1 else f"{count} seeds"


def weakest(promises: Sequence[Privacy]) -> str:
    """Return what all of these runs promise: the words of the one that promises least."""
    return guarantee(min(promises, key=_strength))


def _strength(privacy: Privacy) -> tuple[bool, bool, float]:
    epsilon, known = privacy.epsilon, privacy.epsilon_of_mechanism
    return epsilon is not None, known is not None, -(epsilon or known or 0.0)


def guarantee(privacy: Privacy) -> str:
    """Return what a run promises in a few words: none, local, or user-level with its ε and δ."""
    delta = "" if privacy.delta is None else f", δ = {privacy.delta:g}"
    if privacy.stage_two_epsilon is not None:
        return f"none; stage two alone {epsilon_text(privacy.stage_two_epsilon)}"
    if privacy.epsilon is not None:
        return f"user-level ε = {epsilon_text(privacy.epsilon)}{delta}"
    if privacy.epsilon_of_mechanism is not None:
        return f"seeded; ε of the mechanism = {epsilon_text(privacy.epsilon_of_mechanism)}{delta}"
    return "local noise: none for a person" if privacy.local_noise else "none"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One evaluation, the settings, and each person's figures."""

    evaluation: Evaluation
    settings: Mapping[str, Any]
    people: People | None = None

    __repr__ = brief


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """By how much Hits@k of a line of the table is larger than that of another one, by k.

    `members` are the rows behind the line. `paired` means that both were tested on the same items
    of the same people; `people` is how many different ones there are, under all seeds.
    """

    name: str
    members: Sequence[str]
    other: str
    by: Mapping[int, Difference]
    paired: bool
    people: int

    __repr__ = brief

    def sentence(self) -> str:
        """Return it in words, at 20."""
        found = self.by[_K]
        sure = found.low > 0 or found.high < 0
        better = "better" if found.by > 0 else "worse"
        size = (
            f"{better} by {digits(abs(found.by))}"
            if sure
            else f"no clear difference, {signed(found.by)}"
        )
        whom = (
            f"paired over {self.people:,} people" if self.paired else "not the same people or items"
        )
        return f"{self.name} against {self.other}: {size}{around(found)} at {_K} ({whom})"

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        by = {str(k): one.as_json() for k, one in self.by.items()}
        return {"hits": by, "paired": self.paired, "people": self.people}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Rows side by side: a table for each data set and protocol, and what is better than what."""

    rows: Mapping[str, Row]
    tables: Mapping[str, Sequence[Line]]
    against: Mapping[str, Sequence[Against]] = field(default_factory=dict)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """The evaluations by the name of the row."""
        return {name: row.evaluation for name, row in self.rows.items()}

    @property
    def settings(self) -> dict[str, Mapping[str, Any]]:
        """The settings by the name of the row."""
        return {name: row.settings for name, row in self.rows.items()}

    @property
    def warnings(self) -> list[str]:
        """What was warned of when the rows were evaluated, each with the row's name."""
        rows = self.evaluations.items()
        return [f"{name}: {line}" for name, one in rows for line in one.warnings]

    def as_json(self) -> dict[str, Any]:
        """Return each evaluation by the name of its row, with the differences that it begins."""
        named = [one for found in self.against.values() for one in found]
        return {
            name: {
                **row.evaluation.as_json(),
                "against": {one.other: one.as_json() for one in named if name in one.members},
            }
            for name, row in self.rows.items()
        }

    def frame(self) -> pl.DataFrame:
        """Return a row for each line: data, name, kind, hits@k with ends, seconds, privacy, …."""
        rows = [
            {
                "data": title,
                "name": line.name,
                "kind": line.kind,
                **{f"hits@{k}": value for k, value in line.hits.items()},
                **{
                    f"hits@{k} {end}": line.interval[k][n] if k in line.interval else None
                    for k in KS
                    for n, end in enumerate(("low", "high"))
                },
                **{f"paper@{k}": line.printed.get(k) for k in _SHOWN},
                "seconds": line.seconds,
                "bytes_sent": line.bytes_sent,
                "privacy": line.privacy,
            }
            for title, lines in self.tables.items()
            for line in lines
        ]
        numbers = {name: pl.Float64 for name in rows[0] if "@" in name or name == "seconds"}
        return pl.DataFrame(
            rows, schema_overrides={**numbers, "bytes_sent": pl.Int64}, infer_schema_length=None
        )

    def __str__(self) -> str:
        """Return the tables as text, and the differences as sentences."""
        parts = []
        for title, lines in self.tables.items():
            names = [short(line.name) for line in lines]
            width = max(map(len, names))
            head = "".join(f"{f'@{k}':>8}" for k in KS) + f"{'± at 20':>10}"
            parts.append(f"Hits@k on {short(title)}\n{'':{width}}{head}")
            for name, line in zip(names, lines, strict=True):
                hits = (line.hits[k] for k in KS)
                cells = "".join(f"{'-' if one is None else f'{one:.3f}':>8}" for one in hits)
                arm = arm_text(line.hits[_K], line.interval.get(_K))
                parts.append(f"{name:{width}}{cells}{arm:>10}".rstrip())
            parts += [one.sentence() for one in self.against.get(title, ())]
        return "\n".join([*parts, *(f"warning: {line}" for line in self.warnings)])

    def __repr__(self) -> str:
        lines = [line for found in self.tables.values() for line in found]
        title = f"Comparison of {len(self.rows)} runs: Hits@k"
        rows = [(line.name, *(figure(line.hits[k]) for k in _SHOWN)) for line in lines]
        return f"{title}\n{text_table(('', *(f'@{k}' for k in _SHOWN)), rows)}"

    def _repr_html_(self) -> str:
        attacked = any_attacked(self.evaluations)
        parts = []
        for title, lines in self.tables.items():
            cells = [line.cells(attacked=attacked) for line in lines]
            parts.append(html_table(columns(attacked=attacked), cells, f"Hits@k on {title}"))
            parts += [paragraph(one.sentence()) for one in self.against.get(title, ())]
        return "".join([*parts, *(paragraph(f"warning: {line}") for line in self.warnings)])


def compare(runs: Sequence[Comparable] | Mapping[str, Comparable]) -> Comparison:
    """Return runs side by side, and recommenders of your own among them.

    `runs` is a list, or a mapping with names of your own. Each is a run, its folder, a folder that
    `privrec.evaluate(…, out=…)` wrote, or an evaluation. A run without an evaluation is evaluated.
    """
    if isinstance(runs, str | bytes | PathLike) or not hasattr(runs, "__iter__"):
        raise SettingsError(f"`runs` must be a list of runs or run folders; got {got(runs)}")
    named = runs.items() if isinstance(runs, Mapping) else ((None, run) for run in runs)
    rows: dict[str, Row] = {}
    for given, run in named:
        name, row = _row(run)
        name = name if given is None else str(given)
        alike = sum(other == name or other.startswith(f"{name} (") for other in rows)
        rows[f"{name} ({alike + 1})" if alike else name] = row
    if not rows:
        raise SettingsError("`runs` must have at least one run, folder or evaluation")
    evaluations = {name: row.evaluation for name, row in rows.items()}
    settings = {name: row.settings for name, row in rows.items()}
    return Comparison(
        rows=rows,
        tables=comparison(evaluations, settings, {name: row.people for name, row in rows.items()}),
        against={
            title: _against(groups, rows)
            for title, groups in groups_of(evaluations, settings).items()
        },
    )


def _row(run: object) -> tuple[str, Row]:
    """Return a name and the row: a folder is named by its path, a run by its settings."""
    if isinstance(run, Evaluation):
        config = run.config
        settings = config.model_dump(mode="json", exclude_none=True) if config else {}
        return run.recipe, Row(evaluation=run, settings=settings, people=run.people)
    if isinstance(run, Run):
        if not run.folder.evaluation_path.is_file():
            run.evaluate()
        budget = run.config.budget.epsilon
        parts = [run.config.recipe, *([] if budget is None else [f"epsilon {budget:g}"])]
        return short(", ".join([*parts, f"seed {run.config.seed}"])), read_row(run.folder.path)
    if not isinstance(run, str | PathLike):
        raise SettingsError(f"`runs` must be runs, run folders or evaluations; got {got(run)}")
    return str(run), read_row(Path(run))


def read_row(path: Path) -> Row:
    """Return the evaluation in a run folder, or in one of a recommender of one's own."""
    folder = records.RunFolder(path=path)
    place, settings = folder.evaluation_path, None
    is_run = folder.config_path.exists() or folder.config_path.is_symlink()
    own = None if is_run else Evaluation.read(place)
    if own is not None:
        found = own
        settings = {"own": found.recipe, "data": found.data}
    else:
        found, settings = records.read_evaluation(path), records.read_run(path)[1]
        added: dict[str, object] = {
            "cost": Cost(bytes_sent=found.cost.bytes_sent, seconds=seconds_of(path))
        }
        if attacked := attacked_in(folder):
            added["attacked"] = attacked
        found = found.model_copy(update=added)
    return Row(evaluation=found, settings=settings, people=read_people(place, found.hits))


def seconds_of(place: Path) -> float | None:
    """Return the time of a run's rounds; None under secure noise without `diagnostics`."""
    figures = records.read_rounds(records.RunFolder(path=place).figures_path, RoundFigures)
    return sum(line.seconds for line in figures) if figures else None


def _against(groups: Sequence[Sequence[str]], rows: Mapping[str, Row]) -> list[Against]:
    """Return each line against the best reference of its own people, and against the first line."""
    found = []
    for group in groups:
        mine = [rows[one] for one in group]
        if (best := _best_reference(group, rows)) is not None:
            found.append(
                Against(
                    name=_name(group, rows),
                    members=group,
                    other=best,
                    by=_above(mine, best),
                    paired=True,
                    people=_count(mine),
                )
            )
        if group is not groups[0]:
            against = _of_groups(group, groups[0], rows)
            found += [against] if against is not None else []
    return found


def _above(mine: Sequence[Row], reference: str) -> dict[int, Difference]:
    """Return by how much a line is above a reference, by k."""
    known = mean_above([row.people for row in mine], reference) if len(mine) > 1 else None
    if known is not None:
        return dict(known)
    each = [row.evaluation.differences[reference] for row in mine]
    return {k: mean_of([one[k] for one in each]) for k in KS}


def _of_groups(
    ours: Sequence[str], first: Sequence[str], rows: Mapping[str, Row]
) -> Against | None:
    """Return one line against another: paired seed by seed, or else as two independent figures."""
    theirs = {rows[name].evaluation.seed: rows[name] for name in first}
    mine = {rows[name].evaluation.seed: rows[name] for name in ours}
    pairs = None
    if mine.keys() == theirs.keys():
        people = [(row.people, theirs[seed].people) for seed, row in mine.items()]
        pairs = mean_difference(*zip(*people, strict=True))
    if pairs:
        by = dict(pairs)
    elif all(row.evaluation.interval for row in (*mine.values(), *theirs.values())):
        two = [_mean(list(rows.values())) for rows in (mine, theirs)]
        by = {k: apart(two[0][k], two[1][k]) for k in KS}
    else:
        return None
    return Against(
        name=_name(ours, rows),
        members=ours,
        other=_name(first, rows),
        by=by,
        paired=bool(pairs),
        people=_count(list(mine.values())),
    )


def _mean(rows: Sequence[Row]) -> dict[int, Difference]:
    return mean_with_ends([row.evaluation for row in rows], [row.people for row in rows])


def _count(rows: Sequence[Row]) -> int:
    """Return how many different people there are; at least so many where that is not known."""
    known = distinct([row.people for row in rows])
    return max(row.evaluation.users.test for row in rows) if known is None else known


def _best_reference(group: Sequence[str], rows: Mapping[str, Row]) -> str | None:
    """Return the reference with the highest mean Hits@20; None if not all runs have one."""
    runs = [rows[name].evaluation for name in group]
    known = [(run.differences.keys() & run.references.keys()) - {run.recipe} for run in runs]
    names = sorted(set.intersection(*known))
    hits = {name: sum(run.references[name].hits[_K] for run in runs) for name in names}
    return max(hits, key=lambda name: hits[name]) if hits else None


def _name(group: Sequence[str], rows: Mapping[str, Row]) -> str:
    recipe = rows[group[0]].evaluation.recipe
    return group[0] if len(group) == 1 else f"{recipe} ({len(group)} seeds)"
