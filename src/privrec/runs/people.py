"""Who gets recommendations: people of the run's data by their ids, or newcomers from a file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.lines import ids_of, require
from privrec.data.published import PUBLISHED, load_published
from privrec.data.rawfiles import read_raw
from privrec.data.schema import encode_one
from privrec.data.tables import person_ids
from privrec.device import find_item
from privrec.errors import DataError, nearest
from privrec.types import IntArray

_PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A table that somebody gave: `file` names it, and `lines` has the line of each row."""

    frame: pl.DataFrame
    file: str = "the frame"
    lines: IntArray | None = None

    def at(self, row: int) -> str:
        """Return where a row is, in words."""
        if self.lines is None:
            return f"{self.file} row {row}"
        unit = "row" if self.file.lower().endswith(_PARQUET) else "line"
        return f"{self.file} {unit} {int(self.lines[row])}"


def read_source(path: Path) -> Source:
    """Return the table in a CSV, TSV or Parquet file; raise if a line cannot be split."""
    raw = read_raw(path)
    if raw.bad:
        raise DataError(str(raw.bad[0]))
    return Source(frame=raw.frame, file=raw.file, lines=raw.lines)


def read_ids(path: Path) -> Source:
    """Return a column `user`: of a table that has it, or else each line of a text file."""
    if path.suffix.lower() not in _PARQUET:
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist") from error
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read {path}: {error}") from error
        head = lines[0].replace("\t", ",").replace('"', "").split(",") if lines else []
        if "user" not in [field.strip() for field in head]:
            filled = [n for n, line in enumerate(lines) if line.strip()]
            names = [lines[n].strip() for n in filled]
            numbers = np.array(filled, np.int64) + 1
            frame = pl.DataFrame({"user": names}, schema={"user": pl.String})
            return Source(frame=frame, file=str(path), lines=numbers)
    return read_source(path)


def names_of(data: str, federation: Federation) -> pl.Series:
    """Return the ids of all people of a run's data, in their order.

    Raises:
        DataError: They cannot be read, or are of other people.
    """
    if federation.names is not None:
        return pl.Series(federation.names, dtype=pl.String)
    folder = Path(data)
    if data.partition(":")[0] == "synthetic":
        return pl.Series(np.arange(federation.n_clients)).cast(pl.String)
    if data in PUBLISHED:
        users = load_published(data).users
    elif folder.is_dir():
        # The lines need not be read again.
        users = pl.read_parquet(folder / "users.parquet", columns=["id"], glob=False)
    else:
        raise DataError(f"the ids of people cannot be read: {data!r} is no data folder")
    names = ids_of(users["id"], "users")
    if not np.array_equal(
        person_ids(names.to_list()), federation.ids(np.arange(federation.n_clients))
    ):
        raise DataError(f"the people in {data} are others than those of the run")
    return names


def positions_of(source: Source, names: pl.Series) -> IntArray:
    """Return the positions of the people in the column `user`, each once, in that order."""
    require(source.frame, "user", source.file)
    asked = ids_of(source.frame["user"], f"{source.file} column 'user'")
    known = pl.DataFrame({"id": names, "position": np.arange(names.len())})
    found = asked.to_frame("id").join(known, on="id", how="left", maintain_order="left")
    missing = found["position"].is_null().arg_true()
    if missing.len():
        row = int(missing[0])
        raise DataError(
            f"{source.at(row)}: unknown user {asked[row]!r}{nearest(asked[row], names)}"
        )
    if found.height == 0:
        raise DataError(f"{source.file} names nobody")
    return found["position"].unique(maintain_order=True).to_numpy().astype(np.int64)


def newcomers_of(source: Source, catalogue: Catalogue) -> tuple[pl.Series, Clients]:
    """Return the names and data of people by a table with columns user, item and perhaps value.

    An item is given by id or title. A value is a like if it is greater than the data set's
    `positive_above`, as in training; without values every line is a like. Nothing else is known of
    these people: their features count as missing.
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
        # All have the id of a device that has none, so that each gets the list of `Device`.
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
