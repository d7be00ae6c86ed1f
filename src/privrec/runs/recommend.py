"""Recommendations for many people: the model is read once, and lists are written as they come."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from privrec.core.scorer import Scorer, Scores, TableScorer, moments, people_at_a_time
from privrec.core.top import top_items
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.data.schema import encode_one
from privrec.errors import RunFolderError, SettingsError
from privrec.runs import records
from privrec.types import IntArray

SCHEMA = {
    "user": pl.String,
    "rank": pl.Int32,
    "item": pl.String,
    "title": pl.String,
    "score": pl.Float32,
}
"""The columns of recommendations."""
ENDINGS = (".parquet", ".csv")


class Group(NamedTuple):
    """Some people: their names, and what is on their devices."""

    names: pl.Series
    people: Clients


def groups_in(federation: Federation, positions: IntArray, names: pl.Series) -> Iterator[Group]:
    """Return people of a data set, with all of their lines on their devices."""
    for part in chunks(positions, people_at_a_time(federation.n_items)):
        yield Group(names.gather(part), federation.take(part))


def groups_of(names: pl.Series, people: Clients, n_items: int) -> Iterator[Group]:
    """Return newcomers, with what they like on their devices."""
    for part in chunks(np.arange(len(people)), people_at_a_time(n_items)):
        yield Group(names.gather(part), people.take(part))


def lists_for(
    scorer: Scorer,
    catalogue: Catalogue,
    groups: Iterable[Group],
    *,
    top: int,
    on_progress: Callable[[int], None],
) -> Iterator[pl.DataFrame]:
    """Return the lists of each group, best first; `on_progress` is told how many people had one.

    An item that a person has a line of is not recommended to her. The moment is unknown: its
    context counts as missing, as for a newcomer who says nothing about it.
    """
    if top < 1:
        raise SettingsError(f"`top` must be >= 1; got {top}")
    words = pl.DataFrame(
        {"item": list(catalogue.item_ids), "title": list(catalogue.titles)},
        schema={"item": pl.String, "title": pl.String},
    )
    for group in groups:
        table = _table(scorer, catalogue, group.people)
        table[group.people.owner, group.people.item] = -np.inf
        items, scores = top_items(table, top)
        person, place = np.nonzero(scores > -np.inf)
        shown = words[items[person, place]]
        columns = {
            "user": group.names.gather(person),
            "rank": place + 1,
            "item": shown["item"],
            "title": shown["title"],
            "score": scores[person, place],
        }
        yield pl.DataFrame(columns, schema_overrides=SCHEMA)
        on_progress(len(group.people))


def _table(scorer: Scorer, catalogue: Catalogue, people: Clients) -> Scores:
    """Return the people's scores of all items, to be changed: (people, n_items)."""
    if isinstance(scorer, TableScorer):
        return np.array(scorer.table(people), order="C")
    now = moments(people, encode_one(catalogue.schema, "context", {}))
    rows = [np.asarray(scores)[:1] for scores in scorer(people, now)]
    return np.concatenate([np.zeros((0, catalogue.n_items), np.float32), *rows])


def check_out(path: Path) -> None:
    """Raise unless recommendations can be written to a file of this name."""
    if path.suffix.lower() not in ENDINGS:
        raise SettingsError(f"--out must end in {' or '.join(ENDINGS)}; got {str(path)!r}")
    if path.is_dir():
        raise RunFolderError(f"{path} is a folder: --out takes the name of a file")


def write_lists(path: Path, frames: Iterable[pl.DataFrame]) -> int:
    """Write the frames to one file as they come, whole or not at all; return the number of rows.

    They lie beside it in a folder of a temporary name until all are there.
    """
    check_out(path)
    parts = path.with_name(f".{path.name}.{os.getpid()}.parts")
    rows, whole = 0, parts / "whole"
    written: list[Path] = []
    with records.words(path, "write"):
        path.parent.mkdir(parents=True, exist_ok=True)
        parts.mkdir()
        try:
            for frame in _larger(frames):
                rows += frame.height
                if path.suffix.lower() == ".csv":
                    with whole.open("ab") as out:
                        frame.write_csv(out, include_header=not written)
                    written.append(whole)
                else:
                    written.append(parts / f"{len(written)}.parquet")
                    frame.write_parquet(written[-1])
            if path.suffix.lower() == ".parquet":
                pl.scan_parquet(written, glob=False).sink_parquet(whole)
            whole.replace(path)
        finally:
            shutil.rmtree(parts, ignore_errors=True)
    return rows


_ROWS = 2**17
"""Rows that are written at a time, at least. Chosen by hand."""


def _larger(frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Return the same rows in frames of at least `_ROWS` rows, but for the last."""
    waiting = [pl.DataFrame(schema=SCHEMA)]
    for frame in frames:
        waiting.append(frame)
        if sum(one.height for one in waiting) >= _ROWS:
            yield pl.concat(waiting)
            waiting = []
    if waiting:
        yield pl.concat(waiting)
