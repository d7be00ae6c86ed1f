"""Runs one part of a reproduction and stores its result.

A part is a recipe that is trained and tested, an attack, or a measurement. The file name of its
result is a hash of what the result depends on: the settings, the data, the seed, and the code. So
all tables that need the part find this file. It is written completely and then renamed, so an
existing file means a finished part.
"""

import ast
import gc
import hashlib
import json
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
from pydantic import Field

from privrec.algorithms.recipes import configure, recipe_named
from privrec.data.federation import chunks
from privrec.errors import PrivacyWarning, RunFolderError
from privrec.evaluation.intervals import People
from privrec.privacy.paper import paper_row
from privrec.reproduce.cell import FRAPPE, MOVIELENS, Cell, Kind
from privrec.reproduce.meta_cost import seconds_of_rounds
from privrec.runs.documents import Attack, Document, Evaluation
from privrec.runs.evaluate import read_people, write_evaluation
from privrec.runs.folder import write_whole
from privrec.runs.loop import train
from privrec.simulate.cost import process_memory

ACTIVE = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
"""The points of the activity curve: the share of people with at least this many items."""
_MUCH = 2.0e9
"""If a process has more bytes after a part, its compiled programs are dropped. Chosen by hand."""
_ROOT = Path(__file__).parents[1]
_SHAPING = (
    *("algorithms", "attacks", "core", "data", "evaluation", "privacy"),
    *("seeds", "settings", "simulate"),
)
"""Packages and modules whose code changes figures. Comments and docstrings do not count."""
_STARTS: Mapping[Kind, tuple[str, ...]] = {
    "run": ("core.round", "evaluation.ranking", "runs.evaluate"),
    "attack": ("core.round", "attacks.membership"),
    "rounds": ("core.round", "reproduce.meta_cost"),
    "epsilons": ("privacy.paper",),
    "activity": ("data.sources",),
}


Attacking = Callable[..., Attack]
"""The type of `attacks.membership.attack`. A command passes this function, because importing it
here would make the chains of imports too long (`tests/test_architecture.py`)."""


class Kept(Document):
    """`cells/HASH.json`: the kind and name of a part, its duration in seconds, and its figures.

    The figures of a run are in `evaluation-HASH.json` in the same folder.
    """

    kind: str
    name: str
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    figures: Any = None


