"""The command line as a newcomer and a script meet it: figures, JSON, exit codes, one-line errors.

The people, items and settings are as few as they can be; the compiled code is shared by all tests.
"""

import errno
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import polars as pl
import pytest
from typer.testing import CliRunner, Result

import privrec
from privrec.cli import app
from privrec.console import print_table, progress
from privrec.data.tables import Manifest, Tables, write_folder
from privrec.recipes import RECIPES
from privrec.records import RunFolder
from tiny import DATA, MODEL, as_options

TINY = {**MODEL, "rounds": 3, "validate_every": 2}
SET = as_options(TINY)
KS = ["5", "10", "20", "30"]

Refused = Callable[..., str]


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def done(*words: str | Path) -> str:
    """Return what a command that must succeed prints; it says nothing on stderr."""
    result = invoke(*words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def document(*words: str | Path) -> Any:
    """Return the one JSON document that a command prints."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(done(*words), parse_constant=refuse)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return everything under a folder, hidden or not."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(scratch: Path) -> Refused:
    """Run a command that must be refused; return its one line. Nothing may change on disk."""

    def check(*words: str | Path) -> str:
        before = tree(scratch)
        result = invoke(*words)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert tree(scratch) == before
        [line] = result.stderr.splitlines()
        assert line.startswith("privrec: ")
        return line

    return check


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, not evaluated. Tests that change it take a copy."""
    path = tmp_path_factory.mktemp("cli") / "run"
    said = document("train", "privrec", "--data", DATA, "--out", path, *SET, "--json")
    none = {"epsilon": None, "delta": None, "stage_two_epsilon": None}
    assert said == {"run": str(path), "rounds": 3, "privacy": none}
    return path


@pytest.fixture(scope="module")
def evaluated(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The same run evaluated, and what the command printed."""
    path = tmp_path_factory.mktemp("cli") / "evaluated"
    shutil.copytree(trained, path)
    return path, document("evaluate", path, "--json")


@pytest.fixture
def copy(trained: Path, scratch: Path) -> RunFolder:
    shutil.copytree(trained, scratch / "run")
    return RunFolder(path=scratch / "run")


# --- what the commands do --------------------------------------------------------------------


def test_training_leaves_the_run_folder_of_the_contract(trained: Path) -> None:
    assert sorted(os.listdir(trained)) == [
        "checkpoint.safetensors",
        "config.toml",
        "ledger.jsonl",
        "params.safetensors",
        "rounds.jsonl",
    ]
    lines = [json.loads(line) for line in (trained / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2]
    # Whatever comes from raw data is labelled.
    assert all(set(line) == {"round", "stage", "seconds", "simulation_only"} for line in lines)
    figures = [line["simulation_only"] for line in lines]
    assert [found["clients"] for found in figures] == [8, 8, 8]
    # After every second round, and after the last.
    assert ["validation" in found for found in figures] == [False, True, True]
    releases = [json.loads(line) for line in (trained / "ledger.jsonl").read_text().splitlines()]
    assert [line["round"] for line in releases] == [0, 1, 2]
    assert {line["mechanism"] for line in releases} == {"none"}


def test_evaluation_json_has_the_contracts_shape(evaluated: tuple[Path, Any]) -> None:
    path, found = evaluated
    assert json.loads((path / "evaluation.json").read_text()) == found
    assert list(found)[:4] == ["recipe", "data", "seed", "users"]
    assert set(found) == {
        *("recipe", "data", "seed", "users", "hits", "ndcg", "list_ndcg", "new_only"),
        *("references", "privacy"),
    }
    assert (found["recipe"], found["data"], found["seed"]) == ("privrec", DATA, 0)
    users = found["users"]
    assert {"train", "test", "skipped"} <= set(users)
    # A fifth of the 60 people are tested, a tenth of the others validate.
    assert users["test"] + users["skipped"] == 12
    assert (users["train"], users["validation"]) == (43, 5)
    for name in ("popularity", "own-items", "item-knn", "ease"):
        assert name in found["references"]
    for figures in (found, *found["references"].values()):
        for shares in (figures["hits"], figures["new_only"]["hits"]):
            assert list(shares) == KS
            assert 0 <= shares["5"] <= shares["10"] <= shares["20"] <= shares["30"] <= 1
        for name in ("ndcg", "list_ndcg"):
            assert list(figures[name]) == KS
            assert all(0 <= value <= 1 for value in figures[name].values())
    privacy = found["privacy"]
    assert set(privacy) >= {"epsilon", "delta", "sampling", "rounds", "end_to_end", "statement"}
    assert privacy["epsilon"] is None
    assert privacy["rounds"] == 3
    assert privacy["statement"].startswith("No differential privacy guarantee")
    assert privacy["statement"].endswith(".")


def test_evaluation_for_people_shows_the_same_figures(copy: RunFolder) -> None:
    said = done("evaluate", copy.path)
    found = json.loads(copy.evaluation_path.read_text())
    rows = {line.split("│")[1].strip(): line for line in said.splitlines() if "│" in line}
    for name, figures in {"privrec": found, **found["references"]}.items():
        assert [f"{figures['hits'][k]:.3f}" for k in KS] == [
            cell.strip() for cell in rows[name].split("│")[2:6]
        ]
    # A script gets the statement and the path in one piece each.
    assert found["privacy"]["statement"] in said.splitlines()
    assert f"report: {copy.report_path}" in said.splitlines()
    assert found["privacy"]["statement"].split(":")[0] in copy.report_path.read_text()


def test_recommending_ranks_what_is_not_known_yet(trained: Path) -> None:
    given = ["--like", "The Silent Harbour", "--like", "i3", "--dislike", "the golden harbour"]
    found = document("recommend", trained, *given, "--feature", "age=18-29", "--top", "5", "--json")
    assert [set(entry) for entry in found] == [{"item", "title", "score"}] * 5
    assert not {"i0", "i1", "i3"} & {entry["item"] for entry in found}
    scores = [entry["score"] for entry in found]
    assert scores == sorted(scores, reverse=True)
    said = done("recommend", trained, *given, "--feature", "age=18-29", "--top", "5")
    assert [said.index(entry["title"]) for entry in found] == sorted(
        said.index(entry["title"]) for entry in found
    )
    assert len(document("recommend", trained, *given, "--json")) == 10
    # 40 items, three of them hers.
    assert len(document("recommend", trained, *given, "--top", "999", "--json")) == 37


def test_comparing_shows_every_run(evaluated: tuple[Path, Any], scratch: Path) -> None:
    path, found = evaluated
    other = scratch / "other"
    shutil.copytree(path, other)
    assert document("compare", path, other, "--json") == {str(path): found, str(other): found}
    said = done("compare", path, "other", "--html", "page.html")
    page = (scratch / "page.html").read_text()
    for text in (said, page):
        assert "other" in text
        assert f"{found['hits']['10']:.3f}" in text
        assert "popularity (seed 0)" in text
    assert str(path) in page
    assert sorted(os.listdir(scratch)) == ["other", "page.html"]


def test_recipes_are_listed_and_shown() -> None:
    listed = document("recipes", "--json")
    assert [set(entry) for entry in listed] == [{"name", "summary", "privacy"}] * len(listed)
    assert [entry["name"] for entry in listed] == list(RECIPES)
    lines = done("recipes").splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)
    settings = document("recipes", "privrec-paper", "--data", "frappe", "--json")
    assert (settings["rounds"], settings["cohort"], settings["local_epochs"]) == (40, 30, 100)
    assert "local_epochs" in done("recipes", "privrec-paper")


def test_data_is_listed_and_described() -> None:
    listed = {entry["name"]: entry["here"] for entry in document("data", "list", "--json")}
    assert set(listed) == {"synthetic", "movielens-1m", "frappe"}
    assert listed["synthetic"] is True
    assert "movielens-1m" in done("data", "list")
    found = document("data", "describe", DATA, "--json")
    clients = privrec.load(DATA)
    assert (found["people"], found["items"]) == (60, 40)
    assert found["interactions per person, largest"] <= 20
    assert 0 < found["likes"] < found["interactions"]
    assert [feature["name"] for feature in found["features"]] == ["age", "region", "genres"]
    assert [feature.name for feature in clients.schema.features] == ["age", "region", "genres"]
    assert f"{found['interactions']:,}" in done("data", "describe", DATA)


def test_the_command_line_overrules_the_file_which_may_be_another_runs(
    trained: Path, scratch: Path
) -> None:
    config = trained / "config.toml"
    again = document("train", "privrec", "--config", config, "--out", "again", "--json")
    assert again["rounds"] == 3
    params = scratch / "again" / "params.safetensors"
    assert params.read_bytes() == (trained / "params.safetensors").read_bytes()
    assert (scratch / "again" / "config.toml").read_text() == config.read_text()
    words = ["--seed", "7", "--data", DATA + ",seed=1", "--set", "rounds=1"]
    other = document("train", "privrec-sgd", "--config", config, *words, "--json")
    assert other["run"] == "runs/privrec-sgd-synthetic-users-60-items-40-longest-20-seed-1-7"
    text = (scratch / other["run"] / "config.toml").read_text()
    for line in ('recipe = "privrec-sgd"', "seed = 7", f'data = "{DATA},seed=1"', "rounds = 1"):
        assert line in text.splitlines()


def test_a_file_of_settings_counts_unless_overruled(scratch: Path) -> None:
    lines = [f"{key} = {value}" for key, value in TINY.items()]
    (scratch / "my.toml").write_text("\n".join([*lines, f'data = "{DATA}"', "seed = 5"]))
    words = ["train", "popularity", "--config", "my.toml", "--set", "cohort=4"]
    assert document(*words, "--json")["run"].endswith("longest-20-5")
    [run] = (scratch / "runs").iterdir()
    text = (run / "config.toml").read_text()
    assert "cohort = 4" in text
    assert "batch_size = 64" in text


# --- the frame: help, exit codes, progress ---------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["train", "-h"], ["data", "--help"], ["--version"]])
def test_help_does_not_wait_for_jax(words: list[str]) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from privrec.cli import app;"
        f"result = CliRunner().invoke(app, {words}); assert result.exit_code == 0, result.output;"
        "print(result.stdout); slow = {'jax', 'jaxlib', 'polars'} & set(sys.modules);"
        "assert not slow, slow"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ("Usage: " in ran.stdout) == (words != ["--version"])


def test_the_help_says_where_a_run_goes_and_every_command_has_help() -> None:
    assert "runs/RECIPE-DATA-SEED" in done("train", "--help")
    for command in ("train", "evaluate", "recommend", "compare", "recipes", "data"):
        assert command in done("--help")
        assert "Usage" in done(command, "--help")
    for command in ("list", "describe", "fetch", "import"):
        assert "Usage" in done("data", command, "--help")


@pytest.mark.parametrize("words", [["train"], ["frobnicate"], ["train", "privrec", "--nope"]])
def test_wrong_usage_ends_with_two_and_a_usage_box(words: list[str]) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_real_process_says_one_line_and_ends_with_two(tmp_path: Path) -> None:
    code = "from privrec.cli import main; main()"
    words = ["evaluate", str(tmp_path / "nowhere")]
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"privrec: {tmp_path / 'nowhere'} does not exist\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is full")
def test_a_full_disk_behind_stdout_is_one_line_too() -> None:
    code = "from privrec.cli import main; main()"
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", code, "recipes", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (2, "privrec: No space left on device\n")


def test_a_failure_of_ours_ends_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privrec.recipes.RECIPES", None)
    assert invoke("recipes").exit_code == 1


def test_there_is_no_progress_bar_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where colours are forced, as continuous integration does."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress() as advance:
        advance("rounds", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_there_is_one_on_a_terminal_with_rate_and_time_left() -> None:
    code = (
        "import time; from privrec.console import progress\n"
        "with progress() as advance:\n"
        "    for done in range(1, 6):\n"
        "        advance('rounds', done, 9); time.sleep(0.15)\n"
    )
    leader, follower = pty.openpty()

    def read_to_the_end() -> str:
        read = b""
        while not read.endswith(b"the end"):
            read += os.read(leader, 4096)
        return read.decode()

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_to_the_end)
        ran = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=follower,
            env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
            check=False,
        )
        os.write(follower, b"the end")
        shown = reading.result()
    os.close(leader)
    os.close(follower)
    assert ran.returncode == 0, shown
    assert ran.stdout == b""
    assert "rounds" in shown
    assert "5/9" in shown
    assert "/s" in shown
    assert "0:00:0" in shown


def test_titles_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets are no markup, whatever else they may be to the library that prints."""
    titles = [
        "[red]Alarm[/red]",
        "[/] Slash",
        "[/b]",
        "千と千尋",
        "<script>",
        "Up [2009]",
        ":smile:",
    ]
    print_table("[/]", ("[title]", "item"), [(title, "i1") for title in titles])
    shown = capsys.readouterr().out
    for title in ["[/]", "[title]", *titles]:
        assert title in shown


# --- wrong input: settings -------------------------------------------------------------------

WRONG_SETTINGS = [
    ("roundz=3", ["'roundz'", "did you mean 'rounds'?"]),
    ("out=here", ["unknown key 'out'"]),
    ("resume=true", ["unknown key 'resume'"]),
    ("on_progress=1", ["unknown key 'on_progress'"]),
    ("rounds=-1", ["`rounds` must be >= 0; got -1"]),
    ("rounds=many", ["`rounds`", "integer", "'many'"]),
    ("rounds=2.5", ["`rounds`", "2.5"]),
    ("cohort=0", ["`cohort` must be >= 1; got 0"]),
    ("cohort=44", ["`cohort` must be <= 43", "got 44"]),
    ("local_lr=nan", ["`local_lr` must be a finite number; got nan"]),
    ("server_lr=inf", ["`server_lr`", "inf"]),
    ("test_share=nan", ["`test_share`", "nan"]),
    ("validation_share=nan", ["`validation_share`", "nan"]),
    ("test_share=1", ["`test_share` must be < 1; got 1"]),
    ("dislike_target=1.01", ["`dislike_target` must be <= 1; got 1.01"]),
    ("hidden=[]", ["`hidden`", "[]"]),
    ("hidden=[4,0]", ["hidden", "must be >= 1; got 0"]),
    ("activation=rely", ["`activation`", "'relu'", "'rely'"]),
    ("target=rating", ["`negatives`"]),
    ("seed=-1", ["`seed` must be >= 0; got -1"]),
    ("rounds", ["--set takes key=value", "'rounds'"]),
    ("=3", ["--set takes key=value", "'=3'"]),
    ("recipe=ease", ["`recipe` is given twice", "privrec", "ease"]),
    ("data=frappe", ["`data` is given twice", "frappe"]),
]


@pytest.mark.parametrize(("setting", "words"), WRONG_SETTINGS)
def test_a_wrong_setting_is_named(refused: Refused, setting: str, words: list[str]) -> None:
    line = refused("train", "privrec", "--data", DATA, "--out", "run", "--set", setting)
    for word in words:
        assert word in line


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "privrek"], ["unknown recipe 'privrek'", "did you mean 'privrec'?"]),
        (["train", "Ease"], ["did you mean 'ease'?"]),
        (["recipes", "dp-privrecc"], ["unknown recipe 'dp-privrecc'"]),
        (["train", "privrec", "--seed", "-1"], ["`seed` must be >= 0; got -1"]),
        (["train", "privrec", "--seed", "1", "--set", "seed=2"], ["`seed` is given twice"]),
        (["train", "privrec", "--data", "synthetik"], ["did you mean 'synthetic'?"]),
        (["train", "privrec", "--data", "movielens1m"], ["did you mean 'movielens-1m'?"]),
        (["train", "privrec", "--data", "synthetic:userz=9"], ["did you mean 'users'?"]),
        (["train", "privrec", "--data", "synthetic:users=1"], ["`users` must be >= 2; got 1"]),
        (["data", "describe", "zzz"], ["'zzz'", "privrec data list"]),
        (["data", "fetch", "movielens"], ["did you mean 'movielens-1m'?"]),
    ],
)
def test_an_unknown_name_gets_the_nearest(
    refused: Refused, words: list[str], said: list[str]
) -> None:
    line = refused(*words)
    for word in said:
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
    """Odd ones too: square brackets and other scripts in titles, a person who likes nothing."""
    rows = [f"{user},{item},{1 + (user * item) % 5}" for user in range(12) for item in range(1, 7)]
    rows += ["99,1,1", "99,2,1", "99,7,5,"[:-1]]
    (scratch / "mine.csv").write_text("\n".join(["user,item,rating", *rows]) + "\n")
    titles = ["[/] Slash", "千と千尋の神隠し", "Ünïcödé 🎬", "Straße", '"A, ""B"""', "[red]", "C"]
    items = [f"{k},{title}" for k, title in enumerate(titles, 1)]
    (scratch / "items.csv").write_text("\n".join(["id,title", *items]) + "\n")
    done("data", "import", "mine.csv", "--out", "mine", "--items", "items.csv")
    assert document("data", "describe", "mine", "--json")["people"] == 13
    done("train", "item-knn", "--data", "mine", "--out", "run")
    done("evaluate", "run")
    liked = ["--like", "STRASSE", "--like", "千と千尋の神隠し"]
    said = done("recommend", "run", *liked)
    for title in ("[/] Slash", "Ünïcödé", 'A, "B"', "[red]"):
        assert title in said
    found = document("recommend", "run", *liked, "--json")
    assert {entry["item"] for entry in found} == {"1", "3", "5", "6", "7"}


