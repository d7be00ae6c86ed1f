"""An export that somebody made to do harm: one line, exit code 2, little time and memory."""

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privrec
from commands import Refused, done
from privrec.algorithms.fedgnn.matching import empty_table
from privrec.algorithms.recipes import configure, plan_on_device
from privrec.algorithms.reptile import adapt
from privrec.data.manifest import Manifest
from privrec.data.tables import Tables, write_folder
from privrec.errors import RunFolderError
from privrec.runs.run import export_run
from tiny import DATA

Members = dict[str, bytes]
ITEMS = 12
BIAS, LIKE, OUT = (f"params/{name}.npy" for name in ("items/bias", "history/like", "items/out"))
ASKED = ["--like", "i1", "--dislike", "i2", "--feature", "years=30"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Members:
    """The members of an export with features of each kind."""
    place = tmp_path_factory.mktemp("hostile")
    people = [f"u{k}" for k in range(30)]
    lines = [(u, f"i{(k + j) % ITEMS}", 1.0 + j) for k, u in enumerate(people) for j in range(5)]
    tables = Tables(
        manifest=Manifest(name="films", value="value", positive_above=2.0),
        interactions=pl.DataFrame(lines, schema=["user", "item", "value"], orient="row"),
        users=pl.DataFrame({"id": people, "years": [20.5 + k for k in range(30)]}),
        items=pl.DataFrame({"id": [f"i{j}" for j in range(ITEMS)], "kind": ["a", "b"] * 6}),
    )
    write_folder(tables, place / "films")
    export_run(privrec.train("privrec-plus", place / "films", rounds=0), place / "whole")
    with zipfile.ZipFile(place / "whole") as file:
        return {name: file.read(name) for name in file.namelist()}


def write(members: Members, path: Path, method: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asarray(array, np.float32))
    return out.getvalue()


def headed(header: str) -> bytes:
    """Return an array of numpy's format with any header."""
    length = len(header).to_bytes(2, "little")
    return b"\x93NUMPY\x01\x00" + length + header.encode() + bytes(4 * ITEMS)


def npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, a=np.zeros(ITEMS, np.float32))
    return out.getvalue()


def shaped(shape: str, end: str = ", }\n") -> bytes:
    return headed(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}{end}")


