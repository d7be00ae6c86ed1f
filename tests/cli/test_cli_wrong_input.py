"""The command line with wrong input: one line, exit code 2, no files left behind."""

import errno
import os
from pathlib import Path
from typing import Any, NoReturn

import polars as pl
import pytest

from commands import SET, Refused, document, done, invoke
from privrec.data.manifest import Manifest
from privrec.data.tables import Tables, write_folder
from privrec.runs.folder import RunFolder
from tiny import DATA

# --- wrong input: settings -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"roundz = 3", ["'roundz'", "did you mean 'rounds'?"]),
        (b"rounds = -1", ["`rounds` must be >= 0; got -1"]),
        (b"local_lr = nan", ["`local_lr`", "nan"]),
        (b"[train]\nrounds = 3", ["unknown key 'train'"]),
        (b"rounds = 3 4", ["my.toml", "line 1"]),
        (b"rounds = 3\nrounds = 4", ["my.toml", "overwrite"]),
        (b"hidden = [4", ["my.toml"]),
        (b"data = \xff", ["my.toml"]),
        (None, ["my.toml", "No such file"]),
    ],
)
def test_a_wrong_file_of_settings_is_named(
    refused: Refused, scratch: Path, content: bytes | None, words: list[str]
) -> None:
    if content is not None:
        (scratch / "my.toml").write_bytes(content)
    line = refused("train", "privrec", "--data", DATA, "--out", "run", "--config", "my.toml")
    for word in words:
        assert word in line


# --- wrong input: data -----------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["dataset.toml", "users.parquet", "interactions.parquet"])
def test_a_data_folder_without_a_file_names_it(
    refused: Refused, scratch: Path, missing: str
) -> None:
    lines = pl.DataFrame({"user": ["a", "b"], "item": ["x", "x"]})
    ids = {name: pl.DataFrame({"id": lines[name].unique()}) for name in ("user", "item")}
    manifest = Manifest(name="mine")
    tables = Tables(manifest=manifest, interactions=lines, users=ids["user"], items=ids["item"])
    write_folder(tables, scratch / "mine")
    done("data", "describe", "mine")
    (scratch / "mine" / missing).unlink()
    for words in (["data", "describe", "mine"], ["train", "ease", "--data", "mine"]):
        assert f"mine/{missing} is missing" in refused(*words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["mine.csv is empty"]),
        ("user,item\n", ["mine.csv", "no rows"]),
        ("user,item,rating\na,x,5\nb,x,good\n", ["mine.csv line 3", "'rating'", "'good'"]),
        ("user,item,rating\na,x,nan\n", ["mine.csv line 2", "'nan'"]),
        ("who,item\na,x\n", ["no column 'user'", "--map user="]),
        ("user,item\na,x,5,6\n", ["mine.csv line 2"]),
    ],
)
def test_a_bad_file_is_not_imported(
    refused: Refused, scratch: Path, content: str, words: list[str]
) -> None:
    (scratch / "mine.csv").write_text(content)
    line = refused("data", "import", "mine.csv", "--out", "mine")
    for word in words:
        assert word in line


def test_importing_refuses_wrong_options(refused: Refused, scratch: Path) -> None:
    (scratch / "mine.csv").write_text("user,item\na,x\n")
    (scratch / "full").mkdir()
    (scratch / "full" / "file").write_text("")
    for words, said in [
        (["nowhere.csv", "--out", "mine"], "nowhere.csv"),
        (["mine.csv", "--out", "mine", "--map", "user"], "--map takes ours=theirs; got 'user'"),
        (["mine.csv", "--out", "mine", "--map", "usr=user"], "did you mean 'user'"),
        (["mine.csv", "--out", "full"], "is in the way"),
        (["mine.csv", "--out", "mine.csv/below"], "cannot write"),
    ]:
        assert said in refused("data", "import", *words)