# --- wrong input: runs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--like", "The Silent Harbor"], ["'The Silent Harbor'", "'The Silent Harbour'?"]),
        (["--dislike", "the goldn garden"], ["did you mean 'The Golden Garden'?"]),
        (["--like", ""], ["unknown item ''"]),
        (["--like", "i1", "--dislike", "i1"], ["'The Golden Harbour' was given more than once"]),
        (["--like", "i1", "--like", "the golden harbour"], ["more than once"]),
        (["--feature", "agee=18-29"], ["unknown user feature 'agee'", "did you mean 'age'?"]),
        (["--feature", "age=18-30"], ["'18-30'", "did you mean '18-29'?"]),
        (["--feature", "genres=crime"], ["unknown user feature 'genres'"]),
        (["--feature", "age"], ["--feature takes key=value; got 'age'"]),
        (["--feature", "age=18-29", "--feature", "age=30-44"], ["'age' takes one value"]),
        (["--top", "0"], ["`top` must be >= 1; got 0"]),
        (["--top", "-3"], ["`top` must be >= 1; got -3"]),
    ],
)
def test_a_wrong_wish_is_named(
    refused: Refused, trained: Path, words: list[str], said: list[str]
) -> None:
    line = refused("recommend", trained, *words)
    for word in said:
        assert word in line


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
    text = copy.config_path.read_text()
    for damaged_text in (text[:100], "\n".join(text.splitlines()[:4]), ""):
        copy.config_path.write_text(damaged_text)
        for command in ("evaluate", "recommend", "compare"):
            assert "run/config.toml" in refused(command, "run")
    copy.config_path.write_text(text.replace("format = 2", "format = 99"))
    for command in ("evaluate", "recommend", "compare"):
        assert "format 99; this privrec reads format 2" in refused(command, "run")


def test_a_damaged_evaluation_is_not_compared(refused: Refused, copy: RunFolder) -> None:
    for text in ("", "{", "{}", "[]"):
        copy.evaluation_path.write_text(text)
        assert "run/evaluation.json" in refused("compare", "run", "--html", "page.html")


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
    assert line == "privrec: cannot write run/config.toml: No space left on device"


def test_a_full_disk_leaves_the_evaluation_of_before(
    refused: Refused, copy: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.evaluation_path.write_text("the one of before")
    monkeypatch.setattr(os, "fsync", no_space)
    line = refused("evaluate", "run")
    assert line == "privrec: cannot write run/evaluation.json: No space left on device"
    line = refused("train", "privrec", "--out", "run2", "--config", "run/config.toml")
    assert line == "privrec: cannot write run2/config.toml: No space left on device"


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
    assert sorted(os.listdir(scratch / "run")) == ["config.toml", "ledger.jsonl"]
    monkeypatch.setattr(RunFolder, "rounds_path", rounds_path)
    done("train", "privrec", "--out", "run", "--resume")
    params = (scratch / "run" / "params.safetensors").read_bytes()
    assert params == (trained / "params.safetensors").read_bytes()