ARRAYS = {
    "an array of arrays": npz(),
    "an empty zip": b"PK\x05\x06" + bytes(18),
    "a header that does not end": headed("{'descr': ("),
    "a text that does not end": headed("'''"),
    "a header of Python 2": shaped("(12L,)"),
    "an old type": headed("{'descr': 'a,b', 'fortran_order': False, 'shape': (1,), }\n"),
    "more digits than a number has": shaped(f"({'9' * 99},)"),
    "less than nothing": shaped("(-12,)"),
    "another length": shaped("(13,)"),
    "a header within the numbers": shaped("(12,)", ", } "),
    "no number": npy([np.nan] * ITEMS),
    "an infinite number": npy([np.inf] * ITEMS),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_only_plain_arrays_are_read(
    kind: str, whole: Members, scratch: Path, refused: Refused
) -> None:
    write({**whole, BIAS: ARRAYS[kind]}, scratch / "bad")
    assert "bad is not an exported model" in refused("recommend", "bad", *ASKED)


def test_numbers_that_are_too_large_are_no_scores(
    whole: Members, scratch: Path, refused: Refused
) -> None:
    shape = shape_of(whole, LIKE)
    for sign in (1, -1):
        far = npy(np.full(shape, 3e38))
        write({**whole, LIKE: far, OUT: npy(np.full(shape, sign * 3e38))}, scratch / "bad")
        for more in ([], ["--json"]):
            assert "scores are not numbers" in refused("recommend", "bad", *ASKED, *more)


def test_the_second_model_has_a_limit(whole: Members, scratch: Path, refused: Refused) -> None:
    """Its memory grows with the square of the width, and its time with the cube."""
    for width, name in ((1024, "good"), (1025, "bad")):
        more = {"second/vectors": npy(np.zeros((ITEMS, width))), "second/weight": npy(1.0)}
        arrays = {f"params/{key}.npy": array for key, array in more.items()}
        write({**whole, **arrays}, scratch / name)
    done("recommend", "good", *ASKED)
    assert "must have <= 1,024 columns; got 1,025" in refused("recommend", "bad", *ASKED)


def shape_of(members: Members, name: str) -> tuple[int, ...]:
    return tuple(np.load(io.BytesIO(members[name])).shape)


def test_a_member_is_there_once(whole: Members, scratch: Path, refused: Refused) -> None:
    """Two readers might take different ones."""
    write(whole, scratch / "bad")
    with zipfile.ZipFile(scratch / "bad", "a") as file, pytest.warns(UserWarning, match="Duplic"):
        file.writestr("model.json", whole["model.json"])
    assert "it has model.json more than once" in refused("recommend", "bad", *ASKED)


def test_a_small_file_takes_little_memory(whole: Members, scratch: Path, refused: Refused) -> None:
    """Twenty megabytes of empty lists were half a gigabyte of Python's lists."""
    for name in ("model.json", "catalogue.json"):
        write({**whole, name: b"[" + b"[]," * 7_000_000 + b"[]]"}, scratch / "bad")
        assert (scratch / "bad").stat().st_size < 100_000
        assert "far more than an export has" in refused("recommend", "bad", *ASKED)


def test_json_is_limited_also_in_a_large_file(
    whole: Members, scratch: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privrec.device._MOST_TEXT", len(whole["model.json"]) - 1)
    write(whole, scratch / "bad", zipfile.ZIP_STORED)
    assert "far more than an export has" in refused("recommend", "bad", *ASKED)


def in_catalogue(whole: Members, change: Callable[[dict[str, Any]], Any]) -> Members:
    catalogue = json.loads(whole["catalogue.json"])
    change(catalogue)
    return {**whole, "catalogue.json": json.dumps(catalogue).encode()}


WRONG: tuple[Any, ...] = ("x", None, [], np.nan, np.inf)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[(key, value) for key in ("mean", "scale") for value in WRONG],
        *[("mean", 10**400), ("scale", 0), ("scale", 1e-320)],
        *[("kind", "much"), ("kind", []), ("side", "phone"), ("side", None), ("name", 5)],
        *[("values", 5), ("values", [5])],
    ],
)
def test_a_feature_that_cannot_be_encoded_is_refused(
    key: str, value: Any, whole: Members, scratch: Path, refused: Refused
) -> None:
    write(in_catalogue(whole, lambda c: c["features"][0].update({key: value})), scratch / "bad")
    line = refused("recommend", "bad", *ASKED)
    assert "is not a whole catalogue" in line or "must be a finite number; got '30'" in line


def test_weights_of_items_fit_into_32_bits(whole: Members, scratch: Path, refused: Refused) -> None:
    bag = {"embed/item.kind": {"codes": [[0]] * ITEMS, "weights": [[1e300]] * ITEMS}}
    write(in_catalogue(whole, lambda c: c.update(bags=bag)), scratch / "bad")
    assert "infinite weights" in refused("recommend", "bad", *ASKED)


def test_a_limit_of_likes_may_be_any_number(whole: Members, scratch: Path) -> None:
    write(in_catalogue(whole, lambda c: c.update(positive_above=1e308)), scratch / "odd")
    done("recommend", "odd", *ASKED)


def test_endless_names_are_cut_on_the_screen(whole: Members, scratch: Path) -> None:
    """A name of 20 million letters took minutes to draw."""

    def change(catalogue: dict[str, Any]) -> None:
        catalogue["name"] = "n" * 100_000
        catalogue["titles"] = ["t" * 100_000 for _ in range(ITEMS)]
        catalogue["items"][3] = "j" * 100_000

    write(in_catalogue(whole, change), scratch / "long")
    assert len(done("recommend", "long", *ASKED)) < 60_000


