"""Loading data as a federation: a built-in data set, a data folder, or a frame."""

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from privrec.data.catalogue import Catalogue
from privrec.data.federation import Federation, chunks
from privrec.data.frames import as_polars, column_name, is_frame
from privrec.data.importing import ImportResult, import_files
from privrec.data.published import PUBLISHED, load_published, places, search_folders
from privrec.data.rawvalues import RawTable
from privrec.data.synthetic import SyntheticSettings, synthetic
from privrec.data.tables import read_folder, to_federation
from privrec.errors import DataError, PrivrecError, SettingsError, check_kind, got, nearest

BUILT_IN: dict[str, str] = {
    "synthetic": "made-up people with known tastes; any size: synthetic:users=100000,items=2000",
    **{name: f"{published.cite}" for name, published in PUBLISHED.items()},
}


def load(
    data: object,
    *,
    user: str | None = None,
    item: str | None = None,
    value: str | None = None,
    time: str | None = None,
    title: str | None = None,
    context: Sequence[str] = (),
    users: object = None,
    items: object = None,
    test: object = None,
    positive_above: float | None = None,
    name: str | None = None,
    population: str | None = None,
    skip_bad: bool = False,
    public_item_features: bool = False,
) -> Federation:
    """Return the federation of a built-in name, a data folder, or a frame of polars or pandas.

    `synthetic` takes settings: `synthetic:users=1000000,seed=3`. The other arguments are for frames
    alone. `user`, `item`, `value` and `time` name columns of the frame, and `title` a column of
    `items`. Usual names such as `user_id` or `rating` are found without them. `context` lists
    context columns. `users` and `items` are frames of ids and features. `test` has lines for
    testing, with the columns of `data`. A value above `positive_above` is a like. `population`
    (default: `name`, the name of the data) names the people in ledgers. `skip_bad` leaves out rows
    that cannot be used. A given `items` or `positive_above` counts as public: chosen without
    looking at people's data. `public_item_features` declares the same of all columns of `items`.
    """
    roles = {"user": user, "item": item, "value": value, "time": time, "title": title}
    mapping = {role: column_name(role, c) for role, c in roles.items() if c is not None}
    tables = {"users": users, "items": items, "test": test}
    others = {"name": name, "population": population, "positive_above": positive_above}
    switches = {"skip_bad": skip_bad, "public_item_features": public_item_features}
    if not is_frame(data):
        given = {**mapping, **tables, **others, "context": context or None}
        given |= {key: switch or None for key, switch in switches.items()}
        if asked := [key for key, argument in given.items() if argument is not None]:
            raise SettingsError(
                f"`{asked[0]}` is about a frame of polars or pandas; `data` is {got(data)}"
            )
        return data if isinstance(data, Federation) else _load_named(data)
    check_kind("context", context, (list, tuple), "a list of columns")
    for key, switch in switches.items():
        check_kind(key, switch, (bool, np.bool_), "True or False")
    above = 0 if positive_above is None else positive_above
    check_kind("positive_above", above, (int, float, np.number), "a number")
    return _import_frames(
        population=_text("population", population) or own_name(name),
        source=_table(data, "the frame"),
        users=None if users is None else _table(users, "the frame of users"),
        items=None if items is None else _table(items, "the frame of items"),
        test=None if test is None else _table(test, "the frame of test lines"),
        mapping=mapping,
        name=own_name(name),
        context=[column_name("context", column) for column in context],
        positive_above=None if positive_above is None else float(positive_above),
        form="table",
        **switches,
    )


def _import_frames(population: str, **how: Any) -> Federation:
    try:
        result = import_files(**how)
        manifest = replace(result.tables.manifest, population=population)
        federation = to_federation(replace(result.tables, manifest=manifest))
    except PrivrecError as error:
        raise type(error)(_in_python(str(error))) from error
    _warn(result)
    return replace(federation, names=result.tables.users["id"].cast(pl.String).to_list())


def _table(data: object, file: str) -> RawTable:
    frame = as_polars(data, file)
    return RawTable(file=file, frame=frame, lines=np.arange(frame.height), is_text=False)


def _warn(result: ImportResult) -> None:
    for warning in result.warnings:
        warnings.warn(_in_python(warning), UserWarning, stacklevel=4)
    if result.skipped:
        count, first = len(result.skipped), result.skipped[0]
        what = "1 bad row was" if count == 1 else f"{count:,} bad rows were"
        warnings.warn(f"{what} left out; the first: {first}", UserWarning, stacklevel=4)


