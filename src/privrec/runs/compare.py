"""Runs, and recommenders of one's own, side by side: one is better than another one by how much."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privrec.errors import SettingsError
from privrec.evaluation.intervals import Difference, apart, mean_of
from privrec.runs import records
from privrec.runs.evaluate import Evaluation
from privrec.runs.run import Run, attacked_in
from privrec.runs.tested import People, paired, people_of, read_people
from privrec.show.comparison import Line, comparison, groups_of, with_ends
from privrec.show.report import KS
from privrec.show.worth import signed

_K = "20"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One evaluation: the content of `evaluation.json`, the settings, and each person's figures."""

    evaluation: Mapping[str, Any]
    settings: Mapping[str, Any]
    people: People | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """By how much Hits@k of a line of the table is larger than that of another one, by k.

    `members` are the rows behind the line. `paired` means that the same people were tested by
    both, `people` how many.
    """

    name: str
    members: Sequence[str]
    other: str
    by: Mapping[str, Difference]
    paired: bool
    people: int

    def sentence(self) -> str:
        """Return it in words, at 20."""
        found = self.by[_K]
        half = (found.high - found.low) / 2
        sure = found.low > 0 or found.high < 0
        better = "better" if found.by > 0 else "worse"
        size = (
            f"{better} by {abs(found.by):.3f}"
            if sure
            else f"no clear difference, {signed(found.by)}"
        )
        whom = f"paired over {self.people:,} people" if self.paired else "not the same people"
        return f"{self.name} against {self.other}: {size} ± {half:.3f} at {_K} ({whom})"

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

    def __str__(self) -> str:
        """Return the tables as text, and the differences as sentences."""
        parts = []
        for title, lines in self.tables.items():
            width = max(len(line.name) for line in lines)
            head = "".join(f"{'@' + k:>8}" for k in KS)
            parts.append(f"Hits@k on {title}\n{'':{width}}{head}")
            for line in lines:
                hits = (line.hits[k] for k in KS)
                cells = "".join(f"{'-' if one is None else f'{one:.3f}':>8}" for one in hits)
                parts.append(f"{line.name:{width}}{cells}")
            parts += [one.sentence() for one in self.against.get(title, ())]
        return "\n".join([*parts, *(f"warning: {line}" for line in self.warnings)])


def compare(*runs: str | Path | Run | Evaluation) -> Comparison:
    """Return evaluated runs side by side, and recommenders of your own among them.

    Each is a run, its folder, a folder that `privrec.evaluate(…, out=…)` wrote, or an evaluation.
    """
    if not runs:
        raise SettingsError("give at least one run, folder or evaluation")
    rows: dict[str, Row] = {}
    for run in runs:
        name, row = _row(run)
        rows[name if name not in rows else f"{name} ({len(rows) + 1})"] = row
    evaluations = {name: row.evaluation for name, row in rows.items()}
    settings = {name: row.settings for name, row in rows.items()}
    return Comparison(
        rows=rows,
        tables=comparison(evaluations, settings),
        against={
            title: _against(groups, rows)
            for title, groups in groups_of(evaluations, settings).items()
        },
    )


def _row(run: str | Path | Run | Evaluation) -> tuple[str, Row]:
    if isinstance(run, Evaluation):
        people = None if run.tested is None else people_of(run.tested)
        settings = run.config.model_dump(mode="json", exclude_none=True)
        return run.config.recipe, Row(evaluation=run.as_json(), settings=settings, people=people)
    path = run.folder.path if isinstance(run, Run) else Path(run)
    return str(path), read_row(path)


def read_row(path: Path) -> Row:
    """Return the evaluation in a run folder, or in one of a recommender of one's own."""
    folder = records.RunFolder(path=path)
    place = folder.evaluation_path
    if folder.config_path.exists() or not place.is_file():
        found, settings = records.read_evaluation(path), records.read_run(path)[1]
        attacked = attacked_in(folder)
        cost = {**found.get("cost", {}), "seconds": seconds_of(path)}
        found = {**found, "cost": cost, **({"attacked": attacked} if attacked else {})}
    else:
        found = records.read_document(place, records.EVALUATION_KEYS) or {}
        settings = {"own": found["recipe"], "data": found["data"]}
    return Row(evaluation=found, settings=settings, people=read_people(place))


def seconds_of(place: Path) -> float | None:
    """Return the time of a run's rounds; None under secure noise without `diagnostics`."""
    figures = records.read_rounds(records.RunFolder(path=place).figures_path)
    return sum(line["seconds"] for line in figures) if figures else None


def _against(groups: Sequence[Sequence[str]], rows: Mapping[str, Row]) -> list[Against]:
    """Return each line against the best reference of its own people, and against the first line."""
    found = []
    for group in groups:
        name = _name(group, rows)
        if (best := _best_reference(group, rows)) is not None:
            by = {k: mean_of([_beside(rows[one], best, k) for one in group]) for k in KS}
            people = sum(rows[one].evaluation["users"]["test"] for one in group)
            found.append(
                Against(name=name, members=group, other=best, by=by, paired=True, people=people)
            )
        if group is not groups[0]:
            against = _of_groups(group, groups[0], rows)
            found += [against] if against is not None else []
    return found


def _of_groups(
    ours: Sequence[str], first: Sequence[str], rows: Mapping[str, Row]
) -> Against | None:
    """Return one line against another: paired seed by seed, or else as two independent figures."""
    theirs = {rows[name].evaluation["seed"]: rows[name] for name in first}
    mine = [rows[name] for name in ours]
    pairs = [
        paired(row.people, theirs[seed].people)
        for row in mine
        if (seed := row.evaluation["seed"]) in theirs
    ]
    both = len(pairs) == len(mine) == len(theirs) and all(pairs)
    if both:
        known = [one for one in pairs if one]
        by = {k: mean_of([one[int(k)] for one in known]) for k in KS}
    elif all(row.evaluation.get("interval") for row in (*mine, *theirs.values())):
        by = {k: apart(_mean(mine, k), _mean(list(theirs.values()), k)) for k in KS}
    else:
        return None
    people = sum(row.evaluation["users"]["test"] for row in mine)
    return Against(
        name=_name(ours, rows),
        members=ours,
        other=_name(first, rows),
        by=by,
        paired=both,
        people=people,
    )


def _mean(rows: Sequence[Row], k: str) -> Difference:
    return mean_of([with_ends(row.evaluation, k) for row in rows])


def _beside(row: Row, reference: str, k: str) -> Difference:
    return Difference(**row.evaluation["differences"][reference][k])


def _best_reference(group: Sequence[str], rows: Mapping[str, Row]) -> str | None:
    """Return the reference with the highest mean Hits@20; None if not all runs have one."""
    runs = [rows[name].evaluation for name in group]
    known = [set(run.get("differences", {})) - {run["recipe"]} for run in runs]
    names = sorted(set.intersection(*known))
    hits = {name: sum(run["references"][name]["hits"][_K] or 0.0 for run in runs) for name in names}
    return max(hits, key=lambda name: hits[name]) if hits else None


def _name(group: Sequence[str], rows: Mapping[str, Row]) -> str:
    recipe = rows[group[0]].evaluation["recipe"]
    return group[0] if len(group) == 1 else f"{recipe} ({len(group)} seeds)"