def key_of(cell: Cell) -> str:
    """Return the hash of what the result of a part depends on."""
    needs_data = cell.kind != "epsilons"
    # A recipe that chooses settings does not change those given, even if they have their default
    # values. So a part with given settings differs from a part without them.
    chooses = bool(cell.recipe) and recipe_named(cell.recipe).choice is not None
    shaped = {
        **asdict(cell),
        "settings": cell.settings if chooses else {},
        "source": cell.source.data,
        "fingerprint": cell.source.load().fingerprint if needs_data else "",
        "config": cell.config().model_dump(mode="json") if cell.recipe else {},
        "code": code_version(cell.kind, cell.recipe),
    }
    text = json.dumps(shaped, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def place_of(cells: Path, key: str) -> Path:
    """Return the file of a part, which exists if the part is finished."""
    return cells / f"{key}.json"


def read_part(cells: Path, key: str) -> Kept | None:
    """Return the result of a part; None if the part is not finished."""
    return Kept.read(place_of(cells, key), remedy="remove it and go on")


def read_run(cells: Path, key: str) -> tuple[Evaluation, People | None]:
    """Return the figures of a finished run, and those of each person."""
    path = cells / f"evaluation-{key}.json"
    remedy = f"remove {place_of(cells, key)} and go on"
    evaluation = Evaluation.read(path, remedy=remedy)
    if evaluation is None:
        raise RunFolderError(f"{path} is not there: {remedy}")
    return evaluation, read_people(path, evaluation.hits)


def play(cell: Cell, cells: str, key: str, attack: Attacking) -> None:
    """Run a part and write its result; `attack` is the function that runs an attack."""
    begun = time.perf_counter()
    # These runs are experiments and protect nobody.
    with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
        if cell.kind == "attack":
            figures = _play_attack(cell, Path(cells), key, attack)
        else:
            figures = _PLAYS[cell.kind](cell, Path(cells), key)
    seconds = round(time.perf_counter() - begun, 2)
    kept = Kept(kind=cell.kind, name=cell.name, seconds=seconds, figures=figures)
    write_whole(place_of(Path(cells), key), kept.text())
    if process_memory() > _MUCH:
        jax.clear_caches()  # type: ignore[no-untyped-call]
        gc.collect()


def _play_run(cell: Cell, cells: Path, key: str) -> None:
    run = train(
        cell.recipe, cell.source.load(), progress=False, seed=cell.seed, **dict(cell.settings)
    )
    evaluation = run.evaluate(references=[], progress=False)
    write_evaluation(cells / f"evaluation-{key}.json", evaluation)


def _play_attack(cell: Cell, cells: Path, key: str, attack: Attacking) -> Any:
    models = cells / f"models-{key}"
    given = {**cell.asked, **cell.settings}
    document = attack(cell.recipe, cell.source.load(), out=models, seed=cell.seed, **given)
    shutil.rmtree(models, ignore_errors=True)
    return document.as_json()


def _play_activity(cell: Cell, cells: Path, key: str) -> Any:
    """Return the shares of people for `ACTIVE`, the median of items, the share below the mean."""
    federation, counts = cell.source.load(), []
    for positions in chunks(np.arange(federation.n_clients)):
        people = federation.take(positions)
        pairs = np.unique(np.stack([people.owner, people.item]), axis=1)
        counts.append(np.bincount(pairs[0], minlength=len(people)))
    items = np.concatenate(counts)
    shares = {str(least): float((items >= least).mean()) for least in ACTIVE}
    below = float((items < items.mean()).mean())
    return {"shares": shares, "median": float(np.median(items)), "below_mean": below}


_PLAYS: Mapping[Kind, Callable[[Cell, Path, str], Any]] = {
    "run": _play_run,
    "rounds": lambda cell, cells, key: seconds_of_rounds(cell.source.load(), **dict(cell.asked)),
    "epsilons": lambda cell, cells, key: [
        asdict(one) for one in paper_row(cell.source.of, cell.asked["cohort"])
    ],
    "activity": _play_activity,
}


def work_of(cell: Cell) -> float:
    """Return the work of a part relative to the same recipe with its default settings."""
    if cell.kind != "run":
        return 1.0
    usual = configure(cell.recipe, cell.source.load().name, {})
    return _visits(cell.config()) / max(_visits(usual), 1)


def _visits(config: Any) -> int:
    """Return the total number of local epochs over all devices and rounds."""
    keys = ("rounds", "cohort", "local_epochs")
    return int(np.prod([getattr(config, key, 1) for key in keys]))


# --- about how long parts take -------------------------------------------------------------------


class Seconds(NamedTuple):
    """Seconds to train with the recipe's own settings, and seconds to test."""

    train: float
    test: float = 10.0


_USUAL: Mapping[str, Seconds] = {
    "run": Seconds(4, 2),
    "attack": Seconds(20, 0),
    "rounds": Seconds(15, 0),
    "epsilons": Seconds(2, 0),
    "activity": Seconds(1, 0),
}
"""The seconds of a part on small data, by kind."""
_RUNS: Mapping[str, Mapping[str, Seconds]] = {
    MOVIELENS: {
        "nn-self": Seconds(880, 30),
        "fedgnn": Seconds(375),
        "fofl-self": Seconds(360, 30),
        "privrec-paper": Seconds(316, 123),
        "privrec-cen": Seconds(310, 30),
        "privrec": Seconds(245, 30),
        "ncf": Seconds(115, 20),
        "privrec-sgd": Seconds(100),
        "dp-privrec": Seconds(150, 20),
        "dp-privrec-one": Seconds(50, 20),
        "privrec-plus": Seconds(50),
        "fcf": Seconds(40),
        "lm-privrec": Seconds(15, 20),
    },
    FRAPPE: {
        "privrec-paper": Seconds(192, 15),
        "nn-self": Seconds(175, 5),
        "privrec": Seconds(150, 5),
        "privrec-cen": Seconds(125, 5),
        "dp-privrec": Seconds(60, 5),
        "fofl-self": Seconds(55, 5),
        "privrec-sgd": Seconds(50, 5),
        "fedgnn": Seconds(34, 5),
        "ncf": Seconds(20, 5),
        "privrec-plus": Seconds(18, 5),
        "dp-privrec-one": Seconds(15, 5),
    },
}
_OTHER_RUNS = Seconds(15, 5)
_MODELS = 10
"""The number of models of an attack: five target models and their shadow models."""


def estimates(cells: Mapping[str, Cell], folder: Path) -> dict[str, float]:
    """Return the seconds of each part: measured for finished parts, else estimated by a table.

    The estimates are scaled by the measured times of finished parts with the same recipe and data,
    or else with the same kind and data, or else by the machine's speed.
    """
    kept = {key: read_part(folder, key) for key in cells}
    factors: dict[tuple[str, str], list[float]] = {}
    for key, one in kept.items():
        if one is not None:
            factor = one.seconds / expected(cells[key])
            for like in _likes(cells[key]):
                factors.setdefault(like, []).append(factor)
    seconds = {}
    for key, cell in cells.items():
        done = kept[key]
        known = [factors[like] for like in _likes(cell) if like in factors]
        factor = statistics.median(known[0]) if known else machine_factor()
        seconds[key] = factor * expected(cell) if done is None else done.seconds
    return seconds


@cache
def machine_factor() -> float:
    """Return this machine's time divided by that of the table's machine, for a short program."""
    return min(max(min(_short_program() for _ in range(5)) / _SHORT_PROGRAM, 0.25), 4.0)


_SHORT_PROGRAM = 0.055
"""Seconds of `_short_program` on the machine of the table, while both of its cores were busy."""


def _short_program() -> float:
    begun, values = time.perf_counter(), np.full((64, 128), 0.5, np.float32)
    for k in range(20_000):
        values = np.tanh(values + 0.01 * (k % 7))
    return time.perf_counter() - begun


def _likes(cell: Cell) -> tuple[tuple[str, str], ...]:
    return (f"{cell.kind} {cell.recipe}", cell.source.title), (cell.kind, cell.source.title)


def expected(cell: Cell) -> float:
    """Return the seconds of a part according to the table."""
    known = _RUNS.get(cell.source.title)
    if known is None or cell.kind not in ("run", "attack"):
        train, test = _USUAL[cell.kind]
    else:
        train, test = known.get(cell.recipe, _OTHER_RUNS)
    if cell.kind == "attack" and known is not None:
        return _MODELS * (train + test)
    return max(work_of(cell) * train + test, 0.1)


# --- the version of the code --------------------------------------------------------------------


@cache
def code_version(kind: Kind, recipe: str) -> str:
    """Return a hash of the code that a part runs: its start modules and what they import.

    Indirect imports count too. A module counts if it is in `_SHAPING` or is a start module.
    """
    starts = [f"privrec.{name}" for name in _STARTS[kind]]
    if recipe:
        starts += _homes(recipe)
    digest = hashlib.sha256()
    for name in sorted(_reached(starts)):
        if name in starts or name.split(".")[1] in _SHAPING:
            digest.update(f"{name}\n{_code_of(name)[0]}\n".encode())
    return digest.hexdigest()[:16]


def _homes(recipe: str) -> list[str]:
    """Return the modules that define the recipe, without the table of all recipes."""
    known = recipe_named(recipe)
    return [
        name
        for name, module in sorted(sys.modules.items())
        if name.startswith("privrec.algorithms.")
        and name not in _TABLE
        and any(value is known for value in vars(module).values())
    ]


def _reached(starts: list[str]) -> set[str]:
    """Return the modules of privrec that these modules import, directly or indirectly.

    Imports of modules outside of `_SHAPING` are not followed. Neither are those of the table of
    recipes, so that a change of one recipe does not invalidate the figures of another.
    """
    reached: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name in reached or name in _TABLE:
            continue
        reached.add(name)
        if name in starts or name.split(".")[1] in _SHAPING:
            waiting += _code_of(name)[1]
    return reached


_TABLE = frozenset({"privrec.algorithms.recipes"})
"""This module imports all recipes; that of the part's own recipe is a start module."""


@cache
def _code_of(name: str) -> tuple[str, list[str]]:
    """Return a module's code without comments and docstrings, and its imports of privrec modules.

    The code of a package is empty.
    """
    if not _is_module(name):
        return "", []
    tree = ast.parse(_file_of(name).read_text(encoding="utf-8"))
    imported: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("privrec."):
            both = [f"{node.module}.{alias.name}" for alias in node.names]
            imported += [str(node.module), *filter(_is_module, both)]
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
    return ast.dump(tree), imported


def _is_module(name: str) -> bool:
    return _file_of(name).is_file()


def _file_of(name: str) -> Path:
    return _ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py")


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
