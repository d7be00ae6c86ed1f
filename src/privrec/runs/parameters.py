"""`params.safetensors`: what a run has learned, with a mark that says of which run it is.

The promise of a run is that of its ledger. Parameters of another run are not covered by it, so they
are refused, also if they would fit in shape.
"""

import hashlib
from collections.abc import Mapping

import jax
import numpy as np

from privrec.errors import RunFolderError
from privrec.runs.ledgerfile import read_ledger
from privrec.runs.records import (
    RunFolder,
    read_about,
    read_arrays,
    read_run,
    words,
    write_arrays,
)
from privrec.types import Params


def write_params(folder: RunFolder, params: Params, *, recipe: str, rounds: int) -> None:
    """Write the parameters of a run that is done: its last file."""
    arrays = {name: np.asarray(value) for name, value in params.items()}
    about = {"recipe": recipe, "rounds": str(rounds), "run": _mark(folder, str(rounds))}
    write_arrays(folder.params_path, arrays, about)


def load_params(folder: RunFolder) -> dict[str, jax.Array]:
    """Return the parameters of a finished run; raise if they are those of another run."""
    path = folder.params_path
    if not path.is_file():
        raise RunFolderError(
            f"{folder.path} is not finished: it has no params.safetensors; go on with --resume"
        )
    _check_own(folder, read_about(path))
    return {name: jax.numpy.asarray(array) for name, array in read_arrays(path).items()}


def _check_own(folder: RunFolder, about: Mapping[str, object]) -> None:
    path, recipe = folder.params_path, read_run(folder.path)[1]["recipe"]
    if (its := about.get("recipe", recipe)) != recipe:
        raise RunFolderError(
            f"{path} is of another run: its recipe is {its!r}, and config.toml has {recipe!r}"
        )
    # Folders from before there were marks have none; the scorer compares shapes.
    if "run" in about and about["run"] != _mark(folder, about.get("rounds")):
        raise RunFolderError(
            f"{path} is of another run: it was not made with this config.toml and ledger.jsonl"
        )


def _mark(folder: RunFolder, rounds: object) -> str:
    """Return the mark of a run: a hash of its settings, its ledger and its number of rounds.

    The last line of a ledger has a hash over all lines. Under secure noise the lines have hashes of
    what was published, so two such runs never have the same mark.
    """
    lines = read_ledger(folder)
    with words(folder.config_path, "read"):
        content = folder.config_path.read_bytes().splitlines(keepends=True)
    # Data may be moved: its fingerprint is compared elsewhere, and its path is not part of a run.
    kept = b"".join(line for line in content if not line.startswith(b"data = "))
    settings = hashlib.sha256(kept).hexdigest()
    parts = ["privrec run", settings, lines[-1]["chain"] if lines else "", str(rounds)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
