"""Prints what a compact export of a run weighs and hits, by the length of its vectors.

    python bench/compact.py RUN [DIMENSIONS …]

The first line is the plain export, the second one the compact export as `privrec export` writes it.
"""

import io
import sys
import zipfile
from collections.abc import Mapping

import numpy as np

from privrec.algorithms.privrec_plus.scoring import layout_in
from privrec.device import read_model
from privrec.runs.api import open_run
from privrec.runs.evaluate import checked_asked, evaluate_run, tested_by
from privrec.runs.journal import load_params
from privrec.runs.packing import archive, compact_members
from privrec.runs.run import exported
from privrec.types import Leaf


def main(path: str, dimensions: list[int]) -> int:
    run = open_run(path)
    tested = tested_by(run.prepared, None, None)
    asked = checked_asked(protocol=None, candidates=None, references=[], memory_gb=4)
    params = {name: np.asarray(array) for name, array in load_params(run.folder).items()}
    layout = layout_in(run.catalogue.schema, run.catalogue.n_items, {*params})

    def show(name: str, size: int, some: Mapping[str, Leaf]) -> None:
        found = evaluate_run(tested, some, run.privacy(), asked=asked, on_progress=None)
        quality = found.hits[20]  # With several held-out items of a person, it is Recall@20.
        width = some["history/like"].shape[1]
        print(f"{name}: {width} dimensions, {size:,} bytes, {quality:.5f}", flush=True)

    show("plain", len(exported(run, path).content), params)
    whole = exported(run, path, compact=True).content
    model = read_model(io.BytesIO(whole), path)
    show("compact", len(whole), model.params)
    with zipfile.ZipFile(io.BytesIO(whole)) as file:
        texts = {name: file.read(name) for name in file.namelist() if "/" not in name}
    for size in dimensions:
        content = archive(texts, compact_members(params, layout, size))
        show("cut", len(content), read_model(io.BytesIO(content), path).params)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], [int(word) for word in sys.argv[2:]]))
