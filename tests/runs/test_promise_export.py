"""An export is one file without anybody's interactions, and ranks as the run does."""

import io
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privrec
from commands import Refused, document, done
from privrec.data.manifest import Manifest, Public
from privrec.data.tables import Tables, write_folder
from privrec.device import open_model
from privrec.errors import PrivrecError
from tiny import DATA, MODEL, as_options

SMALL = as_options({**MODEL, "rounds": 1})
RECIPES: dict[str, list[str]] = {
    "dp-privrec-plus": [],
    "privrec-plus": ["--set", "rounds=2", "--set", "cohort=8", "--set", "embedding_size=4"],
    "privrec": SMALL,
    "ease": [],
    "ssl-items": [
        "--set",
        "embedding_size=4",
        "--set",
        "stage1_rounds=1",
        "--set",
        "stage1_cohort=4",
    ],
}
ASKED = ["--like", "film 3", "--like", "i5", "--dislike", "film 7", "--feature", "town=x"]


@pytest.fixture
def data(scratch: Path) -> Path:
    """A user's data folder, with a declared feature and a path that must not be exported."""
    draw = np.random.default_rng(0)
    lines = [
        (f"u{k}", f"i{j}", float(draw.integers(1, 6)))
        for k in range(60)
        for j in draw.choice(12, 6, replace=False)
    ]
    tables = Tables(
        manifest=Manifest(
            name="films",
            value="value",
            positive_above=2.0,
            public=Public(people=60, items=True, threshold=True, values={"town": ("x", "y")}),
        ),
        interactions=pl.DataFrame(lines, schema=["user", "item", "value"], orient="row"),
        users=pl.DataFrame({"id": [f"u{k}" for k in range(60)], "town": ["x", "y"] * 30}),
        items=pl.DataFrame(
            {
                "id": [f"i{j}" for j in range(12)],
                "title": [f"film {j}" for j in range(12)],
                "year": [1990.5 + j for j in range(12)],
            }
        ),
    )
    write_folder(tables, scratch / "annas-secret-folder")
    return scratch / "annas-secret-folder"


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_export_ranks_as_the_run_did_with_the_data_gone(
    recipe: str, data: Path, scratch: Path
) -> None:
    done("train", recipe, "--data", data, "--out", "run", *RECIPES[recipe])
    words = [word for word in ASKED if word not in ("--feature", "town=x")]
    asked = ASKED if recipe != "dp-privrec-plus" else words
    wanted = document("recommend", "run", *asked, "--json")
    assert len(wanted) == 9
    done("export", "run", "--out", "model.privrec")
    shutil.rmtree(data)
    (scratch / "elsewhere").mkdir()
    shutil.move(scratch / "model.privrec", scratch / "elsewhere" / "m")
    assert document("recommend", scratch / "elsewhere" / "m", *asked, "--json") == wanted
    # A run folder that was moved works too.
    shutil.move(scratch / "run", scratch / "elsewhere" / "run")
    assert document("recommend", scratch / "elsewhere" / "run", *asked, "--json") == wanted


def test_an_export_has_what_may_be_released_and_nothing_else(data: Path, scratch: Path) -> None:
    done("train", "dp-privrec-plus", "--data", data, "--out", "run", "--set", "diagnostics=true")
    done("evaluate", "run")
    done("export", "run", "--out", "one")
    done("export", "run", "--out", "two")
    assert (scratch / "one").read_bytes() == (scratch / "two").read_bytes()
    with zipfile.ZipFile(scratch / "one") as file:
        names = {name for name in file.namelist() if not name.startswith("params/")}
        whole = b"".join(file.read(name) for name in file.namelist())
        about = json.loads(file.read("model.json"))
        assert file.read("ledger.jsonl") == (scratch / "run" / "ledger.jsonl").read_bytes()
        statement = file.read("statement.txt").decode().strip()
    assert names == {"model.json", "statement.txt", "ledger.jsonl", "catalogue.json"}
    assert set(about) == {"format", "settings", "privacy"}
    assert statement == about["privacy"]["statement"]
    assert statement.startswith("Each of about 48 people who train is protected")
    assert b"secret" not in whole
    assert b"fingerprint" not in whole
    assert b"u17" not in whole


BLOCKED = ("jax", "scipy", "polars", "pydantic", "safetensors", "dp_accounting", "cryptography")
BLOCK = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {(*BLOCKED, "rich", "typer", "optax")!r}:
            raise ImportError(f"{{name}} is not on this phone")
sys.meta_path.insert(0, Blocked())
"""


def run_python(code: str, folder: Path) -> str:
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("recipe", ["dp-privrec-plus", "privrec-plus"])
def test_a_phone_needs_numpy_alone(recipe: str, data: Path, scratch: Path) -> None:
    done("train", recipe, "--data", data, "--out", "run", *RECIPES[recipe])
    done("export", "run", "--out", "model.privrec")
    likes = ["film 1", "film 4"]
    wanted = [
        [found.item, found.score]
        for found in privrec.open_run("run").device(likes=likes).recommend()
    ]
    code = f"""{BLOCK}
