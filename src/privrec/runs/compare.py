"""Runs, and recommenders of one's own, side by side: one is better than another one by how much."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from privrec.data.text import brief, short
from privrec.errors import SettingsError, got
from privrec.evaluation.intervals import (
    Difference,
    People,
    apart,
    distinct,
    mean_above,
    mean_difference,
    mean_of,
)
from privrec.runs import folder as records
from privrec.runs.documents import EVALUATION, read_document
from privrec.runs.evaluate import Evaluation, people_of, read_people
from privrec.runs.run import Run, attacked_in
from privrec.show.comparison import (
    Line,
    any_attacked,
    columns,
    comparison,
    groups_of,
    mean_with_ends,
)
from privrec.show.figures import arm_text, around, digits, signed
from privrec.show.notebook import html_table, paragraph, text_table
from privrec.show.page import figure
from privrec.show.report import KS

Comparable = str | PathLike[str] | Run | Evaluation
"""What can be a row: a folder, an open run or an evaluation."""
_K = "20"
_SHOWN = ("10", "20")
"""The k of a table in text; all of them would make it too wide."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One evaluation: the content of `evaluation.json`, the settings, and each person's figures."""

    evaluation: Mapping[str, Any]
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
    by: Mapping[str, Difference]
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
        return (
            f"{self.name} against {self.other}: {size}{around(**found.as_json())} at {_K} ({whom})"
        )

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        by = {k: one.as_json() for k, one in self.by.items()}
        return {"hits": by, "paired": self.paired, "people": self.people}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Rows side by side: a table for each data set and protocol, and what is better than what."""

    rows: Mapping[str, Row]
    tables: Mapping[str, Sequence[Line]]
    against: Mapping[str, Sequence[Against]] = field(default_factory=dict)

    @property
    def evaluations(self) -> dict[str, Mapping[str, Any]]:
        """The content of `evaluation.json` by the name of the row."""
        return {name: row.evaluation for name, row in self.rows.items()}

    @property
    def settings(self) -> dict[str, Mapping[str, Any]]:
        """The settings by the name of the row."""
        return {name: row.settings for name, row in self.rows.items()}

    @property
    def warnings(self) -> list[str]:
        """What was warned of when the rows were evaluated, each with the row's name."""
        known = {name: row.evaluation.get("warnings", []) for name, row in self.rows.items()}
        return [f"{name}: {line}" for name, lines in known.items() for line in lines]

    def as_json(self) -> dict[str, Any]:
        """Return each evaluation by the name of its row, with the differences that it begins."""
        named = [one for found in self.against.values() for one in found]
        return {
            name: {
                **row.evaluation,
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
            head = "".join(f"{'@' + k:>8}" for k in KS) + f"{'± at 20':>10}"
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
        people = None if run.tested is None else people_of(run.tested, run.tested_references)
        settings = run.config.model_dump(mode="json", exclude_none=True)
        return run.config.recipe, Row(evaluation=run.as_json(), settings=settings, people=people)
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
    place = folder.evaluation_path
    is_run = folder.config_path.exists() or folder.config_path.is_symlink()
    if is_run or not place.is_file():
        found, settings = records.read_evaluation(path), records.read_run(path)[1]
        attacked = attacked_in(folder)
        cost = {**found.get("cost", {}), "seconds": seconds_of(path)}
        found = {**found, "cost": cost, **({"attacked": attacked} if attacked else {})}
    else:
        found = read_document(place, EVALUATION) or {}
        settings = {"own": found["recipe"], "data": found["data"]}
    return Row(evaluation=found, settings=settings, people=read_people(place, found["hits"]))


def seconds_of(place: Path) -> float | None:
    """Return the time of a run's rounds; None under secure noise without `diagnostics`."""
    figures = records.read_rounds(records.RunFolder(path=place).figures_path)
    return sum(line["seconds"] for line in figures) if figures else None


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


def _above(mine: Sequence[Row], reference: str) -> dict[str, Difference]:
    """Return by how much a line is above a reference, by k."""
    known = mean_above([row.people for row in mine], reference) if len(mine) > 1 else None
    if known is not None:
        return {str(k): one for k, one in known.items()}
    each = [row.evaluation["differences"][reference] for row in mine]
    return {k: mean_of([Difference(**one[k]) for one in each]) for k in KS}


def _of_groups(
    ours: Sequence[str], first: Sequence[str], rows: Mapping[str, Row]
) -> Against | None:
    """Return one line against another: paired seed by seed, or else as two independent figures."""
    theirs = {rows[name].evaluation["seed"]: rows[name] for name in first}
    mine = {rows[name].evaluation["seed"]: rows[name] for name in ours}
    pairs = None
    if mine.keys() == theirs.keys():
        people = [(row.people, theirs[seed].people) for seed, row in mine.items()]
        pairs = mean_difference(*zip(*people, strict=True))
    if pairs:
        by = {str(k): one for k, one in pairs.items()}
    elif all(row.evaluation.get("interval") for row in (*mine.values(), *theirs.values())):
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


def _mean(rows: Sequence[Row]) -> dict[str, Difference]:
    return mean_with_ends([row.evaluation for row in rows], [row.people for row in rows])


def _count(rows: Sequence[Row]) -> int:
    """Return how many different people there are; at least so many where that is not known."""
    known = distinct([row.people for row in rows])
    return max(row.evaluation["users"]["test"] for row in rows) if known is None else known


def _best_reference(group: Sequence[str], rows: Mapping[str, Row]) -> str | None:
    """Return the reference with the highest mean Hits@20; None if not all runs have one."""
    runs = [rows[name].evaluation for name in group]
    known = [
        (run.get("differences", {}).keys() & run["references"].keys()) - {run["recipe"]}
        for run in runs
    ]
    names = sorted(set.intersection(*known))
    hits = {name: sum(run["references"][name]["hits"][_K] or 0.0 for run in runs) for name in names}
    return max(hits, key=lambda name: hits[name]) if hits else None


def _name(group: Sequence[str], rows: Mapping[str, Row]) -> str:
    recipe = rows[group[0]].evaluation["recipe"]
    return group[0] if len(group) == 1 else f"{recipe} ({len(group)} seeds)"