def _in_python(message: str) -> str:
    """Return an import's message with the arguments of `load` instead of command-line options."""
    message = message.replace("--public-item-features", "--public_item_features")
    message = re.sub(r"`--(?:map )?(\w+)(?:=…)?`", r"`\1`", message)
    message = re.sub(r"--map (user|item|time|title)=", r"\1=", message)
    message = message.replace("--skip-bad", "skip_bad=True")
    return re.sub(r" \([^()]*--[^()]*\)", "", message)


def named(data: object) -> tuple[str, Callable[[], Federation]]:
    """Return the name of the data in settings, and a function that loads the data."""
    if isinstance(data, str | PathLike):
        name = fspath(data)
        return str(name), lambda: load(name)
    federation = load(data)
    return federation.name, lambda: federation


def load_begun(data: object, begun_with: Callable[[], Catalogue]) -> Federation:
    """Return the data of a run, with the items in the order of the run's own catalogue.

    Only runs of older versions have another order: that of the table in the data folder.
    """
    federation = load(data)
    if not isinstance(data, str | PathLike) or not Path(data).is_dir():
        return federation
    ids, begun = list(federation.catalogue.item_ids), list(begun_with().item_ids)
    if begun == ids or sorted(begun) != sorted(ids):
        return federation
    return to_federation(read_folder(Path(data)), item_order=begun)


def own_name(name: str | None) -> str:
    """Return the name of a user's own data; raise if built-in data have this name."""
    own = _text("name", name) or "frame"
    if own.partition(":")[0] in BUILT_IN:
        raise SettingsError(f"`name` must not be that of built-in data; got {own!r}")
    return own


def _text(what: str, given: str | None) -> str:
    check_kind(what, given or "", str, "text")
    return given or ""


def _load_named(given: object) -> Federation:
    must = "a built-in name, a data folder, or a frame of polars or pandas"
    check_kind("data", given, (str, PathLike), must)
    data = str(given)
    name, _, settings = data.partition(":")
    if name == "synthetic":
        return synthetic(_synthetic_settings(settings))
    if name in PUBLISHED and not settings:
        return to_federation(load_published(name))
    folder = Path(data)
    if (folder / "config.toml").is_file() and not (folder / "dataset.toml").is_file():
        raise DataError(f"data {data!r} is a run folder, not data; its config.toml names its data")
    if folder.is_dir():
        return to_federation(read_folder(folder))
    what = (
        "is a file, not a data folder" if folder.exists() else "is no built-in name and no folder"
    )
    hint = nearest(name, BUILT_IN) or "; see 'privrec data list', or 'privrec data import'"
    raise DataError(f"data {data!r} {what}{hint}")


def _synthetic_settings(text: str) -> SyntheticSettings:
    known = [field.name for field in fields(SyntheticSettings)]
    given: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key not in known:
            raise SettingsError(f"synthetic: unknown key {key!r}{nearest(key, known)}")
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            raise SettingsError(f"synthetic: `{key}` must be a whole number; got {value!r}")
        given[key] = int(value)
    return SyntheticSettings(**given)


def is_here(name: str) -> bool:
    """Return whether a built-in data set can be loaded without a download."""
    if name not in PUBLISHED:
        return True
    return any(places(folder, PUBLISHED[name]) for folder in search_folders())


def describe_data(data: str) -> dict[str, Any]:
    """Return the numbers of people, items, interactions and likes, and the features."""
    federation = load(data)
    sizes: list[np.ndarray] = []
    liked = tested = 0
    for part in chunks(np.arange(federation.n_clients)):
        clients = federation.take(part)
        sizes.append(clients.sizes)
        liked += int(clients.liked.sum())
        tested += 0 if federation.take_test is None else len(federation.take_test(part).item)
    counts = np.concatenate(sizes)
    return {
        "name": federation.name,
        "people": federation.n_clients,
        "items": federation.n_items,
        "interactions": int(counts.sum()),
        "likes": liked,
        **({} if federation.take_test is None else {"interactions in the test file": tested}),
        "a value is a like above": federation.catalogue.positive_above,
        "interactions per person, median": float(np.median(counts)),
        "interactions per person, largest": int(counts.max()),
        "people return to the same item": federation.repeats,
        "lines have a time": federation.has_times,
        "not declared public": list(federation.catalogue.undeclared),
        "features": [
            {"name": f.name, "side": f.side, "kind": f.kind, "values": f.rows}
            for f in federation.schema.features
        ],
    }