@pytest.mark.parametrize("key", ["settings", "privacy"])
@pytest.mark.parametrize("value", [5, None, [], "x"])
def test_settings_and_privacy_are_objects(
    key: str, value: Any, whole: Members, scratch: Path, refused: Refused
) -> None:
    about = {**json.loads(whole["model.json"]), key: value}
    write({**whole, "model.json": json.dumps(about).encode()}, scratch / "bad")
    assert "it lacks settings or parameters" in refused("recommend", "bad", *ASKED)


def of_recipe(whole: Members, settings: dict[str, Any], arrays: dict[str, Any]) -> Members:
    """Return an export of another recipe, for the same catalogue."""
    about = {**json.loads(whole["model.json"]), "settings": {"data": "films", **settings}}
    plain = {name: content for name, content in whole.items() if not name.startswith("params/")}
    params = {f"params/{name}.npy": npy(array) for name, array in arrays.items()}
    return {**plain, **params, "model.json": json.dumps(about).encode()}


@pytest.mark.parametrize("recipe", ["popularity", "own-items", "ease", "item-knn", "dpals", "fcf"])
@pytest.mark.parametrize(
    "arrays",
    [
        {"z": np.zeros(ITEMS)},
        {"popularity": 1.0, "weights": 1.0, "items/vectors": 1.0},
        {"popularity": np.zeros(0), "weights": np.zeros(0), "items/vectors": np.zeros(0)},
    ],
    ids=["others", "numbers", "empty"],
)
def test_arrays_that_do_not_fit_are_refused(
    recipe: str, arrays: dict[str, Any], whole: Members, scratch: Path, refused: Refused
) -> None:
    more = {"epsilon": 8.0, "mechanism": "gaussian"} if recipe == "dpals" else {}
    write(of_recipe(whole, {"recipe": recipe, **more}, arrays), scratch / "bad")
    assert "do not fit the catalogue" in refused("recommend", "bad", "--like", "i1")


@pytest.mark.parametrize("value", [10**9, 10**30])
@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        *[("ncf", key) for key in ("adapt_steps", "adapt_negatives")],
        *[("privrec", key) for key in ("adapt_steps", "adapt_negatives", "adapt_epochs")],
        ("privrec", "batch_size"),
    ],
)
def test_a_model_cannot_keep_a_phone_busy_for_ever(
    recipe: str, key: str, value: int, whole: Members, scratch: Path, refused: Refused
) -> None:
    write(of_recipe(whole, {"recipe": recipe, key: value}, {"z": 0.0}), scratch / "bad")
    assert f"`{key}` must be <= " in refused("recommend", "bad", "--like", "i1")


def test_adaptation_has_a_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(adapt, "local_sgd", lambda model, **how: asked.append(how["max_steps"]))
    monkeypatch.setattr(adapt, "check_shapes", lambda *_: None)
    monkeypatch.setattr(adapt, "adapted_scorer", lambda *_, **__: None)
    for steps in (0, 7):
        settings = configure("privrec", DATA, {"adapt_steps": steps, "adapt_epochs": 1000})
        plan_on_device(settings, privrec.load(DATA).catalogue).ranker({})
    assert {*asked} == {200_000, 7}


def test_what_could_not_be_opened_is_not_exported(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = privrec.train("popularity", DATA, out=scratch / "run")
    monkeypatch.setattr("privrec.device._MOST_TEXT", 100)
    with pytest.raises(RunFolderError, match="far more than an export has"):
        export_run(run, scratch / "model")
    assert [path.name for path in scratch.iterdir()] == ["run"]


def test_what_devices_were_told_of_each_other_is_not_exported(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matching of fedgnn gives devices a key, and vectors of single people."""
    run = privrec.train("popularity", DATA, out=scratch / "run")
    model = run.model()
    params = {**model.params, **empty_table(3, 2, 4)}
    monkeypatch.setattr(privrec.Run, "model", lambda self: replace(model, params=params))
    with pytest.raises(RunFolderError, match=r"'matching/key' cannot be exported"):
        export_run(run, scratch / "model")
    assert [path.name for path in scratch.iterdir()] == ["run"]
