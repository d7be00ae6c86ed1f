"""What the package and the page weigh, and what a hostile file takes in memory."""

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from exports import GOLDEN, PACKAGE, SOURCES, random_catalogue, random_export, run_node
from privrec.data.catalogue import to_json
from privrec.runs.packing import _eight_bits, archive

MIB = 2**20


def test_the_package_and_the_page_are_small(capsys: pytest.CaptureFixture[str]) -> None:
    """As a browser loads them: compressed, without licence, types and documentation."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path in sorted(SOURCES.glob("*.js")):
            archive.add(path, path.name)
    page = list((SOURCES.parent / "page").iterdir())
    sizes = [len(gzip.compress(path.read_bytes())) for path in [*page, *SOURCES.glob("*.js")]]
    with capsys.disabled():
        print(  # noqa: T201
            f"\nprivrec-device: {len(out.getvalue()):,} bytes; page: {sum(sizes):,} bytes"
        )
    assert len(out.getvalue()) < 15_000
    assert sum(sizes) < 60_000


def test_nothing_is_loaded_from_elsewhere() -> None:
    for path in [*SOURCES.glob("*.js"), *(SOURCES.parent / "page").glob("*.*")]:
        if path.suffix in (".js", ".html", ".css", ".json"):
            text = path.read_text(encoding="utf-8")
            assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), path
            assert "https://" not in text, path
            assert "innerHTML" not in text, path
            assert "eval(" not in text, path


GROWTH = """
import { readFileSync } from "node:fs";
import { openModel } from %s;
const peak = () => 1024 * Number(/VmHWM:\\s*(\\d+)/.exec(readFileSync("/proc/self/status"))[1]);
await openModel(readFileSync(process.argv[1]));
const bytes = readFileSync(process.argv[2]);
const before = peak() - bytes.length;
let said = "opened";
try {
  await openModel(bytes);
} catch (error) {
  said = `${error.name}: ${error.message}`;
}
console.log(JSON.stringify([peak() - before, said]));
"""


def growth(path: Path) -> tuple[int, str]:
    """Return how much memory a file takes, itself included, and whether it was opened."""
    index = json.dumps((SOURCES / "index.js").as_uri())
    small = GOLDEN / "closed.privrec"
    said = run_node("--input-type=module", "-e", GROWTH % index, small, path)
    found: tuple[int, str] = json.loads(said)
    return found


FILLS = ("[],", "{},", '"ab",', "1.5,", '{"a":1},', '"' + "é" * 50 + '",')


@pytest.mark.slow
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("share", [0.45, 0.95])
def test_text_takes_little_memory(fill: str, share: float, tmp_path: Path) -> None:
    """As much of it as is read, and then more than that."""
    with zipfile.ZipFile(GOLDEN / "closed.privrec") as file:
        members = {name: file.read(name) for name in file.namelist()}
    each = 4 * len(fill.encode()) + 32 * (fill.count(",") + fill.count("["))
    each += 128 * fill.count("{")
    count = int(share * 2 * 32 * MIB / each)
    catalogue = members["catalogue.json"].removesuffix(b"}")
    members["catalogue.json"] = catalogue + b', "more": [' + fill.encode() * count + b"0]}"
    path = tmp_path / "model"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    took, said = growth(path)
    assert took <= 3 * path.stat().st_size + 64 * MIB, said
    assert said == "opened" if share < 0.5 else "far more than an export has" in said


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [30, 400])
def test_a_small_file_does_not_unpack_to_much(megabytes: int, tmp_path: Path) -> None:
    path = tmp_path / "model"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("a", "b"):
            file.writestr(f"params/{name}.npy", bytes(megabytes * MIB // 2))
    took, said = growth(path)
    assert took <= 3 * path.stat().st_size + 64 * MIB
    assert "PrivrecError" in said


@pytest.mark.slow
def test_a_compact_model_of_long_vectors_is_opened(tmp_path: Path) -> None:
    """It unpacks to four times its size, as that of Gowalla does."""
    n, path = 40_000, tmp_path / "model"
    table = np.random.default_rng(0).normal(size=(n, 1024)).astype(np.float32)
    rows, scale = _eight_bits(table, 1.5)
    arrays: dict[str, npt.NDArray[np.generic]]
    arrays = {f"params/{name}.npy": rows for name in ("history/like", "items/out")}
    arrays |= {f"scales/{name}.npy": scale for name in ("history/like", "items/out")}
    arrays["params/items/bias.npy"] = table[:, 0]
    about = {"format": 2, "settings": {}, "privacy": {}}
    catalogue = to_json(random_catalogue(n, features=False))
    texts = {"model.json": json.dumps(about).encode(), "catalogue.json": catalogue.encode()}
    path.write_bytes(archive(texts, arrays))
    took, said = growth(path)
    assert said == "opened"
    assert took <= 6 * path.stat().st_size + 64 * MIB


@pytest.mark.slow
def test_a_large_model_takes_little_more_than_its_file(tmp_path: Path) -> None:
    path = tmp_path / "model"
    random_export(path, "closed", 2, items=100_000)
    took, said = growth(path)
    assert said == "opened"
    assert took <= 3 * path.stat().st_size + 64 * MIB


def test_the_package_is_ready_for_npm() -> None:
    about = json.loads((PACKAGE / "package.json").read_text())
    assert about["files"] == ["lib"]
    assert (PACKAGE / "README.md").is_file()
