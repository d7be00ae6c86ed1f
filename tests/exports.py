"""Exports of PrivRec+ with random parameters, and what Python's device answers about them."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from privrec.algorithms.privrec_plus.scoring import layout_in
from privrec.data.catalogue import Catalogue, to_json
from privrec.data.schema import Bag, Feature, Schema
from privrec.runs.packing import archive, compact_members, members
from privrec.types import F32

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "privrec" / "web" / "device"
PACKAGE = ROOT / "device"
GOLDEN = PACKAGE / "test" / "golden"
KINDS = ("flat", "closed", "identity", "learn", "hop", "second", "all", "private")
"""What a random model may have. All scores of a flat one are equal."""
FEATURES = (
    Feature(name="town", side="user", kind="categorical", values=("Ulm", "Bern", "Köln")),
    Feature(name="years", side="user", kind="numeric", mean=40.0, scale=12.5),
    Feature(name="tags", side="user", kind="multi", values=("sun", "snow", "sea")),
    Feature(name="place", side="context", kind="categorical", values=("home", "bus")),
    Feature(name="hour", side="context", kind="numeric", mean=12.0, scale=6.0),
    Feature(name="genre", side="item", kind="categorical", values=("a", "b")),
)


def random_catalogue(items: int, *, features: bool = True) -> Catalogue:
    """Return a catalogue with features of each kind, or without any."""
    known = FEATURES if features else ()
    codes = np.arange(items, dtype=np.int32)[:, None] % 2
    bag = Bag(codes=codes, weights=np.ones((items, 1), np.float32))
    return Catalogue(
        name="random",
        schema=Schema(features=known),
        item_ids=[f"i{k}" for k in range(items)],
        titles=[f"Film «{k}»" for k in range(items)],
        items={"embed/item.genre": bag} if features else {},
        positive_above=3.0,
    )


def random_params(kind: str, catalogue: Catalogue, seed: int) -> dict[str, F32]:
    """Return random parameters that fit the catalogue."""
    draw = np.random.default_rng(seed)
    n = catalogue.n_items
    width = n if kind == "identity" else int(draw.integers(1, 9))

    def numbers(*shape: int) -> F32:
        return draw.normal(size=shape).astype(np.float32)

    blocks = {"like": n, "dislike": n}
    for feature in catalogue.schema.features:
        if feature.side != "item" and draw.random() < 0.8:
            blocks[f"{feature.side}.{feature.name}"] = feature.rows
    if kind not in ("flat", "closed", "private") and draw.random() < 0.3:
        del blocks["dislike"]
    params = {f"history/{name}": numbers(rows, width) for name, rows in blocks.items()}
    params["items/bias"] = 0.1 * numbers(n)
    params["items/popularity"] = np.abs(numbers(n))
    if kind != "identity":
        params["items/out"] = numbers(n, width)
    if kind in ("learn", "all"):
        size = int(draw.integers(1, 6))
        params |= {f"learn/{name}": numbers(rows, size) for name, rows in blocks.items()}
        params |= {"learn/out": numbers(n, size), "learn/bias": numbers(n)}
        params["learn/trust"] = np.float32(0.7)  # type: ignore[assignment]
    if kind in ("hop", "all"):
        near = int(draw.integers(1, 6))
        params["hop/items"] = draw.integers(0, n, (n, near)).astype(np.float32)
        params["hop/values"] = np.abs(numbers(n, near))
        params["hop/weight"] = np.float32(0.5)  # type: ignore[assignment]
        params["device/recency"] = np.float32(2.0)  # type: ignore[assignment]
    if kind in ("second", "all"):
        params["second/vectors"] = 0.3 * numbers(n, int(draw.integers(1, 6)))
        params["second/weight"] = np.float32(1.5)  # type: ignore[assignment]
    if kind == "flat":
        params = {name: np.zeros_like(array) for name, array in params.items()}
    return params


def random_export(
    path: Path, kind: str, seed: int, items: int = 30, *, compact: bool = False
) -> None:
    """Write an export of this kind."""
    catalogue = random_catalogue(items, features=kind != "private")
    params = random_params(kind, catalogue, seed)
    settings = {"recipe": "dp-privrec-plus" if kind == "private" else "privrec-plus"}
    privacy = {"epsilon": None, "delta": None, "statement": "It promises nothing."}
    about = {"format": 2 if compact else 1, "settings": settings, "privacy": privacy}
    texts = {"model.json": json.dumps(about), "catalogue.json": to_json(catalogue)}
    encoded = {name: text.encode() for name, text in texts.items()}
    layout = layout_in(catalogue.schema, items, {*params})
    arrays = compact_members(params, layout) if compact else members(params)
    path.write_bytes(archive(encoded, arrays))


Question = dict[str, Any]


def questions(catalogue: Catalogue, seed: int) -> list[Question]:
    """Return what is asked about a model: items, features and contexts in many mixtures."""
    draw = np.random.default_rng(seed)
    given: dict[str, dict[str, Any]] = {"user": {}, "context": {}}
    for feature in catalogue.schema.features:
        if feature.side in given:
            own = {"numeric": 31.5, "multi": list(feature.values[:2])}
            given[feature.side][feature.name] = own.get(feature.kind, (*feature.values, "")[0])
    asked: list[Question] = [{}, {"features": given["user"]}, {"context": given["context"]}]
    for likes, dislikes in ((1, 0), (0, 1), (3, 2), (8, 0)):
        ids = draw.permutation(catalogue.n_items)[: likes + dislikes]
        names = [catalogue.item_ids[k] for k in ids]
        some = {"likes": names[:likes], "dislikes": names[likes:]}
        asked += [some, {**some, "features": given["user"], "context": given["context"]}]
    return asked


def answer(model: privrec.Model, question: Question, top: int = 1000) -> list[list[Any]]:
    """Return Python's list: ids, scores and shares of the items below."""
    features = {**question.get("features", {}), **question.get("context", {})}
    items = {key: question.get(key, []) for key in ("likes", "dislikes")}
    found = model.device(**items, features=features).recommend(top)
    return [[entry.item, entry.score, entry.better_than] for entry in found]


def write_golden(export: Path, seed: int = 0) -> None:
    """Write what is asked about an export and what Python answers, beside it."""
    model = privrec.open_model(export)
    asked = [
        {**question, "answer": answer(model, question)}
        for question in questions(model.catalogue, seed)
    ]
    export.with_suffix(".json").write_text(json.dumps(asked, ensure_ascii=False) + "\n")


def node() -> str:
    """Return the path of Node, or skip the test."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("there is no node")
    return found


def run_node(*words: str | Path, timeout: float = 600, **environment: str) -> str:
    """Run Node, which must succeed; return what it prints."""
    ran = subprocess.run(
        [node(), *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        cwd=PACKAGE,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
