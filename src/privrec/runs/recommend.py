"""Recommendations for many people: everybody in the run's data, or newcomers from a file.

The model is read once, and lists are written while they are computed. Example people, who are shown
with their likes and lists, come only from public or made-up data.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from privrec.algorithms.recipe import Plan
from privrec.core.scorer import Scorer, Scores, TableScorer, moments, people_at_a_time, top_items
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.data.published import PUBLISHED, load_published
from privrec.data.rawfiles import read_raw
from privrec.data.schema import encode_one
from privrec.data.tables import ids_of, person_ids, require
from privrec.device import find_item
from privrec.errors import DataError, RunFolderError, SettingsError
from privrec.evaluation.protocols import Held
from privrec.runs import folder as records
from privrec.runs.documents import Example, Examples, Listed, RoundLine
from privrec.types import IntArray, Params

SCHEMA = {
    "user": pl.String,
    "rank": pl.Int32,
    "item": pl.String,
    "title": pl.String,
    "score": pl.Float32,
}
"""The columns of a frame of recommendations."""
ENDINGS = (".parquet", ".csv")


class Group(NamedTuple):
    """Some people: their names, and the data on their devices."""

    names: pl.Series
    people: Clients


def groups_of(
    names: pl.Series, take: Callable[[IntArray], Clients], n_items: int
) -> Iterator[Group]:
    """Yield people in groups; `take` returns the data of people at given positions."""
    for part in chunks(np.arange(names.len()), people_at_a_time(n_items)):
        yield Group(names.gather(part), take(part))


def lists_for(
    scorer: Scorer,
    catalogue: Catalogue,
    groups: Iterable[Group],
    *,
    top: int,
    on_progress: Callable[[int], None] = lambda count: None,
) -> Iterator[pl.DataFrame]:
    """Return the lists of each group, best item first.

    `on_progress` gets the number of people after each group. Items that a person has interacted
    with are not in her list. The features of the context (such as the time) count as missing.
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
    """Return the people's scores of all items, shape (people, n_items); it may be modified."""
    if isinstance(scorer, TableScorer):
        return np.array(scorer.table(people), order="C")
    now = moments(people, encode_one(catalogue.schema, "context", {}))
    rows = [np.asarray(scores)[:1] for scores in scorer(people, now)]
    return np.concatenate([np.zeros((0, catalogue.n_items), np.float32), *rows])


def check_out(path: Path) -> None:
    """Raise unless lists can be written to a file of this name."""
    if path.suffix.lower() not in ENDINGS:
        raise SettingsError(f"--out must end in {' or '.join(ENDINGS)}; got {str(path)!r}")
    if path.is_dir():
        raise RunFolderError(f"{path} is a folder: --out takes the name of a file")


def write_lists(path: Path, frames: Iterable[pl.DataFrame]) -> tuple[int, int]:
    """Write the frames to one file; return the numbers of people and rows.

    A temporary folder beside the file gets the frames first, so that the file is never incomplete.
    """
    check_out(path)
    parts = path.with_name(f".{path.name}.{os.getpid()}.parts")
    people, rows, whole = 0, 0, parts / "whole"
    written: list[Path] = []
    with records.file_errors(path, "write"):
        path.parent.mkdir(parents=True, exist_ok=True)
        parts.mkdir()
        try:
            for frame in _larger(frames):
                people += frame["user"].n_unique()
                rows += frame.height
                written.append(parts / f"{len(written)}.parquet")
                frame.write_parquet(written[-1])
            lists = pl.scan_parquet(written, glob=False)
            if path.suffix.lower() == ".csv":
                lists.sink_csv(whole)
            else:
                lists.sink_parquet(whole)
            whole.replace(path)
        finally:
            shutil.rmtree(parts, ignore_errors=True)
    return people, rows


_ROWS = 2**17
"""At least this many rows are written at a time. Chosen by hand."""


