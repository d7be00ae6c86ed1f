"""Regression tests for faults that a security review found."""

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privrec
from commands import Refused, document, done
from privrec.data.manifest import Manifest, Public
from privrec.data.tables import Tables, to_federation
from privrec.device import open_model
from privrec.errors import PrivrecError
from privrec.runs.folder import RunFolder, locked
from tiny import DATA, MODEL, as_options

TRAINED = ["train", "dp-privrec-plus", "--data", DATA, "--epsilon", "8", "--out"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("review") / "run"
    done(*TRAINED, path)
    return path


@pytest.fixture
def run(finished: Path, scratch: Path) -> Path:
    shutil.copytree(finished, scratch / "run")
    return scratch / "run"


def tables() -> Tables:
    lines = [(f"u{k}", f"i{j}") for k in range(20) for j in range(2 + k % 4)]
    return Tables(
        manifest=Manifest(
            name="films",
            population="p",
            public=Public(people=20, items=True, values={"town": ("x", "y")}),
        ),
        interactions=pl.DataFrame(lines, schema=["user", "item"], orient="row"),
        users=pl.DataFrame({"id": [f"u{k}" for k in range(20)], "town": ["x", "y"] * 10}),
        items=pl.DataFrame(
            {"id": [f"i{j}" for j in range(6)], "genre": ["a", "b"] * 3, "title": list("uvwxyz")}
        ),
    )


def changed(**parts: Any) -> Tables:
    return replace(tables(), **parts)


PUBLIC = tables().manifest.public
CHANGES: dict[str, Callable[[], Tables]] = {
    "an item's feature": lambda: changed(
        items=tables().items.with_columns(genre=pl.Series(["b", "b", "a", "b", "a", "b"]))
    ),
    "which item is which": lambda: changed(
        items=tables().items.with_columns(id=tables().items["id"].reverse())
    ),
    "a vocabulary": lambda: changed(
        manifest=replace(
            tables().manifest, public=replace(PUBLIC, values={"town": ("x", "y", "z")})
        )
    ),
    "the number of people": lambda: changed(
        manifest=replace(tables().manifest, public=replace(PUBLIC, people=21))
    ),
    "the population": lambda: changed(manifest=replace(tables().manifest, population="q")),
    "a person's feature": lambda: changed(
        users=tables().users.with_columns(town=pl.Series(["y", "y"] * 10))
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_training_depends_on_is_in_the_fingerprint(name: str) -> None:
    """The seed of the noise depends on it, and a run resumes only with the same one."""
    whole = to_federation(tables()).fingerprint
    assert to_federation(tables()).fingerprint == whole
    assert to_federation(CHANGES[name]()).fingerprint != whole


# A missing file or line never makes the reported epsilon smaller.


def cut_the_tail(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_text().splitlines()
    (run / "ledger.jsonl").write_text(lines[0] + "\n")


def cut_everything(run: Path) -> None:
    (run / "ledger.jsonl").unlink()


def leave_a_sum(run: Path) -> None:
    cut_everything(run)
    for name in ("params", "checkpoint"):
        (run / f"{name}.safetensors").unlink()
    (run / "published-0.safetensors").write_bytes(b"a noised sum")


@pytest.mark.parametrize("damage", [cut_the_tail, cut_everything, leave_a_sum])
@pytest.mark.parametrize("kept", [(), ("checkpoint",), ("params",)])
def test_a_ledger_that_lacks_a_release_counts_nothing(
    damage: Callable[[Path], None], kept: tuple[str, ...], run: Path, refused: Refused
) -> None:
    damage(run)
    (run / "rounds.jsonl").unlink()
    if kept and damage is not leave_a_sum:
        (run / f"{kept[0]}.safetensors").unlink()
    line = refused("privacy", "spent", "run")
    assert "epsilon would be too small" in line
    if (run / "params.safetensors").exists():
        assert "epsilon would be too small" in refused("export", "run", "--out", "m")


def test_a_large_delta_is_refused_wherever_it_comes_in(run: Path, refused: Refused) -> None:
    assert "`delta` must be < 1/48" in refused("privacy", "spent", "run", "--delta", "0.9")
    config = run / "config.toml"
    config.write_text(config.read_text().replace("delta = 1e-06", "delta = 0.5"))
    assert "`delta` must be < 1/48" in refused("export", "run", "--out", "m")
    few = ["--set", "train_people=3", "--delta", "0.3"]
    assert "`delta` must be < 1/48" in refused(*TRAINED, "other", *few)


def test_volunteers_of_two_runs_may_be_other_people(scratch: Path) -> None:
    small = {**MODEL, "rounds": 1, "stage1_rounds": 1, "stage1_cohort": 4, "views": 4}
    words = as_options({"stage1": "public", "volunteers": 0.5, **small})
    for seed in ("0", "1"):
        done("train", "dp-privrec", "--data", DATA, "--out", seed, "--seed", seed, *words)
    found = document("privacy", "spent", "0", "1", "--json")
    one, two = (figures["volunteers"] for figures in found["runs"].values())
    assert found["together"]["volunteers"] == one + two


def test_figures_are_of_the_data_that_was_trained_on(tmp_path: Path) -> None:
    run = privrec.train("dp-privrec-plus", to_federation(tables()), out=tmp_path / "run")
    other = replace(run, load_prepared=lambda: replace_data(run))
    with pytest.raises(PrivrecError, match="the data has changed"):
        other.evaluate()


def replace_data(run: privrec.Run) -> Any:
    other = to_federation(CHANGES["which item is which"]())
    return replace(run.prepared, task=replace(run.prepared.task, federation=other))


def test_two_processes_do_not_train_in_one_folder(run: Path, refused: Refused) -> None:
    (run / "params.safetensors").unlink()
    with locked(RunFolder(path=run)):
        assert "in use by another process" in refused(*TRAINED, "run", "--resume")
    done(*TRAINED, "run", "--resume")


def with_member(run: Path, name: str, content: bytes) -> None:
    done("export", run, "--out", "whole")
    with zipfile.ZipFile("whole") as file, zipfile.ZipFile("bad", "w") as out:
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
def test_a_hostile_member_is_refused(name: str, run: Path, refused: Refused) -> None:
    with_member(run, *HOSTILE[name])
    refused("recommend", "bad", "--like", "i1")


@pytest.mark.parametrize("kind", ["<U3", "complex64", "float64", "int64"])
def test_parameters_are_32_bit_numbers(kind: str, run: Path, refused: Refused) -> None:
    np.save("array.npy", np.zeros(40).astype(kind))
    with_member(run, "params/items/bias.npy", Path("array.npy").read_bytes())
    assert "32-bit" in refused("recommend", "bad", "--like", "i1")


def test_any_damaged_byte_of_an_export_is_no_traceback(run: Path) -> None:
    """Some change only a title or a number and are not detected; none may raise another error."""
    done("export", "run", "--out", "whole")
    whole = Path("whole").read_bytes()
    draw = np.random.default_rng(0)
    for place in [*range(60), *draw.integers(0, len(whole), 200)]:
        content = bytearray(whole)
        content[place] ^= 1 << int(draw.integers(8))
        Path("bad").write_bytes(content)
        try:
            open_model("bad").device(likes=["i1"]).recommend(3)
        except PrivrecError:
            continue


def test_titles_of_an_export_are_safe(run: Path) -> None:
    done("export", "run", "--out", "whole")
    with zipfile.ZipFile("whole") as file:
        catalogue = json.loads(file.read("catalogue.json"))
    catalogue["titles"][0] = "\x1b[2J"
    with_member(run, "catalogue.json", json.dumps(catalogue).encode())
    assert "\x1b" not in open_model("bad").catalogue.titles[0]


DAMAGES: dict[str, list[bytes | None]] = {
    "rounds.jsonl": [b"{}\n", b"5\n"],
    "checkpoint.safetensors": [b"", None],
    "catalogue.json": [b"[]", b""],
    "simulation/evaluation.json": [b'{"hits": 3}', b"[]"],
    "simulation/data.json": [b"[]", b""],
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(name: str, run: Path, refused: Refused) -> None:
    for content in DAMAGES[name]:
        other = (run / "params.safetensors").read_bytes()
        (run / name).write_bytes(other if content is None else content)
        if name == "simulation/evaluation.json":
            refused("compare", "run")
        elif name == "simulation/data.json":
            refused("evaluate", "run")
        elif name == "checkpoint.safetensors" and content is None:
            params = run / "params.safetensors"
            params.rename(run.parent / "params")
            refused(*TRAINED, "run", "--resume")
            (run.parent / "params").rename(params)
        else:
            refused("export", "run", "--out", "m")


def test_a_lost_sum_ends_the_run_and_nothing_stands_on_it(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first release is counted and lost: the rest of the budget does not allow both."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("privrec.runs.loop.checkpoint", stop)
        with pytest.raises(KeyboardInterrupt):
            privrec.train("dp-privrec-plus", DATA, out="run", epsilon=8.0)
    Path("run/published-0.safetensors").unlink()
    run = privrec.train("dp-privrec-plus", DATA, out="run", resume=True, epsilon=8.0)
    lines = Path("run/ledger.jsonl").read_text().splitlines()
    # Popularity is released and counted again; the rest of the budget allows no moments.
    assert [json.loads(line)["stage"] for line in lines] == ["popularity", "popularity"]
    assert run.rounds == 1
    epsilon = run.privacy().epsilon
    assert epsilon is not None
    assert epsilon <= 8


def test_a_declared_feature_is_of_the_kind_it_was_declared(tmp_path: Path) -> None:
    """One person's value 25.5 must not make the whole data set unreadable."""
    users = pl.DataFrame({"id": [f"u{k}" for k in range(20)], "age": [25.0] * 19 + [25.5]})
    public = replace(PUBLIC, values={"age": ("25", "35")})
    made = changed(users=users, manifest=replace(tables().manifest, public=public))
    federation = to_federation(made)
    bag = federation.take(np.arange(20)).features["embed/user.age"]
    assert bag.weights[:, 0].tolist() == [1.0] * 19 + [0.0]


def test_small_mistakes_get_their_own_words(scratch: Path, refused: Refused) -> None:
    noised = ["--set", "mechanism=gaussian", "--epsilon", "1"]
    assert "unknown key 'mechanism' for popularity" in refused(
        "train", "popularity", "--out", "run", *noised
    )
    assert "`epsilon`" in refused(*TRAINED, "run", "--epsilon", "nan")
    assert "dataset.toml is missing" in refused("train", "popularity", "--data", "", "--out", "r")