def test_an_imported_file_can_be_trained_on(scratch: Path) -> None:
    """Unusual cases too: square brackets and other scripts in titles, a person without likes."""
    rows = [f"{user},{item},{1 + (user * item) % 5}" for user in range(12) for item in range(1, 7)]
    rows += ["99,1,1", "99,2,1", "99,7,5,"[:-1]]
    (scratch / "mine.csv").write_text("\n".join(["user,item,rating", *rows]) + "\n")
    titles = ["[/] Slash", "千と千尋の神隠し", "Ünïcödé 🎬", "Straße", '"A, ""B"""', "[red]", "C"]
    items = [f"{k},{title}" for k, title in enumerate(titles, 1)]
    (scratch / "items.csv").write_text("\n".join(["id,title", *items]) + "\n")
    named = ["--out", "mine", "--name", "Our shop"]
    done("data", "import", "mine.csv", "--items", "items.csv", *named)
    assert document("data", "describe", "mine", "--json")["people"] == 13
    # With so few people there may be no test person: each role is an independent draw.
    said = done("train", "item-knn", "--data", "mine", "--out", "run", "--set", "test_share=0.5")
    assert "trained item-knn on Our shop (mine)" in said
    assert "Hits@k on Our shop (mine)" in done("evaluate", "run")
    found = document("evaluate", "run", "--json")
    assert (found["data"], found["data_name"]) == ("mine", "Our shop")
    assert "on Our shop (mine)" in (scratch / "run/simulation/report.html").read_text("utf-8")
    assert "Our shop (mine)" in done("compare", "run")
    liked = ["--like", "STRASSE", "--like", "千と千尋の神隠し"]
    said = done("recommend", "run", *liked)
    assert "Our shop" in said
    for title in ("[/] Slash", "Ünïcödé", 'A, "B"', "[red]"):
        assert title in said
    found = document("recommend", "run", *liked, "--json")
    assert {entry["item"] for entry in found} == {"1", "3", "5", "6", "7"}


# --- wrong input: runs -----------------------------------------------------------------------


def test_a_folder_that_is_no_run_is_refused(refused: Refused, scratch: Path) -> None:
    (scratch / "photos").mkdir()
    (scratch / "photos" / "cat.jpg").write_bytes(b"\xff")
    for command in ("evaluate", "recommend", "compare"):
        assert "nowhere does not exist" in refused(command, "nowhere")
        assert "photos is no run folder" in refused(command, "photos")


def test_an_unfinished_run_cannot_be_used_yet(refused: Refused, copy: RunFolder) -> None:
    assert "privrec evaluate run" in refused("compare", "run")
    copy.params_path.unlink()
    for command in ("evaluate", "recommend"):
        assert "run is not finished" in refused(command, "run")
    assert "has no evaluation yet" in refused("compare", "run")


