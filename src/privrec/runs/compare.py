"""A table of runs and of your own recommenders, and the differences between them."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from privrec.privacy.statement import epsilon_text
from privrec.runs import folder as records
from privrec.runs.documents import Cost, Evaluation, Figures, Privacy, RoundFigures
from privrec.runs.evaluate import read_people
from privrec.runs.figures import (
    arm_text,
    around,
    digits,
    figure,
    printed_hits,
    protocol_words,
    signed,
    text_table,
)
from privrec.runs.run import Run

Comparable = str | PathLike[str] | Run | Evaluation
"""The inputs of `compare`: a folder, an open run or an evaluation."""
_K = 20
_HITS = 2 + len(KS)
"""The number of columns in the `repr` of a comparison: name, Hits@k, half-width of the interval."""

_USUAL = "random"
"""How the paper splits each person's data into two halves."""


def columns(ks: Sequence[int] = KS) -> tuple[str, ...]:
    """Return the names of the table's columns, with Hits@k for each k in `ks`."""
    return ("", *(f"@{k}" for k in ks), "± at 20", "seconds", "bytes sent", "privacy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table: a run, or the mean of runs that differ only in their seed.

    `seconds` and `bytes_sent` are None if they are not known. `privacy` is the guarantee in a few
    words. `interval` has the ends of the 95 % interval over people by k, and `by_seed` has Hits@20
    by seed; both are empty if they are not known.
    """

    name: str
    kind: str
    hits: Mapping[int, float | None]
    seconds: float | None = None
    bytes_sent: int | None = None
    privacy: str = ""
    interval: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    by_seed: Mapping[int, float | None] = field(default_factory=dict)

    def cells(self, ks: Sequence[int] = KS) -> tuple[str, ...]:
        """Return the texts of the line, one for each of `columns`."""
        return (
            self.name,
            *(figure(self.hits[k]) for k in ks),
            arm_text(self.hits[_K], self.interval.get(_K)),
            "" if self.seconds is None else f"{self.seconds:.0f}",
            "" if self.bytes_sent is None else f"{self.bytes_sent:,}",
            self.privacy,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One evaluation, its settings, and the figures of each person."""

    name: str
    evaluation: Evaluation
    settings: Mapping[str, object]
    people: People | None = None

    __repr__ = brief


Group = Sequence[Row]
"""Rows that differ only in their seed. They make one line of the table."""


def _lines_of(groups: Sequence[Group]) -> list[Line]:
    """Return the lines of runs, of their references, and of the systems in the paper.

    A reference is a simple recommender that is tested beside each run. Its figures depend on the
    split of people, so its line is the mean over the seeds. A reference that was also trained as a
    recipe gets no second line.
    """
    rows = [row for group in groups for row in group]
    shown = {row.evaluation.recipe for row in rows}
    lines = [_line(group) for group in groups]
    for reference in dict.fromkeys(name for row in rows for name in row.evaluation.references):
        if reference not in shown:
            lines += _reference_lines(reference, rows)
    first = rows[0].evaluation
    printed = printed_hits(first.data, first.protocol, first.candidates)
    return lines + [Line(name=name, kind="paper", hits=hits) for name, hits in printed.items()]


def _reference_lines(name: str, rows: Sequence[Row]) -> list[Line]:
    """Return the line of a reference (mean over seeds), or no line if a seed lacks it.

    Runs of the same seed may have tested different people or items. Then each different result gets
    its own line, with the name of the run that it was tested beside.
    """
    beside: dict[tuple[int, tuple[float, ...]], Row] = {}
    for row in rows:
        if name in row.evaluation.references:
            hits = row.evaluation.references[name].hits
            key = row.evaluation.seed, tuple(round(hits[k], 9) for k in KS)
            if beside.setdefault(key, row).people is None and row.people is not None:
                beside[key] = row
    seeds = {seed for seed, _ in beside}
    if seeds != {row.evaluation.seed for row in rows}:
        return []
    if len(beside) > len(seeds):
        return [_reference_line(name, f"beside {row.name}", [row]) for row in beside.values()]
    count = len(seeds)
    where = f"seed {min(seeds)}" if count == 1 else f"{count} seeds"
    return [_reference_line(name, where, list(beside.values()))]


def _reference_line(name: str, where: str, rows: Group) -> Line:
    figures = [row.evaluation.references[name] for row in rows]
    return Line(
        name=f"{name} ({where})",
        kind="reference",
        hits=average_hits(figures),
        privacy="none",
        interval=mean_interval(figures, [row.people for row in rows], name),
        by_seed={row.evaluation.seed: one.hits[_K] for row, one in zip(rows, figures, strict=True)},
    )


def table_title(row: Row) -> str:
    """Return the title of the table for a run: its data, and how people were tested."""
    evaluation, halving = row.evaluation, row.settings.get("halving", _USUAL)
    is_halved = evaluation.protocol == "halves"
    how = f", halved by {halving}" if is_halved and halving != _USUAL else ""
    data = data_title(evaluation.data_name or evaluation.data, evaluation.data)
    return f"{data}{protocol_words(evaluation.protocol, evaluation.candidates)}{how}"


def _groups_of(rows: Sequence[Row]) -> dict[str, list[list[Row]]]:
    """Return the groups of rows that differ only in their seed, by data set and protocol."""
    tables: dict[str, list[list[Row]]] = {}
    for row in rows:
        groups = tables.setdefault(table_title(row), [])
        for group in groups:
            seeds = {member.evaluation.seed for member in group}
            if _without_seed(row) == _without_seed(group[0]) and row.evaluation.seed not in seeds:
                group.append(row)
                break
        else:
            groups.append([row])
    return tables


def _without_seed(row: Row) -> dict[str, object]:
    return {**row.settings, "seed": None}


def _line(group: Group) -> Line:
    runs = [row.evaluation for row in group]
    seconds = [run.cost.seconds for run in runs if run.cost.seconds is not None]
    sent = [run.cost.bytes_sent for run in runs if run.cost.bytes_sent is not None]
    return Line(
        name=_name(group),
        kind="ours",
        hits=average_hits(runs),
        seconds=statistics.fmean(seconds) if len(seconds) == len(runs) else None,
        bytes_sent=round(statistics.fmean(sent)) if len(sent) == len(runs) else None,
        privacy=weakest([run.privacy for run in runs]),
        interval=mean_interval(runs, [row.people for row in group]),
        by_seed={run.seed: run.hits[_K] for run in runs},
    )


def _name(group: Group) -> str:
    if len(group) == 1:
        return group[0].name
    return f"{group[0].evaluation.recipe} ({len(group)} seeds)"


def mean_interval(
    runs: Sequence[Figures], people: OfRuns, reference: str | None = None
) -> dict[int, tuple[float, float]]:
    """Return the interval of mean Hits@k over runs by k; empty if a run has no interval.

    If `reference` is given, the figures in `runs` are those of this reference.
    """
    if not all(run.interval for run in runs):
        return {}
    means = mean_with_ends(runs, people, reference)
    return {k: (one.low, one.high) for k, one in means.items()}


def mean_with_ends(
    runs: Sequence[Figures], people: OfRuns, reference: str | None = None
) -> dict[int, Difference]:
    """Return mean Hits@k over runs, with the ends of its 95 % interval, by k.

    `people` has the figures of each person in each run. With a `reference`, its figures are used
    instead of the run's. The interval takes into account that a person may be tested in several
    runs. Without the figures of each person, the ends are at the mean distances of the runs' ends,
    so more runs do not make the interval narrower.
    """
    known = mean_hits(people, reference) if len(runs) > 1 else None
    if known is not None:
        return dict(known)
    return {
        k: mean_of(
            [
                Difference(by=run.hits[k], low=run.interval[k][0], high=run.interval[k][1])
                for run in runs
            ]
        )
        for k in KS
    }


def average_hits(runs: Sequence[Figures]) -> dict[int, float]:
    """Return the mean of Hits@k over runs, by k."""
    return {k: statistics.fmean(run.hits[k] for run in runs) for k in KS}


def weakest(promises: Sequence[Privacy]) -> str:
    """Return the weakest of some privacy guarantees, as text."""
    return guarantee(min(promises, key=_strength))


def _strength(privacy: Privacy) -> tuple[bool, bool, float]:
    epsilon, known = privacy.epsilon, privacy.epsilon_of_mechanism
    return epsilon is not None, known is not None, -(epsilon or known or 0.0)


def guarantee(privacy: Privacy) -> str:
    """Return a short text for the guarantee: none, local, or user-level with its ε and δ."""
    delta = "" if privacy.delta is None else f", δ = {privacy.delta:g}"
    if privacy.stage_two_epsilon is not None:
        return f"none; stage two alone {epsilon_text(privacy.stage_two_epsilon)}"
    if privacy.epsilon is not None:
        return f"user-level ε = {epsilon_text(privacy.epsilon)}{delta}"
    if privacy.epsilon_of_mechanism is not None:
        return f"seeded; ε of the mechanism = {epsilon_text(privacy.epsilon_of_mechanism)}{delta}"
    return "local noise: none for a person" if privacy.local_noise else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The difference in Hits@k between a line of the table and another line, by k.

    A positive difference means that the line `name` is better than the line `other`. `members` are
    the names of the rows that the line `name` averages. `paired` is true if both lines were tested
    on the same items of the same people. `people` is the number of different people over all seeds.
    """

    name: str
    members: Sequence[str]
    other: str
    by: Mapping[int, Difference]
    paired: bool
    people: int

    __repr__ = brief

    def sentence(self) -> str:
        """Return a sentence about the difference in Hits@20."""
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
        """Return the differences by k, `paired` and `people` as a JSON object."""
        by = {str(k): asdict(difference) for k, difference in self.by.items()}
        return {"hits": by, "paired": self.paired, "people": self.people}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Runs side by side: a table for each data set and protocol, and differences of lines."""

    rows: Mapping[str, Row]
    tables: Mapping[str, Sequence[Line]]
    against: Mapping[str, Sequence[Against]] = field(default_factory=dict)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """The evaluations by the name of their row."""
        return {name: row.evaluation for name, row in self.rows.items()}

    @property
    def warnings(self) -> list[str]:
        """The warnings of all evaluations, each with the name of its row."""
        rows = self.evaluations.items()
        return [f"{name}: {line}" for name, one in rows for line in one.warnings]

    def as_json(self) -> dict[str, Any]:
        """Return each evaluation by the name of its row, with its differences to other lines."""
        differences = [one for title in self.against for one in self.against[title]]
        return {
            name: {
                **row.evaluation.as_json(),
                "against": {one.other: one.as_json() for one in differences if name in one.members},
            }
            for name, row in self.rows.items()
        }

    def frame(self) -> pl.DataFrame:
        """Return a frame with one row for each line of the tables.

        Its columns are data, name, kind, hits@k with the ends of its interval, seconds, bytes_sent
        and privacy.
        """
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

    def __repr__(self) -> str:
        parts = []
        for title, lines in self.tables.items():
            cells = [line.cells() for line in lines]
            table = text_table(columns()[:_HITS], [row[:_HITS] for row in cells])
            parts += [f"Hits@k on {short(title)}", table]
            parts += [one.sentence() for one in self.against.get(title, ())]
        return "\n".join([*parts, *(f"warning: {line}" for line in self.warnings)])


def compare(runs: Sequence[Comparable] | Mapping[str, Comparable]) -> Comparison:
    """Return a comparison of runs, which may include your own recommenders.

    `runs` is a list, or a mapping from names that you choose. Each element is a run, a run folder,
    a folder that `privrec.evaluate(…, out=…)` wrote, or an evaluation. A `Run` that was not
    evaluated is evaluated first.
    """
    if isinstance(runs, str | bytes | PathLike) or not hasattr(runs, "__iter__"):
        raise SettingsError(f"`runs` must be a list of runs or run folders; got {got(runs)}")
    named = runs.items() if isinstance(runs, Mapping) else ((None, run) for run in runs)
    rows: dict[str, Row] = {}
    for given, run in named:
        row = _row(run)
        name = row.name if given is None else str(given)
        alike = sum(other == name or other.startswith(f"{name} (") for other in rows)
        name = f"{name} ({alike + 1})" if alike else name
        rows[name] = replace(row, name=name)
    if not rows:
        raise SettingsError("`runs` must have at least one run, folder or evaluation")
    return side_by_side(list(rows.values()))


def side_by_side(rows: Sequence[Row]) -> Comparison:
    """Return the comparison of rows; each row must have a different name."""
    tables = _groups_of(rows)
    return Comparison(
        rows={row.name: row for row in rows},
        tables={title: _lines_of(groups) for title, groups in tables.items()},
        against={title: _against(groups) for title, groups in tables.items()},
    )


def _row(run: object) -> Row:
    """Return the row of a run; its name is the path of a folder, or made from the settings."""
    if isinstance(run, Evaluation):
        config = run.config
        settings = config.model_dump(mode="json", exclude_none=True) if config else {}
        return Row(name=run.recipe, evaluation=run, settings=settings, people=run.people)
    if isinstance(run, Run):
        if not run.folder.evaluation_path.is_file():
            run.evaluate()
        budget = run.config.budget.epsilon
        parts = [run.config.recipe, *([] if budget is None else [f"epsilon {budget:g}"])]
        name = short(", ".join([*parts, f"seed {run.config.seed}"]))
        return replace(read_row(run.folder.path), name=name)
    if not isinstance(run, str | PathLike):
        raise SettingsError(f"`runs` must be runs, run folders or evaluations; got {got(run)}")
    return read_row(Path(run))


def read_row(path: Path) -> Row:
    """Return the row of a run folder, or of a folder that `privrec.evaluate` wrote."""
    folder = records.RunFolder(path=path)
    is_run = folder.config_path.exists() or folder.config_path.is_symlink()
    evaluation = None if is_run else Evaluation.read(folder.evaluation_path)
    if evaluation is not None:
        settings: dict[str, object] = {"own": evaluation.recipe, "data": evaluation.data}
    else:
        evaluation, settings = records.read_evaluation(path), records.read_run(path)[1]
        # Runs under secure noise without `diagnostics` write no times.
        rounds = records.read_rounds(folder.figures_path, RoundFigures)
        seconds = sum(line.seconds for line in rounds) if rounds else None
        cost = Cost(bytes_sent=evaluation.cost.bytes_sent, seconds=seconds)
        evaluation = evaluation.model_copy(update={"cost": cost})
    people = read_people(folder.evaluation_path, evaluation.hits)
    return Row(name=str(path), evaluation=evaluation, settings=settings, people=people)


def _against(groups: Sequence[Group]) -> list[Against]:
    """Return the differences of each line to its best reference and to the first line."""
    differences = []
    for group in groups:
        if (best := _best_reference(group)) is not None:
            differences.append(
                Against(
                    name=_name(group),
                    members=[row.name for row in group],
                    other=best,
                    by=above(group, best),
                    paired=True,
                    people=_count(group),
                )
            )
        if group is not groups[0] and (against := _between(group, groups[0])) is not None:
            differences.append(against)
    return differences


def above(group: Group, reference: str) -> dict[int, Difference]:
    """Return the difference in Hits@k between a line and a reference, by k."""
    known = mean_above([row.people for row in group], reference) if len(group) > 1 else None
    if known is not None:
        return dict(known)
    each = [row.evaluation.differences[reference] for row in group]
    return {k: mean_of([by_k[k] for by_k in each]) for k in KS}


def _between(ours: Group, first: Group) -> Against | None:
    """Return the difference between two lines; None if an interval is missing.

    The difference is paired if both lines have the same seeds and tested the same people for each
    seed. Otherwise the lines are treated as independent.
    """
    mine = {row.evaluation.seed: row for row in ours}
    theirs = {row.evaluation.seed: row for row in first}
    pairs = None
    if mine.keys() == theirs.keys():
        people = [(row.people, theirs[seed].people) for seed, row in mine.items()]
        pairs = mean_difference(*zip(*people, strict=True))
    if pairs:
        by = dict(pairs)
    elif all(row.evaluation.interval for row in (*ours, *first)):
        two = [
            mean_with_ends([row.evaluation for row in rows], [row.people for row in rows])
            for rows in (ours, first)
        ]
        by = {k: apart(two[0][k], two[1][k]) for k in KS}
    else:
        return None
    return Against(
        name=_name(ours),
        members=[row.name for row in ours],
        other=_name(first),
        by=by,
        paired=bool(pairs),
        people=_count(ours),
    )


def _count(group: Group) -> int:
    """Return the number of different people tested over all seeds.

    If it is not known, return the largest number of people tested with one seed.
    """
    known = distinct([row.people for row in group])
    return max(row.evaluation.users.test for row in group) if known is None else known


def _best_reference(group: Group) -> str | None:
    """Return the reference with the highest mean Hits@20; None if the runs share none."""
    runs = [row.evaluation for row in group]
    known = [(run.differences.keys() & run.references.keys()) - {run.recipe} for run in runs]
    names = sorted(set.intersection(*known))
    hits = {name: sum(run.references[name].hits[_K] for run in runs) for name in names}
    return max(hits, key=lambda name: hits[name]) if hits else None
