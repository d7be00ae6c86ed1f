"""The command line for a new user and for a script: figures, JSON, help, progress."""

import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import privrec
from commands import TINY, document, done, invoke
from privrec.algorithms.recipes import RECIPES
from privrec.cli.console import print_table, progress
from privrec.evaluation.intervals import Difference
from privrec.runs.figures import figure_and_arm, signed_with_arm
from privrec.runs.folder import RunFolder
from tiny import DATA

KS = ["5", "10", "20", "30"]


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- what the commands do --------------------------------------------------------------------


def test_training_leaves_the_run_folder_of_the_contract(trained: Path) -> None:
    assert sorted(os.listdir(trained)) == [
        "catalogue.json",
        "checkpoint.safetensors",
        "config.toml",
        "ledger.jsonl",
        "params.safetensors",
        "rounds.jsonl",
        "simulation",
    ]
    # Everything that comes from raw data is in `simulation/`.
    raw = ["data.json", "progress.json", "rounds.jsonl"]
    assert sorted(os.listdir(trained / "simulation")) == raw
    assert lines_of(trained / "rounds.jsonl") == [
        {"round": number, "stage": "train"} for number in range(3)
    ]
    figures = lines_of(trained / "simulation" / "rounds.jsonl")
    keys = {"round", "stage", "seconds", "clients", "loss", "clipped", "dropped", "skipped"}
    looks = {"validation", "validation_interval", "best", "stopped"}
    assert [set(found) - looks for found in figures] == [keys] * 3
    assert [found["round"] for found in figures] == [0, 1, 2]
    assert [found["clients"] for found in figures] == [8, 8, 8]
    # After every second round, and after the last.
    assert [looks <= found.keys() for found in figures] == [False, True, True]
    last = figures[-1]
    for k, (low, high) in last["validation_interval"].items():
        assert 0 <= low <= last["validation"][k] <= high <= 1
    releases = lines_of(trained / "ledger.jsonl")
    assert [line["round"] for line in releases] == [0, 1, 2]
    assert {line["mechanism"] for line in releases} == {"none"}


def test_evaluation_json_has_the_contracts_shape(evaluated: tuple[Path, Any]) -> None:
    path, found = evaluated
    assert json.loads(RunFolder(path=path).evaluation_path.read_text()) == found
    assert set(found) == {
        *("recipe", "data", "data_name", "seed", "users", "hits", "ndcg", "list_ndcg", "new_only"),
        *("protocol", "candidates", "cost", "few_items", "references", "privacy"),
        *("interval", "differences", "beyond", "beyond_interval", "by_items", "warnings"),
        "by_popularity",
    }
    assert found["differences"].keys() == found["references"].keys()
    assert found["new_only"]["differences"].keys() == found["references"].keys()
    for by_k in found["differences"].values():
        assert list(by_k) == KS
        assert all(one["low"] <= one["by"] <= one["high"] for one in by_k.values())
    for group in found["by_items"]:
        assert group.keys() == {"from", "to", "people", "hits", "interval", "references"}
    assert sum(group["people"] for group in found["by_items"]) == found["users"]["test"]
    parts = found["by_popularity"]
    assert [part["part"] for part in parts] == ["head", "middle", "tail"]
    assert sum(part["items"] for part in parts) == 40
    for part in parts:
        assert part["references"].keys() == found["references"].keys()
    assert found["warnings"] == []
    assert (found["recipe"], found["data"], found["seed"]) == ("privrec", DATA, 0)
    users = found["users"]
    assert {"train", "test", "skipped"} <= set(users)
    # Of the 60 people about a fifth are tested, and about a tenth of the others validate.
    assert users["test"] + users["skipped"] == 12
    assert (users["train"], users["validation"]) == (46, 2)
    for name in ("popularity", "own-items", "item-knn", "ease"):
        assert name in found["references"]
    for figures in (found, *found["references"].values()):
        for shares in (figures["hits"], figures["new_only"]["hits"]):
            assert list(shares) == KS
            assert 0 <= shares["5"] <= shares["10"] <= shares["20"] <= shares["30"] <= 1
        assert list(figures["interval"]) == list(figures["new_only"]["interval"]) == KS
        assert figures["beyond"].keys() == {"coverage", "novelty", "popular_hits"}
        for name in ("ndcg", "list_ndcg"):
            assert list(figures[name]) == KS
            assert all(0 <= value <= 1 for value in figures[name].values())
    privacy = found["privacy"]
    assert set(privacy) >= {"epsilon", "delta", "sampling", "rounds", "end_to_end", "statement"}
    assert (privacy["epsilon"], privacy["epsilon_of_mechanism"]) == (None, None)
    assert privacy["rounds"] == 3
    assert privacy["statement"].startswith("No differential privacy guarantee")
    assert privacy["statement"].endswith(".")


