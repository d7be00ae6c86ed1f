"""From names to results: the parts that are needed, their time, playing them, their numbers.

A part that is finished is never played again: after any kill the same command goes on.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from privrec.errors import RunFolderError, SettingsError, check_extra, nearest
from privrec.evaluation.intervals import Difference, People, mean_of
from privrec.reproduce.cell import Cell
from privrec.reproduce.experiments import EXPERIMENTS, Line
from privrec.reproduce.forecast import estimates
from privrec.reproduce.keeping import (
    Attacking,
    Kept,
    key_of,
    place_of,
    play,
    read_run,
)
from privrec.reproduce.results import Number, Result
from privrec.reproduce.scale import FRAPPE, MOVIELENS, Scale
from privrec.runs.compare import mean_with_ends
from privrec.runs.documents import Area, Attack, Evaluation, FewItems
from privrec.runs.folder import write_whole
from privrec.simulate.cost import available_memory
from privrec.simulate.side_by_side import side_by_side
from privrec.types import OnProgress

_SEEDED = ("run", "attack")
"""Parts that have another result with another seed."""
_ALONE = "rounds"
"""Parts that measure time are played when nothing else is."""
_MEMORY = 3e9
"""Bytes that a part may need, so that two side by side fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done: for each name its lines by data set, and each part once, by its hash."""

    scale: Scale
    out: Path
    lines: Mapping[str, Mapping[str, Sequence[Line]]]
    keys: Mapping[str, Sequence[str]]
    cells: Mapping[str, Cell]
    seconds: Mapping[str, float]

    @property
    def folder(self) -> Path:
        """Where the parts are kept."""
        return self.out / "cells"

    def is_kept(self, key: str) -> bool:
        """Return whether a part is finished."""
        return place_of(self.folder, key).is_file()

    def missing(self, keys: Sequence[str] | None = None) -> list[str]:
        """Return the parts that are still to be played, of these or of all."""
        return [key for key in (self.cells if keys is None else keys) if not self.is_kept(key)]

    def seconds_left(self, keys: Sequence[str] | None = None, *, jobs: int = 1) -> float:
        """Return about how many seconds the missing parts take, `jobs` at a time."""
        missing = self.missing(keys)
        alone = sum(self.seconds[key] for key in missing if self.cells[key].kind == _ALONE)
        return alone + (sum(self.seconds[key] for key in missing) - alone) / jobs


def names_of(given: Sequence[str]) -> list[str]:
    """Return the names of tables and figures, in their order; `all` is every one."""
    for name in given:
        if name != "all" and name not in EXPERIMENTS:
            raise SettingsError(
                f"unknown table or figure {name!r}{nearest(name, EXPERIMENTS)}"
                f" (there are: all, {', '.join(EXPERIMENTS)})"
            )
    return [name for name in EXPERIMENTS if "all" in given or name in given]


def data_of(names: Sequence[str], given: Sequence[str]) -> dict[str, list[str]]:
    """Return for each name its data sets, of the paper's those that are `given`; all without any.

    If other data is given, it stands in the place of the paper's.
    """
    paper = set(given) <= {MOVIELENS, FRAPPE}
    chosen = {
        name: [d for d in EXPERIMENTS[name].data if not given or d in given]
        if paper
        else list(given)
        for name in names
    }
    if empty := [name for name, data in chosen.items() if not data]:
        raise SettingsError(f"{', '.join(empty)} is not about {', '.join(given)}")
    return chosen


def make_plan(data: Mapping[str, Sequence[str]], scale: Scale, out: Path) -> Plan:
    """Return the plan of these names on these data sets."""
    lines = {
        name: {one: list(EXPERIMENTS[name].lines(scale, one)) for one in sets}
        for name, sets in data.items()
    }
    cells: dict[str, Cell] = {}
    keys: dict[str, list[str]] = {}
    for name, by_data in lines.items():
        for line in (line for part in by_data.values() for line in part):
            for cell in line.cells:
                key = key_of(cell)
                cells[key] = cell
                keys.setdefault(name, []).append(key)
    kinds = {cell.kind for cell in cells.values()}
    if "attack" in kinds:
        check_extra("sklearn", "the paper's attack (attack-table)")
    if "epsilons" in kinds:
        check_extra("autodp", "recomputing the paper's tables (epsilon-tables)")
    unique = {name: list(dict.fromkeys(all_)) for name, all_ in keys.items()}
    seconds = estimates(cells, out / "cells")
    return Plan(scale=scale, out=out, lines=lines, keys=unique, cells=cells, seconds=seconds)


def usual_jobs(cores: int) -> int:
    """Return how many parts fit side by side: two, unless there is one core or little memory."""
    free = available_memory()
    return 2 if cores > 1 and (free is None or free > 2 * _MEMORY) else 1


def play_plan(plan: Plan, *, jobs: int, attack: Attacking, on_progress: OnProgress) -> None:
    """Play the missing parts, `jobs` at a time, each in a process of its own on one core.

    With one at a time they are played here, on all cores.
    """
    whole = sum(plan.seconds[key] for key in plan.cells)

    def advance() -> None:
        left = sum(plan.seconds[key] for key in plan.missing())
        on_progress("estimated seconds", round(whole - left), max(round(whole), 1))

    advance()
    missing = plan.missing()
    alone = [key for key in missing if plan.cells[key].kind == _ALONE or jobs == 1]
    beside = [key for key in missing if key not in alone]
    if beside:
        work = [(plan.cells[key], str(plan.folder), key, attack) for key in beside]
        side_by_side(play, work, workers=min(jobs, len(work)), advance=advance)
    for key in alone:
        play(plan.cells[key], str(plan.folder), key, attack)
        advance()


def results_of(plan: Plan, command: str) -> list[Result]:
    """Return what was found, a result for each name; all parts are finished."""
    return [_result(plan, name, command) for name in plan.lines]


def _result(plan: Plan, name: str, command: str) -> Result:
    experiment, numbers, sentences = EXPERIMENTS[name], [], []
    for lines in plan.lines[name].values():
        found = [one for line in lines for one in _numbers(plan, line)]
        numbers += found
        panels = dict.fromkeys(one.panel for one in found)
        for panel in panels:
            said = experiment.sentences(panel, [one for one in found if one.panel == panel])
            sentences += [f"{panel}. {line}." for line in said if line]
    return Result(
        name=name,
        title=experiment.title,
        says=experiment.says,
        command=command.replace("NAME", name),
        data=[plan.scale.sources[data].title for data in plan.lines[name]],
        seeds=sorted(
            {plan.cells[key].seed for key in plan.keys[name] if plan.cells[key].kind in _SEEDED}
        ),
        quick=plan.scale.is_quick,
        x_label=experiment.x_label,
        y_label=experiment.y_label,
        logs=experiment.logs,
        decimals=experiment.decimals,
        numbers=numbers,
        sentences=sentences,
        notes=list(experiment.notes),
    )


def write_results(plan: Plan, results: Sequence[Result]) -> list[Path]:
    """Write each result as JSON, CSV and LaTeX; return the files."""
    written = []
    for one in results:
        forms = {"json": one.text(), "csv": one.csv().encode(), "tex": one.latex().encode()}
        for form, content in forms.items():
            written.append(plan.out / f"{one.name}.{form}")
            write_whole(written[-1], content)
    return written


# --- what a line reads of its parts -------------------------------------------------------------

Found = tuple[float, tuple[float, float] | None, list[float]]
"""A value, the ends of its interval, and that of each seed."""


def _numbers(plan: Plan, line: Line) -> list[Number]:
    keys = [key_of(cell) for cell in line.cells]
    if line.cells[0].kind == "run":
        runs = [read_run(plan.folder, key) for key in keys]
        found = _of_runs(runs, line)
    else:
        (kept,) = (Kept.read(place_of(plan.folder, key)) for key in keys)
        if kept is None:
            raise RunFolderError(f"{place_of(plan.folder, keys[0])} is not there: go on")
        found = _OTHERS[line.cells[0].kind](kept.figures, line)
    return [
        Number(
            panel=line.panel,
            row=line.row,
            column=column,
            value=_rounded(one[0]) if one else None,
            low=_rounded(one[1][0]) if one and one[1] else None,
            high=_rounded(one[1][1]) if one and one[1] else None,
            printed=line.printed.get(column),
            by_seed=[_rounded(value) for value in one[2]] if one and len(one[2]) > 1 else [],
        )
        for column, one in found.items()
    ]


def _rounded(value: float) -> float:
    return round(value, 6)


def _of_runs(
    runs: Sequence[tuple[Evaluation, People | None]], line: Line
) -> dict[str, Found | None]:
    evaluations, people = [one for one, _ in runs], [who for _, who in runs]
    what, _, k = line.read.partition("@")
    if what == "few":
        groups = [one.few_items for one in evaluations if one.few_items is not None]
        return {str(at): _mean_of_few(groups, at) for at in evaluations[0].hits}
    if what == "ndcg":
        by_k = {at: [one.ndcg[at] or 0.0 for one in evaluations] for at in evaluations[0].ndcg}
        return {str(at): (statistics.fmean(all_), None, all_) for at, all_ in by_k.items()}
    means = mean_with_ends(evaluations, people)
    by_seed = {at: [one.hits[at] for one in evaluations] for at in means}
    found: dict[str, Found | None] = {
        str(at): (statistics.fmean(by_seed[at]), (mean.low, mean.high), by_seed[at])
        for at, mean in means.items()
    }
    return {line.column: found[k]} if k else found


def _mean_of_few(groups: Sequence[FewItems], k: int) -> Found | None:
    """Return the mean Hits@k over seeds of people with few items; None where there are none."""
    parts = [
        Difference(by=one.hits[k] or 0.0, low=one.interval[k][0], high=one.interval[k][1])
        for one in groups
        if k in one.interval
    ]
    if not parts:
        return None
    mean = mean_of(parts)
    return mean.by, (mean.low, mean.high), [part.by for part in parts]


def _of_attack(figures: object, line: Line) -> dict[str, Found | None]:
    attacks = Attack.model_validate_json(json.dumps(figures)).attacks
    kind = line.read.partition(" ")[0]
    if kind == "accuracy":
        found = attacks.paper.accuracy if attacks.paper else None
    else:
        one = attacks.loss if kind == "loss" else attacks.sums
        found = one.auc if one else None
    if isinstance(found, Area):
        # Where all repetitions gave the same, how far they differ is not known.
        known = found.low is not None and found.high is not None and found.low < found.high
        ends = (found.low or 0.0, found.high or 0.0) if known else None
        return {line.column: (found.value, ends, [])}
    return {line.column: None if found is None else (found, None, [])}


def _of_rounds(figures: Mapping[str, float], line: Line) -> dict[str, Found | None]:
    return {line.column: (1000 * figures[line.read.removeprefix("ms ")], None, [])}


def _of_epsilons(figures: Sequence[Mapping[str, float]], line: Line) -> dict[str, Found | None]:
    way, delta = line.read.split()
    (value,) = (one[way] for one in figures if one["delta"] == float(delta))
    return {line.column: (value, None, [])}


def _of_activity(figures: Mapping[str, Mapping[str, float]], line: Line) -> dict[str, Found | None]:
    if line.read != "shares":
        return {line.column: (float(figures[line.read]), None, [])}  # type: ignore[arg-type]
    return {least: (value, None, []) for least, value in figures["shares"].items()}


_OTHERS: Mapping[str, Callable[..., dict[str, Found | None]]] = {
    "attack": _of_attack,
    "rounds": _of_rounds,
    "epsilons": _of_epsilons,
    "activity": _of_activity,
}