def test_a_damaged_run_is_refused(refused: Refused, copy: RunFolder) -> None:
    whole = copy.params_path.read_bytes()
    for damaged in (b"", whole[:7], whole[: len(whole) // 2], b"\xff" * len(whole)):
        copy.params_path.write_bytes(damaged)
        for command in ("evaluate", "recommend"):
            assert "cannot read run/params.safetensors" in refused(command, "run")
    copy.params_path.write_bytes(whole)
    catalogue = copy.catalogue_path.read_text()
    for damaged_text in ("", "[]", "{}", catalogue[:-1], catalogue.replace('"titles": [', "", 1)):
        copy.catalogue_path.write_text(damaged_text)
        assert "run/catalogue.json is not a whole catalogue" in refused("recommend", "run")
    copy.catalogue_path.write_text(catalogue)
    text = copy.config_path.read_text()
    for damaged_text in (text[:100], "\n".join(text.splitlines()[:4]), ""):
        copy.config_path.write_text(damaged_text)
        for command in ("evaluate", "recommend", "compare"):
            assert "run/config.toml" in refused(command, "run")
    copy.config_path.write_text(text.replace("format = 4", "format = 99"))
    for command in ("evaluate", "recommend", "compare"):
        assert "format 99; this privrec reads format 4" in refused(command, "run")


def test_a_damaged_evaluation_is_not_compared(refused: Refused, copy: RunFolder) -> None:
    for text in ("", "{", "{}", "[]"):
        copy.evaluation_path.write_text(text)
        assert "run/simulation/evaluation.json" in refused("compare", "run", "--html", "page.html")


def test_a_run_is_never_written_over(refused: Refused, copy: RunFolder, scratch: Path) -> None:
    (scratch / "file").write_text("mine")
    train = ["train", "privrec", "--data", DATA, *SET, "--out"]
    assert "run is in the way" in refused(*train, "run")
    assert "file is in the way" in refused(*train, "file")
    assert "cannot write file/run" in refused(*train, "file/run")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder that even root cannot write")
def test_a_folder_that_cannot_be_written_is_named(
    refused: Refused, evaluated: tuple[Path, Any]
) -> None:
    line = refused("train", "privrec", "--data", DATA, *SET, "--out", "/proc/run")
    assert "cannot write /proc/run" in line
    line = refused("compare", evaluated[0], "--html", "/proc/page.html")
    assert "cannot write /proc/page.html" in line


def test_resuming_what_is_not_there_or_is_another_run_is_refused(
    refused: Refused, copy: RunFolder, scratch: Path
) -> None:
    (scratch / "photos").mkdir()
    (scratch / "photos" / "cat.jpg").write_bytes(b"\xff")
    train = ["train", "privrec", "--data", DATA, *SET, "--resume"]
    assert "nowhere does not exist" in refused(*train, "--out", "nowhere")
    assert "photos is no run folder" in refused(*train, "--out", "photos")
    for given, said in [
        (["--seed", "1"], "seed = 0, not 1"),
        (["--set", "rounds=4"], "rounds = 3, not 4"),
        (["--set", "hidden=[4,4]"], "hidden = (4,), not (4, 4)"),
        (["--data", "synthetic"], f"data = '{DATA}', not 'synthetic'"),
    ]:
        line = refused("train", "privrec", "--resume", "--out", "run", *given)
        assert f"run was started with {said}" in line
    line = refused("train", "ease", "--resume", "--out", "run")
    assert "run was started with recipe = 'privrec', not 'ease'" in line


# --- a full disk -----------------------------------------------------------------------------


def no_space(*arguments: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_no_run(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", no_space)
    line = refused("train", "popularity", "--data", DATA, "--out", "run")
    assert line == "privrec: cannot write run/simulation/data.json: No space left on device"


def test_a_full_disk_leaves_the_evaluation_of_before(
    refused: Refused, copy: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.evaluation_path.write_text("the one of before")
    monkeypatch.setattr(os, "fsync", no_space)
    line = refused("evaluate", "run")
    assert (
        line == "privrec: cannot write run/simulation/tested.safetensors: No space left on device"
    )
    line = refused("train", "privrec", "--out", "run2", "--config", "run/config.toml")
    assert line == "privrec: cannot write run2/simulation/data.json: No space left on device"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is full")
def test_a_disk_that_fills_up_during_training_costs_nothing_but_time(
    scratch: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds_path = RunFolder.rounds_path
    monkeypatch.setattr(RunFolder, "rounds_path", Path("/dev/full"))
    words = ["train", "privrec", "--data", DATA, *SET, "--out", "run"]
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "privrec: cannot write /dev/full: No space left on device\n"
    begun = ["catalogue.json", "config.toml", "ledger.jsonl", "simulation"]
    assert sorted(os.listdir(scratch / "run")) == begun
    assert sorted(os.listdir(scratch / "run" / "simulation")) == ["data.json", "progress.json"]
    monkeypatch.setattr(RunFolder, "rounds_path", rounds_path)
    done("train", "privrec", "--out", "run", "--resume")
    params = (scratch / "run" / "params.safetensors").read_bytes()
    assert params == (trained / "params.safetensors").read_bytes()
