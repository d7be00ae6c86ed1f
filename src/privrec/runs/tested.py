"""The figures of each person who was tested, so that two evaluations can be paired over people.

They are computed from raw data and lie in `simulation/`. A person is known by her number, which is
a hash of her id.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from privrec.errors import RunFolderError
from privrec.evaluation.metrics import KS
from privrec.evaluation.people import People
from privrec.evaluation.ranking import Tested
from privrec.runs import records

_OF_REFERENCE = "hits of "
_NEAR = 1e-5
"""How far the means of figures in 32 bits may be off."""


def people_of(tested: Tested, references: Mapping[str, Tested]) -> People:
    """Return the figures of each person.

    `references` are what the references reached for the same people.
    """
    return People(
        ids=tested.ids,
        hits=tested.figures.hits,
        new_only=tested.figures.new_only,
        digest=tested.digest,
        references={name: one.figures.hits for name, one in references.items()},
    )


def tested_path(evaluation: Path) -> Path:
    """Return where the figures of each person are, beside an `evaluation….json`."""
    ending = evaluation.stem.removeprefix("evaluation")
    return evaluation.with_name(f"tested{ending}.safetensors")


def write_people(evaluation: Path, people: People) -> None:
    """Write the figures of each person beside an `evaluation….json`, in 32 bits."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "ids": people.ids,
        "hits": people.hits.astype(np.float32),
        "new_only": people.new_only.astype(np.float32),
    }
    for name, hits in people.references.items():
        arrays[f"{_OF_REFERENCE}{name}"] = hits.astype(np.float32)
    records.write_arrays(tested_path(evaluation), arrays, {"digest": people.digest})


def read_people(evaluation: Path, hits: Mapping[str, float]) -> People | None:
    """Return the figures of each person; None if there is no whole file of them.

    `hits` are the Hits@k in the `evaluation….json`. They must be the means of the figures, which
    belong to another evaluation otherwise.
    """
    path = tested_path(evaluation)
    if not path.is_file():
        return None
    arrays = records.read_arrays(path)
    if not arrays.keys() >= {"ids", "hits", "new_only"}:
        return None
    figures = {name: one.astype(np.float64) for name, one in arrays.items() if name != "ids"}
    shape, mean = (*arrays["ids"].shape, len(KS)), [hits[str(k)] for k in KS]
    if {one.shape for one in figures.values()} != {shape} or not np.allclose(
        figures["hits"].mean(axis=0), mean, atol=_NEAR
    ):
        raise RunFolderError(f"{path} is not of {evaluation.name}: evaluate again")
    return People(
        ids=arrays["ids"],
        hits=figures["hits"],
        new_only=figures["new_only"],
        digest=str(records.read_about(path).get("digest", "")),
        references={
            name.removeprefix(_OF_REFERENCE): one
            for name, one in figures.items()
            if name.startswith(_OF_REFERENCE)
        },
    )
