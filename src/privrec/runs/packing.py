"""The file of an exported model: a zip archive, plain or compact.

A compact export has 8-bit rows with a scale each. It lacks the arrays that do not rank, and its
history model has as many dimensions as its quality needs.
"""

import io
import zipfile
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from privrec.algorithms.privrec_plus.opinion import SECOND
from privrec.algorithms.privrec_plus.scoring import HOP_ITEMS, OUT, Layout, tower_shapes
from privrec.types import F32, F64, Leaf

Arrays = Mapping[str, F32]
Members = dict[str, npt.NDArray[np.generic]]
# The earliest time stamp of zip, always the same, so that a run always gives the same bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def archive(texts: Mapping[str, bytes], arrays: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    """Return the bytes of an export: `texts` and `arrays` by the names of their members.

    Arrays of 32-bit numbers are stored, because they hardly get smaller.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, text in texts.items():
            _add(file, name, text, zipfile.ZIP_DEFLATED)
        for name in sorted(arrays):
            array = arrays[name]
            out = io.BytesIO()
            np.save(out, np.asarray(array, order="C"), allow_pickle=False)
            small = array.dtype != np.float32 or name.startswith("scales/")
            _add(file, name, out.getvalue(), zipfile.ZIP_DEFLATED if small else zipfile.ZIP_STORED)
    return content.getvalue()


def _add(file: zipfile.ZipFile, name: str, content: bytes, compression: int) -> None:
    entry = zipfile.ZipInfo(name, date_time=_NO_TIME)
    entry.compress_type = compression
    file.writestr(entry, content)


def members(params: Mapping[str, Leaf]) -> Members:
    """Return the arrays of a plain export by the names of their members."""
    return {f"params/{name}.npy": array for name, array in params.items()}


def compact_members(
    params: Mapping[str, Leaf], layout: Layout, dimensions: int | None = None
) -> Members:
    """Return the arrays of a compact export by the names of their members.

    `params` are those of PrivRec+. Only arrays that rank are kept. `dimensions` is the length of
    the vectors of the history model and of the second model; by default it is chosen (`_enough`).
    """
    kept = {name: np.asarray(params[name]) for name in tower_shapes(params, layout)}
    kept |= _shorter_history(kept, layout, dimensions)
    if SECOND in kept:
        kept[SECOND] = _shorter(kept[SECOND], dimensions)
    found: Members = {}
    for name, array in kept.items():
        if name == HOP_ITEMS:
            small = np.uint16 if layout.n_items <= 2**16 else np.uint32
            found[f"params/{name}.npy"] = array.astype(small)
        elif array.ndim == 2:
            is_rough = name in (*layout.names, OUT, SECOND)
            step = _STEP if array.shape[1] <= _LONG else _LONG_STEP
            rows, scale = _eight_bits(array, step if is_rough else 0.0)
            found |= {f"params/{name}.npy": rows, f"scales/{name}.npy": scale}
        else:
            found[f"params/{name}.npy"] = array
    return found


_STEP, _LONG, _LONG_STEP = 0.8, 512, 1.5
"""The step between two numbers of 8 bits, for the vectors of the history model and of the second
model, over the root mean square of the table. Most numbers are then small, and take some 3 bits in
the archive. Numbers of different sizes must have the same step: a step for each row, or a rotation
before, lost more Hits@20 in the same bytes. Measured on MovieLens-1M (docs/results.md). Vectors of
more than `_LONG` numbers have the step `_LONG_STEP`, measured on Gowalla."""


def _eight_bits(table: F32, step: float) -> tuple[npt.NDArray[np.int8], F32]:
    """Return whole numbers from -127 to 127, and the number by which each row is multiplied.

    `step` is the least such number, over the root mean square of the table.
    """
    mean = float(np.sqrt(np.square(table, dtype=np.float64).mean())) if table.size else 0.0
    largest = np.abs(table).max(1, initial=0)
    scale = np.maximum(largest / 127, step * mean).astype(np.float32)
    rows = np.rint(table / np.where(scale > 0, scale, 1)[:, None])
    return rows.astype(np.int8), scale


_SHARE = 0.998
"""The share of the squares of all scores that is kept by fewer dimensions. Measured on
MovieLens-1M."""


def _enough(strength: F64, dimensions: int | None) -> int:
    """Return how many dimensions are kept, of singular values that fall."""
    if dimensions is not None:
        return min(dimensions, len(strength))
    shares = np.cumsum(strength**2) / max(float((strength**2).sum()), 1e-300)
    return int(np.searchsorted(shares, _SHARE)) + 1


def _shorter_history(params: Arrays, layout: Layout, dimensions: int | None) -> dict[str, F32]:
    """Return the vectors of columns and of items with fewer dimensions, for nearly equal scores.

    The scores of all columns for all items are A·Bᵀ, where A has the vectors of the columns and B
    those of the items. The best approximation of rank k is the one of the singular value
    decomposition. With A = Q·R and B = Q'·R' it is found from R·R'ᵀ = U·S·Vᵀ, without A·Bᵀ:

        A' = A R'ᵀ V S^-½,   B' = B Rᵀ U S^-½
    """
    names = [name for name in layout.names if name in params]
    sizes = [len(params[name]) for name in names]
    columns = np.concatenate([params[name] for name in names]).astype(np.float64)
    if OUT in params:
        items = params[OUT].astype(np.float64)
        first, second = np.linalg.qr(columns).R, np.linalg.qr(items).R
        left, strength, right = np.linalg.svd(first @ second.T)
        ways = first.T @ left, second.T @ right.T
    else:  # B is the identity. The eigenvectors of AᵀA are found faster than a decomposition.
        squares, vectors = np.linalg.eigh(columns.T @ columns)
        strength = np.sqrt(np.maximum(squares[::-1], 0))
        items, ways = np.eye(layout.n_items), (vectors[:, ::-1] * strength, vectors[:, ::-1])
    keep = _enough(strength, dimensions)
    if not strength[0]:
        return {}
    root = 1 / np.sqrt(np.maximum(strength[:keep], 1e-12 * strength[0]))
    columns, items = columns @ (ways[1][:, :keep] * root), items @ (ways[0][:, :keep] * root)
    parts = np.split(columns.astype(np.float32), np.cumsum(sizes)[:-1])
    return {**dict(zip(names, parts, strict=True)), OUT: items.astype(np.float32)}


def _shorter(vectors: F32, dimensions: int | None) -> F32:
    """Return the items' vectors of the second model in their strongest directions."""
    wide = vectors.astype(np.float64)
    _, strength, right = np.linalg.svd(np.linalg.qr(wide).R)
    keep = _enough(strength, dimensions)
    return np.asarray(wide @ right[:keep].T, np.float32)