def test_evaluation_for_people_shows_the_same_figures(copy: RunFolder) -> None:
    said = done("evaluate", copy.path)
    assert "popular hits: share of the hits that popularity has too" in said
    found = json.loads(copy.evaluation_path.read_text())
    rows: dict[str, list[list[str]]] = {}
    for line in said.splitlines():
        if "│" in line:
            name, *cells = (cell.strip() for cell in line.split("│")[1:-1])
            rows.setdefault(name, []).append(cells)
    for name, figures in {"privrec": found, **found["references"]}.items():
        hits, beside = rows[name]
        assert hits == [figure_and_arm(figures["hits"][k], figures["interval"][k]) for k in KS]
        assert all(" ± " in cell for cell in hits)
        ends = {**figures["beyond_interval"], "coverage": {}}
        ends |= {"popular_hits": {}} if name == "popularity" else {}
        names = ("coverage", "novelty", "popular_hits")
        assert beside[1:] == [
            figure_and_arm(figures["beyond"][one]["20"], ends[one].get("20")) for one in names
        ]
        if name != "privrec":
            by = found["differences"][name]["20"]
            # A difference has its sign, and stands below no "better".
            assert beside[0] == signed_with_arm(Difference(**by))
            assert beside[0].startswith("-") == (by["by"] <= -0.0005)
    assert "better" not in said.split("The first 20 of each list")[1].splitlines()[2]
    # A script gets what is promised and the path on one line each.
    assert found["privacy"]["short"] in said.splitlines()
    assert f"report: {copy.report_path}" in said.splitlines()
    assert found["privacy"]["statement"].split(":")[0] in copy.report_path.read_text()


def test_recommending_ranks_what_is_not_known_yet(trained: Path) -> None:
    given = ["--like", "The Silent Harbour", "--like", "i3", "--dislike", "the golden harbour"]
    found = document("recommend", trained, *given, "--feature", "age=18-29", "--top", "5", "--json")
    assert [set(entry) for entry in found] == [{"item", "title", "score", "better_than"}] * 5
    assert not {"i0", "i1", "i3"} & {entry["item"] for entry in found}
    scores = [entry["score"] for entry in found]
    assert scores == sorted(scores, reverse=True)
    # 37 items are left: the best is above 36 others, the next above 35 of 36, and so on.
    shares = [entry["better_than"] for entry in found]
    assert shares == pytest.approx([(36 - place) / 36 for place in range(5)])
    said = done("recommend", trained, *given, "--feature", "age=18-29", "--top", "5")
    assert [said.index(entry["title"]) for entry in found] == sorted(
        said.index(entry["title"]) for entry in found
    )
    assert [f"{share} %" in said for share in (100, 97, 94, 91, 88)] == [True] * 5
    assert f"{scores[0]:.3f}" not in said
    assert len(document("recommend", trained, *given, "--json")) == 10
    # 40 items, of which the person has three.
    assert len(document("recommend", trained, *given, "--top", "999", "--json")) == 37


def test_comparing_shows_every_run(evaluated: tuple[Path, Any], scratch: Path) -> None:
    path, found = evaluated
    other = scratch / "other"
    shutil.copytree(path, other)
    beside = document("compare", path, other, "--json")
    assert beside.keys() == {str(path), str(other)}
    for one in beside.values():
        assert {**one, "cost": None} == {**found, "cost": None, "against": one["against"]}
    # It is a copy: nobody differs.
    assert beside[str(other)]["against"][str(path)]["hits"]["20"]["by"] == 0
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
    assert set(listed) == {"synthetic", "movielens-1m", "frappe", "gowalla"}
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
    words = ["train", "privrec", "--config", "my.toml", "--set", "cohort=4"]
    assert document(*words, "--json")["run"].endswith("longest-20-5")
    [run] = (scratch / "runs").iterdir()
    text = (run / "config.toml").read_text()
    assert "cohort = 4" in text
    assert "batch_size = 64" in text


# --- the frame: help, exit codes, progress ---------------------------------------------------


def test_help_does_not_wait_for_jax() -> None:
    asked = [["--help"], ["train", "-h"], ["attack", "-h"], ["data", "--help"], ["--version"]]
    code = (
        "import sys; from typer.testing import CliRunner; from privrec.cli.app import app\n"
        f"for words in {asked}:\n"
        "    result = CliRunner().invoke(app, words)\n"
        "    assert result.exit_code == 0, result.output\n"
        "    assert ('Usage: ' in result.stdout) == (words != ['--version'])\n"
        "slow = {'jax', 'jaxlib', 'polars', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_the_help_says_where_a_run_goes_and_every_command_has_help() -> None:
    assert "runs/RECIPE-DATA-SEED" in done("train", "--help")
    for command in ("train", "evaluate", "recommend", "export", "compare", "recipes", "data"):
        assert command in done("--help")
        assert "Usage" in done(command, "--help")
    for command in ("list", "describe", "fetch", "import"):
        assert "Usage" in done("data", command, "--help")


def test_no_command_at_all_shows_the_first_steps() -> None:
    result = invoke()
    assert (result.exit_code, result.stderr) == (2, "")
    assert "First steps" in result.stdout


@pytest.mark.slow
def test_a_real_process_says_one_line_and_ends_with_two(tmp_path: Path) -> None:
    code = "from privrec.cli.entry import main; main()"
    words = ["evaluate", str(tmp_path / "nowhere")]
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"privrec: {tmp_path / 'nowhere'} does not exist\n"


def test_a_failure_of_ours_ends_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privrec.algorithms.recipes.RECIPES", None)
    assert invoke("recipes").exit_code == 1


def test_there_is_no_progress_bar_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not with forced colours, as in continuous integration."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress() as advance:
        advance("rounds", 1, 2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_there_is_one_on_a_terminal_with_rate_and_time_left() -> None:
    code = (
        "import time; from privrec.cli.console import progress\n"
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
    assert "0:0" in shown
    assert " left" in shown


def test_titles_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets are printed; the printing library must not read them as markup."""
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


def test_the_next_step_is_fit_for_a_shell(scratch: Path) -> None:
    said = done("train", "popularity", "--data", DATA, "--out", 'my ru"n')
    [line] = [one for one in said.splitlines() if one.startswith("next: ")]
    assert shlex.split(line)[1:] == ["privrec", "evaluate", 'my ru"n']
