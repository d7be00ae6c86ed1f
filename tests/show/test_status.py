"""What is said of a run from its folder alone: while it trains, after a kill, and at its end."""

import json
import math
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import privrec
from commands import done, tree
from pages import charts_in
from privrec.errors import RunFolderError
from privrec.privacy.ledger import PrivacyLedger
from privrec.runs.folder import RunFolder, locked, process_mark
from privrec.runs.ledger import append_release, read_ledger
from privrec.show import status
from privrec.show.status import Spending, Status, Watched, check_watchable, sentences
from tiny import DATA, MODEL

SETTINGS = {**MODEL, "rounds": 4, "validate_every": 2}


def interrupted(path: Path, after: int, **settings: Any) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what == "rounds" and done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        privrec.train("privrec", DATA, out=path, on_progress=stop, **{**SETTINGS, **settings})


def told(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RunFolder(path=path).progress_path.read_text())
    return found


def write(path: Path, **changes: Any) -> None:
    RunFolder(path=path).progress_path.write_text(json.dumps({**told(path), **changes}))


def test_a_training_is_watched_from_nothing_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_PATIENCE", 0.0)
    path = tmp_path / "run"
    watched, seen = Watched(path), []
    assert watched.look().as_json()["state"] == "waiting"

    def look(what: str, count: int, total: int) -> None:
        before = tree(path)
        seen.append(watched.look().as_json())
        assert tree(path) == before
        # The training has the lock; looking does not need it.
        with pytest.raises(RunFolderError, match="in use"), locked(RunFolder(path=path)):
            pass

    privrec.train("privrec", DATA, out=path, on_progress=look, **SETTINGS)
    rounds = [found["round"] for found in seen]
    assert rounds == sorted(rounds)
    assert {0, 1, 2, 3, 4} >= set(rounds) >= {0, 4}
    assert {found["of"] for found in seen} == {4}
    assert {found["state"] for found in seen} == {"compiling", "training"}
    assert seen[-1]["memory"]["peak"] >= seen[-1]["memory"]["now"] // 2 > 0
    found = watched.look().as_json()
    assert (found["state"], found["round"], found["of"]) == ("finished", 4, 4)
    lines = [json.loads(line) for line in watched.folder.figures_path.read_text().splitlines()]
    assert rounds_drawn(watched) == [line["round"] + 1 for line in lines]
    looked = [
        (line["round"] + 1, line["validation"]["20"]) for line in lines if "validation" in line
    ]
    assert " ± 0." in found["says"]["validation"]
    assert found["validation"]["hits"] == looked[-1][1]
    assert found["privacy"]["releases"] == 4
    assert "no guarantee" in found["says"]["privacy"]
    assert told(path)["doing"] == "finished"


def rounds_drawn(watched: Watched) -> list[int]:
    """Return the rounds of the points of the loss."""
    loss = charts_in(watched.files.charts)[-1]
    return [int(at) for at in re.findall(r'data-x="(\d+)"', loss)]


def test_after_a_stop_it_says_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "my run"
    interrupted(path, after=2)
    found = Watched(path).look().as_json()
    # This process still lives: the file itself says that the training ended.
    assert (found["state"], found["round"], found["of"]) == ("stopped", 2, 4)
    assert found["resume"] == f"privrec train privrec --out '{path}' --resume"
    assert found["says"]["state"].startswith("Not running any more.")
    # What does not run needs no memory now.
    assert re.fullmatch(r"[\d.]+ [MG]B at most", found["says"]["memory"])


def test_the_most_memory_is_no_less_than_what_is_used_now(tmp_path: Path) -> None:
    """The system counts the peak later than what is used."""
    path = tmp_path / "run"
    interrupted(path, after=2)
    write(path, doing="training", memory={"now": 1_700_000_000, "peak": 1_600_000_000})
    assert Watched(path).look().as_json()["says"]["memory"] == "1.7 GB now, 1.7 GB at most"