import json, privrec
me = privrec.open_model("model.privrec").device(likes={likes!r})
print(json.dumps([[found.item, found.score] for found in me.recommend()]))
"""
    assert json.loads(run_python(code, scratch)) == wanted


def bad_zip(members: dict[str, bytes], path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)


def pickled() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return out.getvalue()


def hostile(whole: bytes) -> dict[str, dict[str, bytes] | bytes]:
    with zipfile.ZipFile(io.BytesIO(whole)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    about, like = json.loads(members["model.json"]), members["params/history/like.npy"]
    return {
        "empty": b"",
        "text": b"hello",
        "cut short": whole[: len(whole) // 2],
        "without a catalogue": {k: v for k, v in members.items() if k != "catalogue.json"},
        "of another format": {**members, "model.json": json.dumps({**about, "format": 9}).encode()},
        "of no format": {**members, "model.json": b"[1]"},
        "with a pickle": {**members, "params/history/like.npy": pickled()},
        "with a bomb": {**members, "params/x.npy": bytes(200_000_000)},
        "with a broken catalogue": {**members, "catalogue.json": b'{"items": 3}'},
        "with other shapes": {**members, "params/items/bias.npy": like},
        "without parameters": {k: v for k, v in members.items() if not k.startswith("params")},
        "without settings": {**members, "model.json": b'{"format": 1}'},
    }


@pytest.mark.slow
def test_a_hostile_file_is_refused_in_one_line(data: Path, scratch: Path, refused: Refused) -> None:
    done("train", "dp-privrec-plus", "--data", data, "--out", "run")
    done("export", "run", "--out", "model.privrec")
    for name, content in hostile((scratch / "model.privrec").read_bytes()).items():
        if isinstance(content, bytes):
            (scratch / "bad").write_bytes(content)
        else:
            bad_zip(content, scratch / "bad")
        line = refused("recommend", "bad", "--like", "film 1")
        assert "bad" in line or "do not fit the catalogue" in line, name


def test_wrong_exports_are_refused(scratch: Path, refused: Refused) -> None:
    assert "does not exist" in refused("export", "nothing", "--out", "m")
    done("train", "popularity", "--data", DATA, "--out", "run")
    (scratch / "folder").mkdir()
    assert "folder" in refused("export", "run", "--out", "folder")
    (scratch / "run" / "params.safetensors").unlink()
    assert "is not finished" in refused("export", "run", "--out", "m")
    assert "does not exist" in refused("recommend", "nothing", "--like", "i1")


@pytest.mark.slow
def test_the_settings_of_an_export_make_the_same_model(data: Path, scratch: Path) -> None:
    """Recipes that adapt are built again from the file: every setting must be in it."""
    settings: dict[str, Any] = {**MODEL, "rounds": 1, "hidden": [5, 3], "activation": "tanh"}
    run = privrec.train("privrec", str(data), out="run", **settings)
    done("export", "run", "--out", "m")
    model = privrec.open_model("m")
    assert model.settings["data"] == "films"
    one, two = (it.device(likes=["film 2"]).recommend(5) for it in (run, model))
    assert one == two


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The export of a small run."""
    place = tmp_path_factory.mktemp("export")
    done("train", "dp-privrec-plus", "--data", DATA, "--epsilon", "8", "--out", place / "run")
    done("export", place / "run", "--out", place / "model")
    return (place / "model").read_bytes()


def with_member(exported: bytes, name: str, content: bytes) -> None:
    """Write the export to the file `bad`, with other content of a member."""
    with zipfile.ZipFile(io.BytesIO(exported)) as file, zipfile.ZipFile("bad", "w") as out:
        for member in file.namelist():
            out.writestr(member, content if member == name else file.read(member))


def npy(header: str) -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


DEEP = b"[" * 200_000
HOSTILE = {
    "deep settings": ("model.json", DEEP),
    "a deep catalogue": ("catalogue.json", DEEP),
    "a huge array": (
        "params/items/bias.npy",
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000,), }"),
    ),
    "text": ("params/items/bias.npy", b""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_member_is_refused(
    name: str, exported: bytes, scratch: Path, refused: Refused
) -> None:
    with_member(exported, *HOSTILE[name])
    refused("recommend", "bad", "--like", "i1")


@pytest.mark.parametrize("kind", ["<U3", "complex64", "float64", "int64"])
def test_parameters_are_32_bit_numbers(
    kind: str, exported: bytes, scratch: Path, refused: Refused
) -> None:
    np.save("array.npy", np.zeros(40).astype(kind))
    with_member(exported, "params/items/bias.npy", Path("array.npy").read_bytes())
    assert "32-bit" in refused("recommend", "bad", "--like", "i1")


def test_any_damaged_byte_of_an_export_is_no_traceback(exported: bytes, scratch: Path) -> None:
    """Some change only a title or a number and are not detected; none may raise another error."""
    draw = np.random.default_rng(0)
    for place in [*range(60), *draw.integers(0, len(exported), 200)]:
        content = bytearray(exported)
        content[place] ^= 1 << int(draw.integers(8))
        Path("bad").write_bytes(content)
        try:
            open_model("bad").device(likes=["i1"]).recommend(3)
        except PrivrecError:
            continue


def test_titles_of_an_export_are_safe(exported: bytes, scratch: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(exported)) as file:
        catalogue = json.loads(file.read("catalogue.json"))
    catalogue["titles"][0] = "\x1b[2J"
    with_member(exported, "catalogue.json", json.dumps(catalogue).encode())
    assert "\x1b" not in open_model("bad").catalogue.titles[0]
