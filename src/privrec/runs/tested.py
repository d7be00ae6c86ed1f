"""The figures of each person who was tested, so that two evaluations can be paired over people.

They are computed from raw data and lie in `simulation/`. A person is known by her number, which is
a hash of her id.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from privrec.evaluation.intervals import Difference, Floats, differences
from privrec.evaluation.ranking import Tested
from privrec.runs import records
from privrec.types import IntArray


class People(NamedTuple):
    """The numbers of people and their figures, shape (people, len(KS)) each."""

    ids: IntArray
    hits: Floats
    new_only: Floats


def people_of(tested: Tested) -> People:
    """Return the figures of each person, in the order of their numbers."""
    order = np.argsort(tested.ids, kind="stable")
    found = tested.figures
    return People(tested.ids[order], found.hits[order], found.new_only[order])


def tested_path(evaluation: Path) -> Path:
    """Return where the figures of each person are, beside an `evaluation….json`."""
    ending = evaluation.stem.removeprefix("evaluation")
    return evaluation.with_name(f"tested{ending}.safetensors")


def write_people(evaluation: Path, tested: Tested) -> None:
    """Write the figures of each person beside an `evaluation….json`, in 32 bits."""
    people = people_of(tested)
    arrays: dict[str, npt.NDArray[Any]] = {
        "ids": people.ids,
        "hits": people.hits.astype(np.float32),
        "new_only": people.new_only.astype(np.float32),
    }
    records.write_arrays(tested_path(evaluation), arrays, {})


def read_people(evaluation: Path) -> People | None:
    """Return the figures of each person; None if there is no whole file of them."""
    path = tested_path(evaluation)
    if not path.is_file():
        return None
    arrays = records.read_arrays(path)
    if not arrays.keys() >= set(People._fields):
        return None
    return People(
        arrays["ids"], arrays["hits"].astype(np.float64), arrays["new_only"].astype(np.float64)
    )


def paired(ours: People | None, theirs: People | None) -> dict[int, Difference] | None:
    """Return by how much our Hits@k is larger, paired; None unless the same people were tested."""
    if ours is None or theirs is None or not np.array_equal(ours.ids, theirs.ids):
        return None
    return differences(ours.hits, theirs.hits)
