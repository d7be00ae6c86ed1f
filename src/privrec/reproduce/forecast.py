"""About how long parts take: from a table of measured seconds, scaled by the parts that are kept.

Seconds are those of one core while the other one is busy too.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from privrec.reproduce.cell import Cell
from privrec.reproduce.keeping import read_part, work_of
from privrec.reproduce.scale import FRAPPE, MOVIELENS


class Seconds(NamedTuple):
    """Seconds to train with the recipe's own settings, and to test."""

    train: float
    test: float = 10.0


_USUAL: Mapping[str, Seconds] = {
    "run": Seconds(4, 2),
    "attack": Seconds(20, 0),
    "rounds": Seconds(15, 0),
    "epsilons": Seconds(2, 0),
    "activity": Seconds(1, 0),
}
"""Of small data, by kind."""
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
"""Models of an attack: five targets and their shadows."""


def estimates(cells: Mapping[str, Cell], folder: Path) -> dict[str, float]:
    """Return about how long each part takes: as it took, or as the table says.

    The table is corrected by the parts that are kept: those of the same recipe and data, or else
    all that are of the same data.
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
        factor = statistics.median(known[0]) if known else 1.0
        seconds[key] = factor * expected(cell) if done is None else done.seconds
    return seconds


def _likes(cell: Cell) -> tuple[tuple[str, str], ...]:
    return (f"{cell.kind} {cell.recipe}", cell.source.title), (cell.kind, cell.source.title)


def expected(cell: Cell) -> float:
    """Return the seconds of a part by the table."""
    known = _RUNS.get(cell.source.title)
    if known is None or cell.kind not in ("run", "attack"):
        train, test = _USUAL[cell.kind]
    else:
        train, test = known.get(cell.recipe, _OTHER_RUNS)
    if cell.kind == "attack" and known is not None:
        return _MODELS * (train + test)
    return max(work_of(cell) * train + test, 0.1)
