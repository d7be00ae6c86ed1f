"""A file of a run folder that is not what privrec wrote: one line on stderr, exit code 2.

Where a command does not need the file, it works as if nothing had happened.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import SET, Refused, document, done, invoke
from tiny import DATA

OTHER = "synthetic:users=50,items=30,longest=20"
READERS = {
    "evaluate": ["evaluate", "RUN", "--references", "none"],
    "recommend": ["recommend", "RUN"],
    "compare": ["compare", "RUN"],
    "report": ["report", "RUN"],
    "export": ["export", "RUN", "--out", "model.privrec"],
    "spent": ["privacy", "spent", "RUN"],
    "resume": ["train", "popularity", "--out", "RUN", "--resume"],
    "lists": ["recommend", "RUN", "--everybody", "--out", "lists.csv"],
    "attack": ["attack", "RUN", "--kinds", "loss", "--repetitions", "0"],
    "audit": ["audit", "RUN", "--canaries", "0"],
}
NEEDED_BY = {
    "config.toml": ("evaluate", "recommend", "compare", "spent", "resume", "attack", "audit"),
    "catalogue.json": ("evaluate", "recommend", "export", "lists"),
    "params.safetensors": ("evaluate", "recommend", "export", "lists"),
    "checkpoint.safetensors": ("spent", "resume"),
    "ledger.jsonl": ("evaluate", "export", "spent"),
    "rounds.jsonl": ("resume", "spent"),
    "simulation/data.json": ("evaluate", "resume", "lists"),
    "simulation/rounds.jsonl": ("compare",),
    "simulation/evaluation.json": ("compare",),
    "simulation/attack.json": ("report",),
    "simulation/audit.json": ("report",),
}
AREA = {"value": 0.6, "low": 0.5, "high": 0.7}
BESIDE: dict[str, Any] = {
    "attack.json": {
        **{"recipe": "popularity", "data": DATA, "seed": 0},
        **{"attacks": {"loss": {"auc": AREA}}},
    },
    "audit.json": {
        **{"recipe": "popularity", "data": DATA, "seed": 0, "canaries": 9, "epsilon_lower": 0.5},
        **{"epsilon_ledger": None, "holds": True, "delta": 1e-6, "confidence": 0.95},
    },
}


def as_texts(value: Any) -> Any:
    """Return the same with every number as text."""
    if isinstance(value, dict):
        return {key: as_texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [as_texts(one) for one in value]
    return str(value) if isinstance(value, int | float) else value


def emptied(value: Any) -> Any:
    """Return the same keys with nothing in them."""
    return {key: {} if isinstance(one, dict) else one for key, one in value.items()}


def each_line(change: Callable[[Any], Any], content: bytes) -> bytes:
    """Change the JSON document in a file, or the documents in its lines."""
    try:
        return json.dumps(change(json.loads(content))).encode()
    except ValueError:
        lines = [json.dumps(change(json.loads(line))) for line in content.splitlines()]
        return "".join(f"{line}\n" for line in lines).encode()


def put_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def put_link(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


Spoil = Callable[[Path, Path], Any]
KINDS: dict[str, Spoil] = {
    "empty": lambda file, _: file.write_bytes(b""),
    "cut": lambda file, _: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "noise": lambda file, _: file.write_bytes(bytes(k * 7919 % 256 for k in range(999)) + b"\n"),
    "a list": lambda file, _: file.write_bytes(b"[1, 2]\n"),
    "a number": lambda file, _: file.write_bytes(b"3\n"),
    "nothing": lambda file, _: file.write_bytes(b"null\n"),
    "no keys": lambda file, _: file.write_bytes(b"{}\n"),
    "deep": lambda file, _: file.write_bytes(b"[" * 9999 + b"\n"),
    "of another recipe": lambda file, other: shutil.copy(other / "recipe" / at(file), file),
    "of other data": lambda file, other: shutil.copy(other / "data" / at(file), file),
    "a folder": lambda file, _: put_folder(file),
    "a link to itself": lambda file, _: put_link(file),
    "a zip": lambda file, other: shutil.copy(other / "model.privrec", file),
    "texts for numbers": lambda file, _: file.write_bytes(each_line(as_texts, file.read_bytes())),
    "emptied": lambda file, _: file.write_bytes(each_line(emptied, file.read_bytes())),
}
RARE = ("a number", "nothing", "a zip", "a link to itself")
"""Only among the slow tests."""
JSON_ONLY = ("texts for numbers", "emptied")


def at(file: Path) -> str:
    """Return the place of a file in its run folder, which is called `run`."""
    return file.as_posix().rpartition("/run/")[2]


def train(recipe: str, data: str, place: Path, *settings: str) -> None:
    document("train", recipe, "--data", data, "--out", place, *settings, "--json")
    document("evaluate", place, "--references", "none", "--json")
    for name, content in BESIDE.items():
        (place / "simulation" / name).write_text(json.dumps(content))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, one of another recipe, one on other data, and a model as a phone gets it."""
    place = tmp_path_factory.mktemp("foreign")
    train("popularity", DATA, place / "own")
    train("privrec", OTHER, place / "recipe", *SET)
    train("popularity", OTHER, place / "data")
    done("export", place / "own", "--out", place / "model.privrec")
    return place


