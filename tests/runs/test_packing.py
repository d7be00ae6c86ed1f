"""A compact export: nearly the same scores from fewer dimensions, in a quarter of the bytes."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

import privrec
from exports import random_catalogue, random_export, random_params
from privrec.algorithms.privrec_plus.scoring import layout_in
from privrec.runs import packing
from privrec.runs.packing import _eight_bits, compact_members
from privrec.types import F32


def product(params: dict[str, F32]) -> F32:
    """Return what each column adds to the score of each item."""
    inside = np.concatenate(
        [params[name] for name in sorted(params) if name.startswith("history/")]
    )
    return inside if "items/out" not in params else inside @ params["items/out"].T


@pytest.fixture
def _fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rounding lose little, so that what else is lost is seen."""
    monkeypatch.setattr(packing, "_STEP", 0.0)


def arrays(kind: str, dimensions: int | None) -> tuple[dict[str, F32], dict[str, F32]]:
    """Return random parameters, and what is left of them in a compact export."""
    catalogue = random_catalogue(40)
    params = random_params(kind, catalogue, 3)
    if kind == "second":
        params["second/vectors"] = np.random.default_rng(4).normal(size=(40, 5)).astype(np.float32)
    found = compact_members(params, layout_in(catalogue.schema, 40, {*params}), dimensions)
    kept = {}
    for name, array in found.items():
        if name.startswith("params/"):
            scale = found.get(name.replace("params/", "scales/"))
            rows = array if scale is None else array * scale[:, None]  # type: ignore[operator]
            kept[name[7:-4]] = np.asarray(rows, np.float32)
    return params, kept


@pytest.mark.usefixtures("_fine")
@pytest.mark.parametrize("kind", ["closed", "identity"])
def test_with_all_dimensions_only_rounding_is_lost(kind: str) -> None:
    params, kept = arrays(kind, 40)
    exact, near = product(params), product(kept)
    assert np.abs(exact - near).max() < 0.02 * np.abs(exact).max()
    assert "items/popularity" not in kept


@pytest.mark.usefixtures("_fine")
@pytest.mark.parametrize("kind", ["closed", "identity"])
def test_fewer_dimensions_are_the_best_ones(kind: str) -> None:
    """No table of rank 2 is nearer than the one of the singular value decomposition."""
    params, kept = arrays(kind, 2)
    assert kept["items/out"].shape[1] == kept["history/like"].shape[1] == 2
    exact = product(params).astype(np.float64)
    left, strength, right = np.linalg.svd(exact, full_matrices=False)
    best = left[:, :2] * strength[:2] @ right[:2]
    assert np.abs(product(kept) - best).max() < 0.03 * np.abs(exact).max()


@pytest.mark.usefixtures("_fine")
def test_the_second_model_keeps_its_strongest_directions() -> None:
    params, kept = arrays("second", 1)
    vectors, few = params["second/vectors"], kept["second/vectors"]
    assert few.shape[1] == 1
    left = np.linalg.svd(vectors.astype(np.float64), full_matrices=False)
    assert (np.abs(few[:, 0]) - np.abs(left[0][:, 0] * left[1][0])).max() < 0.01


@pytest.mark.parametrize("step", [0.0, 0.8])
def test_eight_bits_lose_half_a_step_at_most(step: float) -> None:
    table = np.random.default_rng(0).normal(size=(50, 9)).astype(np.float32)
    table[7] = 0
    rows, scale = _eight_bits(table, step)
    assert step or np.abs(rows).max() == 127
    assert (scale[7] == 0) == (step == 0)
    assert (np.abs(rows * scale[:, None] - table) <= 0.5001 * scale[:, None]).all()


def test_a_compact_export_is_read_like_any_other(tmp_path: Path) -> None:
    lists = {}
    for compact in (False, True):
        path = tmp_path / f"{compact}"
        random_export(path, "all", 5, items=400, compact=compact)
        me = privrec.open_model(path).device(likes=["i3", "i8"], features={"town": "Ulm"})
        lists[compact] = {entry.item: entry.score for entry in me.recommend(400)}
    scores = [np.array([found[f"i{k}"] for k in range(9, 400)]) for found in lists.values()]
    assert np.corrcoef(np.stack(scores))[0, 1] > 0.9
    assert (tmp_path / "True").stat().st_size < 0.6 * (tmp_path / "False").stat().st_size


@pytest.mark.parametrize("wrong", ["missing", "of another length", "of another shape"])
def test_eight_bits_without_their_scale_are_refused(wrong: str, tmp_path: Path) -> None:
    random_export(tmp_path / "whole", "closed", 1, compact=True)
    with zipfile.ZipFile(tmp_path / "whole") as file:
        members = {name: file.read(name) for name in file.namelist()}
    name = "scales/history/like.npy"
    if wrong == "missing":
        del members[name]
    elif wrong == "of another length":
        members[name] = members["params/items/bias.npy"].replace(b"(30,)", b"(29,)")[:-4]
    else:
        members[name] = members["params/items/bias.npy"].replace(b"(30,), }  ", b"(30, 1), }")
    with zipfile.ZipFile(tmp_path / "bad", "w") as file:
        for member, content in members.items():
            file.writestr(member, content)
    with pytest.raises(privrec.errors.RunFolderError, match="is not an exported model"):
        privrec.open_model(tmp_path / "bad")


def test_what_eight_bits_become_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take four times as much memory as they unpack to."""
    random_export(tmp_path / "small", "closed", 1, compact=True)
    with zipfile.ZipFile(tmp_path / "small") as file:
        sizes = {info.filename: info.file_size for info in file.infolist()}
    tables = [name.replace("scales/", "params/") for name in sizes if name.startswith("scales/")]
    more = sum(3 * (sizes[name] - 128) for name in tables)
    assert more > 1000
    monkeypatch.setattr("privrec.device._GROWTH", 0)
    monkeypatch.setattr("privrec.device._ROOM", sum(sizes.values()) + more)
    privrec.open_model(tmp_path / "small")
    monkeypatch.setattr("privrec.device._ROOM", sum(sizes.values()) + more - 1)
    with pytest.raises(privrec.errors.RunFolderError, match="far more than an export has"):
        privrec.open_model(tmp_path / "small")
