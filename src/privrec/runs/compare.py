"""Runs side by side in Python: the table of `privrec compare` as a frame or in a notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from privrec.data.text import short
from privrec.errors import SettingsError, got
from privrec.runs import records
from privrec.runs.api import open_run
from privrec.runs.run import Run, attacked_in
from privrec.show.comparison import Line, any_attacked, columns, comparison
from privrec.show.notebook import html_table, text_table

_SHOWN = ("10", "20")
"""The k of a table in text; all of them would make it too wide."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Runs side by side, beside the references and, where there are any, the paper's figures.

    `evaluations` and `settings` are those of each run, by its name.
    """

    evaluations: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Mapping[str, Any]]

    @property
    def tables(self) -> dict[str, list[Line]]:
        """The lines for each data set and protocol."""
        return comparison(self.evaluations, self.settings)

    def frame(self) -> pl.DataFrame:
        """Return a row for each line: data, name, kind, hits@k, seconds, bytes_sent, privacy."""
        rows = [
            {
                "data": title,
                "name": line.name,
                "kind": line.kind,
                **{f"hits@{k}": value for k, value in line.hits.items()},
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
            rows,
            schema_overrides={**numbers, "bytes_sent": pl.Int64},
            infer_schema_length=None,
        )

    def __repr__(self) -> str:
        lines = [line for found in self.tables.values() for line in found]
        title = f"Comparison of {len(self.evaluations)} runs: Hits@k"
        rows = [(line.name, *line.cells(_SHOWN)[1 : len(_SHOWN) + 1]) for line in lines]
        return f"{title}\n{text_table(('', *(f'@{k}' for k in _SHOWN)), rows)}"

    def _repr_html_(self) -> str:
        attacked = any_attacked(self.evaluations)
        return "".join(
            html_table(
                columns(attacked=attacked),
                [line.cells(attacked=attacked) for line in lines],
                f"Hits@k on {title}",
            )
            for title, lines in self.tables.items()
        )


def compare(runs: Sequence[Any] | Mapping[str, Any]) -> Comparison:
    """Return runs side by side: a list of runs or run folders, or such by names of your own.

    A run that has no evaluation yet is evaluated first.
    """
    given = runs if isinstance(runs, Mapping) else None
    if given is None and (isinstance(runs, str | bytes | PathLike) or not _is_list(runs)):
        raise SettingsError(f"`runs` must be a list of runs or run folders; got {got(runs)}")
    opened = [_opened(run) for run in (runs if given is None else given.values())]
    if not opened:
        raise SettingsError("`runs` must have at least one run")
    names = _names(opened) if given is None else [str(name) for name in given]
    evaluations = {}
    for name, run in zip(names, opened, strict=True):
        if not run.folder.evaluation_path.is_file():
            run.evaluate()
        figures, found = run.figures, records.read_evaluation(run.folder.path)
        seconds = sum(line["seconds"] for line in figures) if figures else None
        attacked = attacked_in(run.folder)
        evaluations[name] = {
            **found,
            "cost": {**found.get("cost", {}), "seconds": seconds},
            **({"attacked": attacked} if attacked else {}),
        }
    settings = [records.read_run(run.folder.path)[1] for run in opened]
    return Comparison(evaluations=evaluations, settings=dict(zip(names, settings, strict=True)))


def _is_list(runs: object) -> bool:
    return isinstance(runs, Sequence) or hasattr(runs, "__iter__")


def _opened(run: object) -> Run:
    if isinstance(run, Run):
        return run
    if not isinstance(run, str | PathLike):
        raise SettingsError(f"`runs` must be runs or run folders; got {got(run)}")
    return open_run(Path(run))


def _names(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: its recipe, its budget if it has one, and its seed."""
    names: list[str] = []
    for run in runs:
        budget = run.config.budget.epsilon
        parts = [run.config.recipe, *([] if budget is None else [f"epsilon {budget:g}"])]
        name = short(", ".join([*parts, f"seed {run.config.seed}"]))
        alike = sum(other == name or other.startswith(f"{name} (") for other in names)
        names.append(f"{name} ({alike + 1})" if alike else name)
    return names