def check(runs: Path, scratch: Path, file: str, kind: str, reader: str) -> int:
    """Return the exit code of a command on a copy of the run with a spoiled file."""
    run = scratch / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(runs / "own", run)
    KINDS[kind](run / file, runs)
    if reader == "resume" and file != "params.safetensors":
        (run / "params.safetensors").unlink()
    result = invoke(*(str(run) if word == "RUN" else word for word in READERS[reader]))
    about = (file, kind, reader, result.output, result.exception)
    assert result.exit_code in (0, 2), about
    assert isinstance(result.exception, SystemExit | None), about
    if result.exit_code == 2:
        assert result.stdout == "", about
        [line] = result.stderr.splitlines()
        assert line.startswith("privrec: "), about
        assert len(line) < 500, about
    return result.exit_code


ABSENT = ("a folder", "a link to itself")
FOREIGN = ("of another recipe", "of other data")
FINE: dict[str, set[tuple[str, str]]] = {
    # What was spent is in the ledger alone.
    # A recommendation needs no data, and data may be moved: the path is not part of a run.
    "config.toml": {(kind, "spent") for kind in FOREIGN} | {("of other data", "recommend")},
    # Data has a catalogue of its own; the run's is only asked for what it does not declare.
    "catalogue.json": {(kind, "evaluate") for kind in FOREIGN}
    | {("texts for numbers", name) for name in NEEDED_BY["catalogue.json"]},
    # A fit of one round is repeated. A checkpoint of more rounds than the ledger has is refused.
    "checkpoint.safetensors": {("of other data", "spent"), ("a link to itself", "resume")}
    | {("of other data", "resume")}
    | {(kind, "spent") for kind in ABSENT},
    # The chain of a ledger is no signature (docs/privacy.md), but parameters have its mark.
    "ledger.jsonl": {(kind, "spent") for kind in FOREIGN},
    # As after a kill. The ledger counts, not this file.
    "rounds.jsonl": {
        (kind, name) for kind in ("empty", "cut", "emptied") for name in ("resume", "spent")
    }
    | {(kind, "resume") for kind in FOREIGN}
    | {(kind, "spent") for kind in (*ABSENT, "of other data")},
    "simulation/data.json": {
        (kind, name) for kind in JSON_ONLY for name in NEEDED_BY["simulation/data.json"]
    },
    "simulation/rounds.jsonl": {
        (kind, "compare") for kind in ("empty", "cut", "emptied", *FOREIGN, *ABSENT)
    },
    **{
        f"simulation/{name}.json": {
            (kind, reader) for kind in ("emptied", *FOREIGN, *ABSENT) for reader in ("report",)
        }
        for name in ("attack", "audit")
    },
}
"""Where a command works: it needs nothing of the file, or cannot tell it from its own."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in RARE)) for kind in KINDS]
)
@pytest.mark.parametrize("file", NEEDED_BY)
def test_a_spoiled_file_is_one_line(runs: Path, scratch: Path, file: str, kind: str) -> None:
    if kind in JSON_ONLY and not file.endswith(("json", "jsonl")):
        return
    codes = {reader: check(runs, scratch, file, kind, reader) for reader in NEEDED_BY[file]}
    fine = FINE.get(file, set())
    assert codes == {reader: 0 if (kind, reader) in fine else 2 for reader in codes}


@pytest.mark.parametrize(
    ("spoil", "words", "said"),
    [
        ("params.safetensors", ["recommend", "RUN"], ["is of another run"]),
        (
            "simulation/evaluation.json",
            ["compare", "RUN"],
            ["of another run, with data", "evaluate again"],
        ),
        ("simulation/data.json", ["evaluate", "RUN"], ["the data has changed"]),
        ("catalogue.json", ["export", "RUN", "--out", "f"], ["'popularity'", "(30,)", "(40,)"]),
        ("config.toml", ["evaluate", "RUN"], ["the data has changed"]),
    ],
)
def test_a_file_of_another_run_is_named(
    runs: Path, refused: Refused, scratch: Path, spoil: str, words: list[str], said: list[str]
) -> None:
    shutil.copytree(runs / "own", scratch / "run")
    KINDS["of other data"](scratch / "run" / spoil, runs)
    line = refused(*("run" if word == "RUN" else word for word in words))
    assert [word for word in said if word not in line] == [], line


def test_what_is_no_run_at_all_is_said(runs: Path, refused: Refused, scratch: Path) -> None:
    shutil.copy(runs / "model.privrec", scratch / "model.privrec")
    (scratch / "films").mkdir()
    (scratch / "films" / "dataset.toml").touch()
    (scratch / "notes.txt").write_text("hello")
    shutil.copytree(runs / "own", scratch / "runs" / "first")
    assert "is a file, not a run folder" in refused("evaluate", "model.privrec")
    assert "is not an exported model" in refused("recommend", "notes.txt")
    assert "is a data folder, not a run" in refused("evaluate", "films")
    assert "did you mean 'runs/first'?" in refused("evaluate", "runs/frist")
    assert "is a run folder, not data" in refused("train", "ease", "--data", "runs/first")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("file", NEEDED_BY)
def test_a_file_without_permission_is_one_line(runs: Path, scratch: Path, file: str) -> None:
    shutil.copytree(runs / "own", scratch / "run")
    (scratch / "run" / file).chmod(0)
    result = invoke(*("run" if one == "RUN" else one for one in READERS[NEEDED_BY[file][0]]))
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("file", NEEDED_BY)
def test_no_command_has_a_traceback_for_any_file(
    runs: Path, scratch: Path, file: str, reader: str
) -> None:
    for kind in KINDS:
        if kind not in JSON_ONLY or file.endswith(("json", "jsonl")):
            check(runs, scratch, file, kind, reader)
