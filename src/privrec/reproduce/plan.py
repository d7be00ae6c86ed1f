"""Reproduces tables and figures by name: plans their parts, runs the parts, collects the results.

A finished part is never run again. After a kill, the same command continues with the other parts.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from privrec.errors import RunFolderError, SettingsError, check_extra, nearest
from privrec.evaluation.intervals import Difference, People, mean_of
from privrec.reproduce.cell import FRAPPE, MOVIELENS, Cell, Scale
from privrec.reproduce.experiments import EXPERIMENTS, Line
from privrec.reproduce.keeping import (
    Attacking,
    estimates,
    key_of,
    place_of,
    play,
    read_part,
    read_run,
)
from privrec.reproduce.results import Number, Result
from privrec.runs.compare import mean_with_ends
from privrec.runs.documents import Area, Attack, Evaluation, FewItems
from privrec.runs.folder import file_errors, write_whole
from privrec.simulate.cost import available_memory
from privrec.simulate.side_by_side import side_by_side
from privrec.types import OnProgress

_SEEDED = ("run", "attack")
"""The kinds of parts whose result depends on the seed."""
_ALONE = "rounds"
"""Parts of this kind measure time, so no other part runs beside them."""
_MEMORY = 3e9
"""The assumed peak memory of a part in bytes, which decides whether two parts run at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The work for some tables and figures: their lines by data set, and their parts by hash.

    A line is a row of the table or figure, and a part (`Cell`) is one run or measurement. Several
    lines or tables may need the same part; `cells` has it once.
    """

    scale: Scale
    out: Path
    lines: Mapping[str, Mapping[str, Sequence[Line]]]
    keys: Mapping[str, Sequence[str]]
    cells: Mapping[str, Cell]
    seconds: Mapping[str, float]

    @property
    def folder(self) -> Path:
        """The folder of the finished parts."""
        return self.out / "cells"

    def is_kept(self, key: str) -> bool:
        """Return whether a part is finished."""
        return place_of(self.folder, key).is_file()

    def missing(self, keys: Sequence[str] | None = None) -> list[str]:
        """Return the hashes of the unfinished parts, of `keys` or of the whole plan."""
        return [key for key in (self.cells if keys is None else keys) if not self.is_kept(key)]

    def seconds_left(self, keys: Sequence[str] | None = None, *, jobs: int = 1) -> float:
        """Return the estimated seconds of the unfinished parts, if `jobs` run at a time."""
        missing = self.missing(keys)
        alone = sum(self.seconds[key] for key in missing if self.cells[key].kind == _ALONE)
        return alone + (sum(self.seconds[key] for key in missing) - alone) / jobs


def names_of(given: Sequence[str]) -> list[str]:
    """Return the given names of tables and figures in the order of `EXPERIMENTS`."""
    for name in given:
        if name != "all" and name not in EXPERIMENTS:
            raise SettingsError(
                f"unknown table or figure {name!r}{nearest(name, EXPERIMENTS)}"
                f" (there are: all, {', '.join(EXPERIMENTS)})"
            )
    return [name for name in EXPERIMENTS if "all" in given or name in given]


def data_of(names: Sequence[str], given: Sequence[str]) -> dict[str, list[str]]:
    """Return the data sets for each name: the paper's, limited to those in `given` if any.

    If `given` has data sets that the paper does not use, it replaces the paper's data sets.
    """
    paper = set(given) <= {MOVIELENS, FRAPPE}
    chosen = {
        name: [source for source in EXPERIMENTS[name].data if not given or source in given]
        if paper
        else list(given)
        for name in names
    }
    if empty := [name for name, data in chosen.items() if not data]:
        raise SettingsError(f"{', '.join(empty)} is not about {', '.join(given)}")
    return chosen


def make_plan(data: Mapping[str, Sequence[str]], scale: Scale, out: Path) -> Plan:
    """Return the plan for these tables and figures, each with its data sets."""
    lines = {
        name: {source: list(EXPERIMENTS[name].lines(scale, source)) for source in sources}
        for name, sources in data.items()
    }
    cells: dict[str, Cell] = {}
    keys: dict[str, list[str]] = {}
    for name, by_data in lines.items():
        of_name = [cell for part in by_data.values() for line in part for cell in line.cells]
        by_key = {key_of(cell): cell for cell in of_name}
        keys[name] = list(by_key)
        cells |= by_key
    kinds = {cell.kind for cell in cells.values()}
    if "attack" in kinds:
        check_extra("sklearn", "the paper's attack (attack-table)")
    if "epsilons" in kinds:
        check_extra("autodp", "recomputing the paper's tables (epsilon-tables)")
    seconds = estimates(cells, out / "cells")
    return Plan(scale=scale, out=out, lines=lines, keys=keys, cells=cells, seconds=seconds)


def usual_jobs(cores: int) -> int:
    """Return the number of parts to run at a time: 2, or 1 with one core or little memory."""
    free = available_memory()
    return 2 if cores > 1 and (free is None or free > 2 * _MEMORY) else 1


def play_plan(plan: Plan, *, jobs: int, attack: Attacking, on_progress: OnProgress) -> None:
    """Run the unfinished parts, `jobs` at a time, each in its own process on one core.

    If `jobs` is 1, they run in this process, on all cores.
    """
    advance = partial(_tell, plan, on_progress)
    advance()
    # The folder must be writable before hours of work.
    with file_errors(plan.folder, "make"):
        plan.folder.mkdir(parents=True, exist_ok=True)
    missing = plan.missing()
    alone = [key for key in missing if plan.cells[key].kind == _ALONE or jobs == 1]
    beside = [key for key in missing if key not in alone]
    if beside:
        work = [(plan.cells[key], str(plan.folder), key, attack) for key in beside]
        side_by_side(play, work, workers=min(jobs, len(work)), advance=advance)
    for key in alone:
        play(plan.cells[key], str(plan.folder), key, attack)
        advance()


def _tell(plan: Plan, on_progress: OnProgress) -> None:
    whole = sum(plan.seconds.values())
    left = sum(plan.seconds[key] for key in plan.missing())
    on_progress("estimated seconds", round(whole - left), max(round(whole), 1))


def results_of(plan: Plan, command: str) -> list[Result]:
    """Return the result of each table or figure; all parts must be finished."""
    return [_result(plan, name, command) for name in plan.lines]


def _result(plan: Plan, name: str, command: str) -> Result:
    experiment, numbers, sentences = EXPERIMENTS[name], [], []
    for lines in plan.lines[name].values():
        of_data = [number for line in lines for number in _numbers(plan, line)]
        numbers += of_data
        for panel in dict.fromkeys(number.panel for number in of_data):
            in_panel = [number for number in of_data if number.panel == panel]
            texts = experiment.sentences(panel, in_panel)
            sentences += [f"{panel}. {text}." for text in texts if text]
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
    """Write each result as JSON, CSV and LaTeX; return the paths of the files."""
    written = []
    for result in results:
        forms = {"json": result.text(), "csv": result.csv().encode()}
        forms["tex"] = result.latex().encode()
        for form, content in forms.items():
            written.append(plan.out / f"{result.name}.{form}")
            write_whole(written[-1], content)
    return written


# --- the numbers of a line, read from its finished parts ----------------------------------------


class _Measured(NamedTuple):
    """A value, the ends of its interval, and the value for each seed."""

    value: float | None
    low: float | None = None
    high: float | None = None
    by_seed: Sequence[float] = ()


_Columns = Mapping[str, _Measured]
"""The values of a line by column."""


def _numbers(plan: Plan, line: Line) -> list[Number]:
    keys = [key_of(cell) for cell in line.cells]
    if line.cells[0].kind == "run":
        return _with_printed(_of_runs([read_run(plan.folder, key) for key in keys], line), line)
    (path,) = (place_of(plan.folder, key) for key in keys)
    kept = read_part(plan.folder, keys[0])
    if kept is None:
        raise RunFolderError(f"{path} is not there: go on")
    try:
        return _with_printed(_OTHERS[line.cells[0].kind](kept.figures, line), line)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{path} has other figures: remove it and go on") from error


def _with_printed(columns: _Columns, line: Line) -> list[Number]:
    return [
        Number(
            panel=line.panel,
            row=line.row,
            column=column,
            value=_rounded(measured.value),
            low=_rounded(measured.low),
            high=_rounded(measured.high),
            printed=line.printed.get(column),
            by_seed=[round(value, 6) for value in measured.by_seed if len(measured.by_seed) > 1],
        )
        for column, measured in columns.items()
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _of_runs(runs: Sequence[tuple[Evaluation, People | None]], line: Line) -> _Columns:
    evaluations, people = [evaluation for evaluation, _ in runs], [tested for _, tested in runs]
    metric, _, only_k = line.read.partition("@")
    first = evaluations[0]
    if metric == "few":
        groups = [each.few_items for each in evaluations if each.few_items is not None]
        return {str(k): _mean_of_few(groups, k) for k in first.hits}
    if metric == "ndcg":
        ndcg = {k: [each.ndcg[k] or 0.0 for each in evaluations] for k in first.ndcg}
        return {str(k): _Measured(fmean(ndcg[k]), by_seed=ndcg[k]) for k in ndcg}
    means = mean_with_ends(evaluations, people)
    hits = {k: [each.hits[k] for each in evaluations] for k in means}
    columns = {
        str(k): _Measured(fmean(hits[k]), mean.low, mean.high, hits[k]) for k, mean in means.items()
    }
    return {line.column: columns[only_k]} if only_k else columns


def _mean_of_few(groups: Sequence[FewItems], k: int) -> _Measured:
    of_seeds = [
        Difference(by=group.hits[k] or 0.0, low=group.interval[k][0], high=group.interval[k][1])
        for group in groups
        if k in group.interval
    ]
    if not of_seeds:
        return _Measured(None)
    mean = mean_of(of_seeds)
    return _Measured(mean.by, mean.low, mean.high, [of_seed.by for of_seed in of_seeds])


def _of_attack(figures: object, line: Line) -> _Columns:
    attacks = Attack.model_validate_json(json.dumps(figures)).attacks
    figure: float | Area | None = None
    if line.read == "accuracy":
        figure = attacks.paper.accuracy if attacks.paper else None
    elif attack := attacks.loss if line.read == "loss auc" else attacks.sums:
        figure = attack.auc
    if not isinstance(figure, Area):
        return {line.column: _Measured(figure)}
    # If all repetitions give the same figure, its interval is unknown.
    known = figure.low is not None and figure.high is not None and figure.low < figure.high
    return {line.column: _Measured(figure.value, *((figure.low, figure.high) if known else ()))}


def _of_rounds(figures: Mapping[str, float], line: Line) -> _Columns:
    return {line.column: _Measured(1000 * figures[line.read.removeprefix("ms ")])}


def _of_epsilons(figures: Sequence[Mapping[str, float]], line: Line) -> _Columns:
    accountant, delta = line.read.split()
    (value,) = (at[accountant] for at in figures if at["delta"] == float(delta))
    return {line.column: _Measured(value)}


def _of_activity(figures: Mapping[str, Any], line: Line) -> _Columns:
    if line.read != "shares":
        return {line.column: _Measured(float(figures[line.read]))}
    return {least: _Measured(share) for least, share in figures["shares"].items()}


_OTHERS: Mapping[str, Callable[..., _Columns]] = {
    "attack": _of_attack,
    "rounds": _of_rounds,
    "epsilons": _of_epsilons,
    "activity": _of_activity,
}
