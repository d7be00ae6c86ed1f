"""What may be released of a run, as one file that a phone can rank with.

A zip archive: `model.json` (settings and what the run promises), `statement.txt`, `ledger.jsonl`,
`catalogue.json`, and the parameters as `params/NAME.npy`. The same run gives the same bytes.
"""

import io
import json
import warnings
import zipfile
from pathlib import Path

import numpy as np

from privrec.data.catalogue import ITEM_LIST, Catalogue, to_json
from privrec.data.text import natural_order
from privrec.device import FORMAT, read_model
from privrec.errors import PrivacyWarning, RunFolderError
from privrec.runs import records
from privrec.runs.run import Run

# A constant time stamp, the earliest that zip allows: the same run gives the same bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def export_run(run: Run, path: Path) -> None:
    """Write what may be released of a finished run to a file, whole or not at all."""
    if path.is_dir():
        raise RunFolderError(f"{path} is a folder: --out takes the name of a file")
    model = run.model()
    if other := [name for name, array in model.params.items() if array.dtype != np.float32]:
        # The matching of fedgnn: its key, and vectors of single people.
        raise RunFolderError(
            f"a run of {run.config.recipe} with {other[0]!r} cannot be exported: devices were told"
            " this of each other, and it is not for others"
        )
    _warn_of_order(model.catalogue)
    # The path of the data is private: leave it out.
    settings = {**model.settings, "data": model.catalogue.name}
    about = {"format": FORMAT, "settings": settings, "privacy": dict(model.privacy)}
    with records.words(run.folder.ledger_path, "read"):
        ledger = run.folder.ledger_path.read_bytes()
    texts = {
        "model.json": json.dumps(about, indent=2).encode() + b"\n",
        "statement.txt": model.privacy["statement"].encode() + b"\n",
        "ledger.jsonl": ledger,
        "catalogue.json": to_json(model.catalogue).encode(),
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, text in texts.items():
            _add(file, name, text, zipfile.ZIP_DEFLATED)
        for name in sorted(model.params):
            array = io.BytesIO()
            np.save(array, np.asarray(model.params[name], order="C"), allow_pickle=False)
            _add(file, f"params/{name}.npy", array.getvalue(), zipfile.ZIP_STORED)
    # Raises if it cannot be opened, or its parameters, catalogue and settings are not of one run.
    read_model(content, str(path)).device()
    records.write_whole(path, content.getvalue())


def _warn_of_order(catalogue: Catalogue) -> None:
    """Warn of a run of an older version, whose items may stand in the order of people's lines."""
    ids = list(catalogue.item_ids)
    if ITEM_LIST in catalogue.undeclared and ids != sorted(ids, key=natural_order):
        warnings.warn(
            "the items of this run stand in the order in which they were found, which can tell who"
            " has what: train again before you release it",
            PrivacyWarning,
            stacklevel=3,
        )


def _add(file: zipfile.ZipFile, name: str, content: bytes, compression: int) -> None:
    entry = zipfile.ZipInfo(name, date_time=_NO_TIME)
    entry.compress_type = compression
    file.writestr(entry, content)