def _larger(frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the same rows in frames of at least `_ROWS` rows; the last frame may have fewer."""
    waiting = [pl.DataFrame(schema=SCHEMA)]
    for frame in frames:
        waiting.append(frame)
        if sum(one.height for one in waiting) >= _ROWS:
            yield pl.concat(waiting)
            waiting = []
    if waiting:
        yield pl.concat(waiting)


_PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A table from the user: `file` is its name, and `lines` has the line number of each row."""

    frame: pl.DataFrame
    file: str = "the frame"
    lines: IntArray | None = None

    def at(self, row: int) -> str:
        """Return the position of a row in the file, as text."""
        if self.lines is None:
            return f"{self.file} row {row}"
        unit = "row" if self.file.lower().endswith(_PARQUET) else "line"
        return f"{self.file} {unit} {int(self.lines[row])}"


def read_source(path: Path) -> Source:
    """Return the table in a text or Parquet file; raise if a line cannot be split."""
    raw = read_raw(path)
    if raw.bad:
        raise DataError(str(raw.bad[0]))
    return Source(frame=raw.frame, file=raw.file, lines=raw.lines)


def names_of(data: str, federation: Federation) -> pl.Series:
    """Return the ids of all people in the data of a run, in the order of the data.

    Raises:
        DataError: The ids cannot be read, or the data now has other people.
    """
    if federation.names is not None:
        return pl.Series(federation.names, dtype=pl.String)
    folder = Path(data)
    if data.partition(":")[0] == "synthetic":
        return pl.Series(np.arange(federation.n_clients)).cast(pl.String)
    if data in PUBLISHED:
        users = load_published(data).users
    elif folder.is_dir():
        # Read only the ids, not the interactions.
        users = pl.read_parquet(folder / "users.parquet", columns=["id"], glob=False)
    else:
        raise DataError(f"the ids of people cannot be read: {data!r} is no data folder")
    names = ids_of(users["id"], "users")
    if not np.array_equal(
        person_ids(names.to_list()), federation.ids(np.arange(federation.n_clients))
    ):
        raise DataError(f"the people in {data} are others than those of the run")
    return names


def newcomers_of(source: Source, catalogue: Catalogue) -> tuple[pl.Series, Clients]:
    """Return the names and the data of people in a table with columns user, item and value.

    The column value is optional. An item is an id or a title. As in training, a value is a like if
    it is greater than `positive_above` of the catalogue. Without values every row is a like. The
    features of these people count as missing.
    """
    frame = source.frame
    for column in ("user", "item"):
        require(frame, column, source.file)
    for column in frame.columns:
        if column not in ("user", "item", "value"):
            raise DataError(
                f"{source.file} has the column {column!r}; newcomers have user, item and value"
            )
    users = ids_of(frame["user"], f"{source.file} column 'user'")
    if users.len() == 0:
        raise DataError(f"{source.file} names nobody")
    names = users.unique(maintain_order=True)
    places = pl.DataFrame({"id": names, "place": np.arange(names.len())})
    owner = users.to_frame("id").join(places, on="id", how="left", maintain_order="left")["place"]
    who, item, value = owner.to_numpy(), _items(source, catalogue), _values(source, catalogue)
    order = np.argsort(who, kind="stable")
    sizes = np.bincount(who, minlength=names.len())
    features = encode_one(catalogue.schema, "user", {})
    context = encode_one(catalogue.schema, "context", {})
    people = Clients(
        # Id 0, as in `Device`, so that each person gets the same list as from `Device`.
        ids=np.zeros(len(sizes), np.int64),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        item=item[order].astype(np.int32),
        value=value[order],
        liked=value[order] > catalogue.positive_above,
        time=np.arange(len(item), dtype=np.float64),
        features={name: bag.take(np.zeros_like(sizes)) for name, bag in features.items()},
        context={name: bag.take(np.zeros_like(item)) for name, bag in context.items()},
    )
    return names, people


def _items(source: Source, catalogue: Catalogue) -> IntArray:
    items = ids_of(source.frame["item"], f"{source.file} column 'item'")
    known = pl.DataFrame({"id": list(catalogue.item_ids), "position": np.arange(catalogue.n_items)})
    found = items.to_frame("id").join(known, on="id", how="left", maintain_order="left")
    positions = found["position"].fill_null(-1).to_numpy().astype(np.int64)
    titles: dict[str, int] = {}
    for row in np.flatnonzero(positions < 0):
        name = items[int(row)]
        try:
            titles[name] = titles[name] if name in titles else find_item(catalogue, name)
        except DataError as error:
            raise DataError(f"{source.at(int(row))}: {error}") from error
        positions[row] = titles[name]
    return positions


def _values(source: Source, catalogue: Catalogue) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    if "value" not in source.frame.columns:
        return np.full(source.frame.height, catalogue.positive_above + 1, np.float32)
    column = source.frame["value"]
    numbers = column.cast(pl.Float32, strict=False).fill_null(float("nan")).to_numpy()
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(f"{source.at(row)}: value must be a finite number; got {column[row]!r}")
    return np.asarray(numbers, np.float32)


def history_frame(lines: Sequence[RoundLine]) -> pl.DataFrame:
    """Return a frame with one row for each round: its number, its stage and its known figures.

    The columns `validation@5` and so on are the Hits@k of validation people.
    """
    rows = []
    for line in (line.as_json() for line in lines):
        row = {name: value for name, value in line.items() if not isinstance(value, Mapping)}
        looks = line.get("validation")
        for k, value in looks.items() if isinstance(looks, Mapping) else ():
            row[f"validation@{k}"] = value
        rows.append(row)
    frame = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    return frame if rows else pl.DataFrame(schema={"round": pl.Int64, "stage": pl.String})


_PEOPLE, _LIKES, _TOP = 10, 8, 10
_LOOKED_AT = 8 * _PEOPLE
"""The number of test people who are read. The examples are those with likes on the device and likes
to test."""


def examples_of(prepared: Plan, params: Params) -> Examples:
    """Return at most ten test people in the order of the number of items on their device."""
    test = prepared.task.split.test
    places = np.unique(np.linspace(0, len(test) - 1, _LOOKED_AT).round().astype(np.int64))
    held = prepared.task.protocol.testing(prepared.task.whole)(test[places])
    chosen = _chosen(held)
    if not len(chosen):
        return Examples(examples=[])
    kept, tested = held.kept.take(chosen), held.tested.take(chosen)
    names = pl.Series("user", [str(k) for k in range(len(chosen))])
    catalogue = prepared.task.whole.catalogue
    lists = lists_for(prepared.ranker(params), catalogue, [Group(names, kept)], top=_TOP)
    by_name = pl.concat(lists).partition_by("user", as_dict=True)
    examples = []
    for k in range(len(chosen)):
        mine = slice(int(kept.offsets[k]), int(kept.offsets[k + 1]))
        likes = np.unique(kept.item[mine][kept.liked[mine]])
        hidden = set(tested.item[tested.offsets[k] : tested.offsets[k + 1]].tolist())
        ids = {catalogue.item_ids[item] for item in hidden}
        listed = by_name.get((str(k),))
        rows = [] if listed is None else listed.select("item", "title").iter_rows()
        examples.append(
            Example(
                liked=[str(catalogue.titles[item]) for item in likes[:_LIKES]],
                more=max(0, len(likes) - _LIKES),
                held_out=len(hidden),
                list=[Listed(title=title, hit=item in ids) for item, title in rows],
            )
        )
    return Examples(examples=examples)


def _chosen(held: Held) -> IntArray:
    """Return the positions of at most ten people with likes on the device and likes to test."""
    liked = np.bincount(held.kept.owner[held.kept.liked], minlength=len(held.kept))
    able = np.flatnonzero((liked > 0) & (held.tested.sizes > 0))
    if len(able) > _PEOPLE:
        able = able[np.linspace(0, len(able) - 1, _PEOPLE).round().astype(np.int64)]
    return able[np.argsort(held.kept.sizes[able], kind="stable")]
