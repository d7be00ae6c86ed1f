"""A person's device: Python with numpy and JavaScript, side by side, with 27,000 items."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from figures import Figure
from privrec.algorithms.privrec_plus.scoring import layout_in
from privrec.data.catalogue import Catalogue, to_json
from privrec.data.schema import Schema
from privrec.runs.packing import archive, compact_members, members

ITEMS, SIZE, TIMES = 27_000, 128, 5
PROGRAM = Path(__file__).parents[1] / "device" / "bench.mjs"
PYTHON = """
import json, sys, time, io
import privrec.device as device
content = open(sys.argv[1], "rb").read()
start = time.process_time()
model = device.read_model(io.BytesIO(content), "it")
likes = [model.catalogue.item_ids[0]]
model.device(likes=likes).recommend(20)
first = time.process_time() - start
each = []
for item in model.catalogue.item_ids[1:21]:
    likes.append(item)
    start = time.process_time()
    model.device(likes=likes).recommend(20)
    each.append(time.process_time() - start)
print(json.dumps({"first": 1000 * first, "like": 1000 * sorted(each)[10]}))
"""


def device() -> list[Figure]:
    """Return what the first list and each like take, of the fastest of some processes in turn.

    It is processor time: on a machine with nothing else to do, the time that a person waits.
    """
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for compact in (False, True):
            path = Path(folder) / "model.privrec"
            _export(path, compact=compact)
            commands = ([sys.executable, "-c", PYTHON], ["node", str(PROGRAM)])
            ran = [[_run([*words, str(path)]) for words in commands] for _ in range(TIMES)]
            best = [
                {key: min(pair[side][key] for pair in ran) for key in ran[0][side]}
                for side in (0, 1)
            ]
            kind = "compact" if compact else "plain"
            names = {"first": "the first list from the bytes", "like": "a list after one more like"}
            figures += [
                Figure(
                    name=f"JavaScript, {kind}, {path.stat().st_size / 1e6:.1f} MB: {name}",
                    value=best[1][key],
                    unit="ms of CPU",
                    against="numpy",
                    against_value=best[0][key],
                )
                for key, name in names.items()
            ]
            figures.append(
                Figure(
                    name=f"JavaScript, {kind}: memory beyond Node's own",
                    value=best[1]["memory"] / 1e6,
                    unit="MB",
                    against="100 MB",
                    against_value=100.0,
                )
            )
    return figures


def _export(path: Path, *, compact: bool) -> None:
    draw = np.random.default_rng(0)
    shapes = {"history/like": (ITEMS, SIZE), "items/out": (ITEMS, SIZE), "items/bias": (ITEMS,)}
    params = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    catalogue = Catalogue(
        name="bench",
        schema=Schema(features=()),
        item_ids=[f"i{k}" for k in range(ITEMS)],
        titles=[f"A title of some words, number {k}" for k in range(ITEMS)],
        items={},
        positive_above=3.0,
    )
    about = {
        "format": 2 if compact else 1,
        "settings": {"recipe": "privrec-plus"},
        "privacy": {"statement": "none"},
    }
    layout = layout_in(catalogue.schema, ITEMS, {*params})
    arrays = compact_members(params, layout, SIZE) if compact else members(params)
    texts = {"model.json": json.dumps(about), "catalogue.json": to_json(catalogue)}
    path.write_bytes(archive({name: text.encode() for name, text in texts.items()}, arrays))


def _run(command: list[str]) -> dict[str, float]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found