@pytest.mark.parametrize("doing", ["compiling", "training"])
def test_after_a_kill_the_process_is_gone_and_the_page_says_so(tmp_path: Path, doing: str) -> None:
    path = tmp_path / "run"
    interrupted(path, after=2)
    write(path, doing=doing)
    watched = Watched(path)
    assert watched.look().as_json()["state"] == doing  # As if this process trained.
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write(path, pid=gone.pid)
    assert watched.look().as_json()["state"] == "stopped"
    # Another process that got the same number later is not the training.
    write(path, pid=os.getpid(), process="12345")
    assert watched.look().as_json()["state"] == "stopped"
    write(path, pid=os.getpid(), process=process_mark(os.getpid()))
    assert watched.look().as_json()["state"] == doing
    for nonsense in (-1, 0, "x", None):
        write(path, pid=nonsense)
        assert watched.look().as_json()["state"] == "stopped"


def test_on_another_machine_a_file_that_is_not_written_any_more_means_a_stop(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    interrupted(path, after=1)
    write(path, doing="training", machine=platform.node() + "-other", pid=1)
    assert Watched(path).look().as_json()["state"] == "training"
    os.utime(RunFolder(path=path).progress_path, (1e9, 1e9))
    assert Watched(path).look().as_json()["state"] == "stopped"


def test_a_resumed_run_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "run"
    interrupted(path, after=3)
    watched = Watched(path)
    assert watched.look().as_json()["round"] == 3
    # A kill lost the last checkpoints: the resumed run plays these rounds again.
    (path / "checkpoint.safetensors").unlink()
    privrec.train("privrec", DATA, out=path, resume=True, **SETTINGS)
    found = watched.look().as_json()
    assert (found["state"], found["round"]) == ("finished", 4)
    assert rounds_drawn(watched) == [1, 2, 3, 4]
    assert found["privacy"]["releases"] == 4


def test_files_are_read_when_they_change_and_rest_while_a_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    interrupted(path, after=3)
    watched = Watched(path)
    assert watched.look().round == 3
    lines = read_ledger(watched.folder)
    for number in (3, 4):
        line = lines[0].model_copy(update={"round": number})
        lines.append(append_release(watched.folder, lines, line))
    watched.look()
    files = watched.files
    watched.look()
    assert watched.files is files
    with watched.folder.rounds_path.open("a") as out:
        out.write('{"round": 3, "stage": "train"}\n{"round": 4, "sta')
    assert watched.look().round == 4  # The line that is not whole yet waits.
    # While it trains, the files are not read again for long: then the page says so.
    monkeypatch.setattr(status, "_PATIENCE", 1e9)
    monkeypatch.setattr(watched, "_rest_until", math.inf)
    write(path, doing="training")
    found = watched.look()
    assert (found.state, found.privacy and found.privacy.is_behind) == ("training", False)
    with watched.folder.rounds_path.open("a") as out:
        out.write('ge": "train"}\n')
    found = watched.look()
    assert (found.round, found.privacy and found.privacy.is_behind) == (4, True)
    # A run that ended does not wait.
    write(path, doing="stopped")
    found = watched.look()
    assert (found.round, found.privacy and found.privacy.is_behind) == (5, False)


def test_a_damaged_folder_is_told_and_does_not_end_the_page(tmp_path: Path) -> None:
    path = tmp_path / "run"
    interrupted(path, after=3)
    ledger = path / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"round": 1', '"round": 7'))
    found = Watched(path).look().as_json()
    assert (found["state"], "damaged at line 2" in found["problem"]) == ("damaged", True)
    (path / "simulation" / "progress.json").write_text("{")
    (path / "simulation" / "rounds.jsonl").write_bytes(b"\xff\n[]\n{}\nnull\n")
    Watched(path).look().as_json()


def test_under_secure_noise_nothing_from_raw_data_is_written_or_shown(tmp_path: Path) -> None:
    path, files = tmp_path / "run", []

    def look(what: str, count: int, total: int) -> None:
        files.append(told(path))

    privrec.train("dp-privrec-plus", DATA, out=path, on_progress=look, epsilon=8.0, rounds=0)
    assert files
    for found in files:
        assert not {"memory", "seconds_per_round"} & found.keys()
        assert "seconds" not in (found.get("step") or {})
    assert not RunFolder(path=path).progress_path.exists()
    watched = Watched(path)
    found = watched.look().as_json()
    assert (found["state"], watched.files.charts) == ("finished", "")
    assert "diagnostics=true" in found["says"]["validation"]


def test_epsilon_is_that_of_the_statement(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = privrec.train("dp-privrec-plus", DATA, out=path, epsilon=8.0, rounds=0)
    watched = Watched(path)
    found = watched.look().as_json()["privacy"]
    assert found["epsilon"] == run.privacy().epsilon
    assert (found["releases"], found["noise"], found["target"]) == (2, "secure", 8.0)
    assert watched.look().as_json()["says"]["privacy"].startswith("ε ")
    # Seeded noise is no guarantee.
    privrec.train(
        "dp-privrec-plus", DATA, out=tmp_path / "b", epsilon=8.0, rounds=0, noise="seeded"
    )
    watched = Watched(tmp_path / "b")
    found = watched.look().as_json()["privacy"]
    assert (found["epsilon"], found["epsilon_of_mechanism"] > 0) == (None, True)
    assert (
        watched.look()
        .as_json()["says"]["privacy"]
        .startswith("no guarantee: the noise comes from a seed")
    )


def test_what_can_be_watched(tmp_path: Path) -> None:
    check_watchable(tmp_path / "later")
    check_watchable(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunFolderError, match="is a file"):
        check_watchable(tmp_path / "file")
    with pytest.raises(RunFolderError, match=r"no config\.toml"):
        check_watchable(tmp_path)


@pytest.mark.slow
def test_the_server_needs_no_jax_and_no_data(tmp_path: Path) -> None:
    """It starts at once and takes little memory."""
    code = (
        "import sys, pathlib, privrec.show.server as s;"
        f"s.site_of(pathlib.Path({str(tmp_path / 'run')!r}));"
        "print(sorted(sys.modules.keys() & {'jax', 'polars', 'dp_accounting', 'httpx', 'optax'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_command_refuses_a_port_that_is_taken(refused: Any) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on port {port}" in refused("watch", "run", "--port", str(port))
    assert "watch" in done("--help")


SPENDING = Spending(
    releases=55,
    noised_releases=55,
    epsilon=None,
    epsilon_of_mechanism=2.8991,
    problem=None,
    delta=1e-6,
    target=8.0,
    noise="secure",
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "ε 2.90 of 8 at δ 1e-06 · 55 releases"),
        # A bound from below is rounded down.
        (
            {"is_behind": True},
            "ε ≥ 2.89 of 8 at δ 1e-06 (first 55 releases; the rest is being counted)",
        ),
        (
            {"releases": 57},
            (
                "no guarantee: 2 releases had no noise. Of the others:"
                " ε 2.90 of 8 at δ 1e-06 · 55 releases"
            ),
        ),
        (
            {"problem": "why", "epsilon_of_mechanism": None},
            "no guarantee: epsilon is not known: why · 55 releases",
        ),
        ({"releases": 1, "noised_releases": 0}, "no noise, so no guarantee · 1 release"),
        ({"releases": 0}, "nothing is published yet"),
    ],
)
def test_an_epsilon_of_some_releases_says_so(changes: dict[str, Any], said: str) -> None:
    found = Status(run="run", privacy=SPENDING.model_copy(update=changes))
    assert sentences(found)["privacy"] == said


@pytest.mark.parametrize(
    ("epsilon", "problem"),
    [
        (OverflowError("too\nlarge"), "too large"),
        (ZeroDivisionError(), "ZeroDivisionError()"),
        (math.inf, "there is too little noise"),
    ],
)
def test_an_epsilon_that_is_not_known_is_no_guarantee(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epsilon: Exception | float, problem: str
) -> None:
    def asked(*_: object) -> float:
        if isinstance(epsilon, Exception):
            raise epsilon
        return epsilon

    run = tmp_path / "run"
    privrec.train("dp-privrec-plus", DATA, out=run, epsilon=8.0, rounds=0)
    monkeypatch.setattr(PrivacyLedger, "epsilon", asked)
    found = Watched(run).look()
    assert found.privacy is not None
    assert (found.privacy.problem, found.privacy.epsilon_of_mechanism) == (problem, None)
    assert sentences(found)["privacy"].startswith("no guarantee")
