"""`privrec attack` as a whole: models of known people, kills, processes, the command line."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calls import end, fail, say_devices
from commands import document, done
from privrec.algorithms.recipes import RECIPES
from privrec.attacks import membership
from privrec.attacks.membership import attack, coins_of, parts_of
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.errors import RunFolderError, SettingsError
from privrec.privacy.paper import PRINTED_ATTACKS
from privrec.runs import folder as records
from privrec.simulate.side_by_side import side_by_side
from privrec.testing import toy
from stops import Stopped
from tiny import DATA, MODEL

FEW: Any = {"repetitions": 2, "shadows": 4, "workers": 1}
ASKED = ("--repetitions", "2", "--shadows", "4", "--workers", "1", "--out", "all")


def collectors(people: int = 120, seed: int = 0) -> Federation:
    """Everybody has six random items of a hundred, which few others have together."""
    draw = np.random.default_rng(seed)
    lines = [
        (person, int(item), 5.0)
        for person in range(people)
        for item in draw.choice(100, 6, replace=False)
    ]
    return toy(lines, n_items=100)


def likes_of(data: Federation, people: Any) -> list[float]:
    clients = data.take(np.asarray(people))
    counts = np.bincount(clients.item[clients.liked], minlength=data.n_items)
    return [float(one) for one in counts]


def popularity_in(place: Path) -> list[float]:
    found = records.read_arrays(records.RunFolder(path=place).params_path)["popularity"]
    return [float(one) for one in found]


@pytest.mark.slow
def test_all_people_of_a_part_train_and_nobody_else(tmp_path: Path) -> None:
    data = load(DATA)
    attack("popularity", DATA, out=tmp_path, **FEW)
    for k in range(2):
        target, shadow = parts_of(60, seed=0, repetition=k)
        assert popularity_in(tmp_path / f"target-{k}") == likes_of(data, target.members)
        assert popularity_in(tmp_path / f"shadow-{k}") == likes_of(data, shadow.members)
    for k, row in enumerate(coins_of(60, seed=0, models=4)):
        assert popularity_in(tmp_path / f"half-{k}") == likes_of(data, np.flatnonzero(row))
    seeds = {records.read_run(place.parent)[1]["seed"] for place in tmp_path.glob("*/config.toml")}
    assert len(seeds) == 8


def test_members_of_a_model_that_memorises_are_found(tmp_path: Path) -> None:
    """EASE with a small ridge has learnt every pair of items that one person has."""
    asked: Any = {"kinds": ["loss", "ratio"], "repetitions": 3, "shadows": 8}
    found = attack("ease", collectors(), out=tmp_path, ease_l2=0.5, **asked).as_json()["attacks"]
    for kind in ("loss", "ratio"):
        assert found[kind]["auc"]["low"] > 0.9, kind
        assert found[kind]["auc"]["value"] > 0.95, kind


@pytest.mark.slow
def test_nobody_is_found_in_a_model_that_learns_nothing_of_people(tmp_path: Path) -> None:
    """The network without a round of training: its members have not touched it."""
    settings: Any = {**MODEL, "rounds": 0, "adapt_epochs": 1}
    asked: Any = {"kinds": ["loss", "ratio"], "repetitions": 4, "shadows": 4}
    data = collectors(200)
    found = attack("privrec", data, out=tmp_path, **asked, **settings).as_json()["attacks"]
    # 83 members and 83 others, or 100 of each, four times: one deviation is 0.022.
    for kind in ("loss", "ratio"):
        assert abs(found[kind]["auc"]["value"] - 0.5) < 0.07, kind


@pytest.mark.slow
@pytest.mark.parametrize("where", ["train", "views_of"])
def test_after_a_kill_nothing_is_trained_twice(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few: Any = {**FEW, "kinds": ["loss", "ratio"]}
    whole = attack("ease", DATA, out=tmp_path / "whole", **few).as_json()
    real, calls = getattr(membership, where), 0

    def stop_at_the_fourth(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise Stopped
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(membership, where, stop_at_the_fourth)
        with pytest.raises(Stopped):
            attack("ease", DATA, out=tmp_path / "stopped", **few)
    trained = list((tmp_path / "stopped").rglob("params.safetensors"))
    assert len(trained) == (3 if where == "train" else 4)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "stopped").rglob("*.*")}
    assert attack("ease", DATA, out=tmp_path / "stopped", **few).as_json() == whole
    assert all(path.stat().st_mtime_ns == time for path, time in before.items() if path.is_file())
    monkeypatch.setattr(membership, where, None)
    assert attack("ease", DATA, out=tmp_path / "stopped", **few).as_json() == whole


def test_a_folder_of_other_models_is_refused(tmp_path: Path) -> None:
    asked: Any = {**FEW, "kinds": ["ratio"], "out": tmp_path}
    attack("ease", collectors(), ease_l2=7.0, **asked)
    with pytest.raises(RunFolderError, match=r"was started with ease_l2 = 7\.0, not 500\.0"):
        attack("ease", collectors(), **asked)
    with pytest.raises(RunFolderError, match="was started with seed"):
        attack("ease", collectors(), ease_l2=7.0, seed=1, **asked)
    with pytest.raises(RunFolderError, match="the data has changed"):
        attack("ease", collectors(seed=1), ease_l2=7.0, **asked)


@pytest.mark.slow
def test_processes_side_by_side_say_the_same(tmp_path: Path) -> None:
    kinds: Any = {"kinds": ["ratio"], "repetitions": 2, "shadows": 4}
    advanced: list[tuple[int, int]] = []
    alone = attack("ease", DATA, out=tmp_path / "alone", workers=1, **kinds)
    many = attack(
        "ease",
        DATA,
        out=tmp_path / "many",
        workers=2,
        on_progress=lambda what, count, total: advanced.append((count, total)),
        **kinds,
    )
    assert many == alone
    assert advanced == [(k, 4) for k in range(5)]


@pytest.mark.slow
def test_a_worker_has_one_core_and_its_errors_arrive(tmp_path: Path) -> None:
    before, place = dict(os.environ), tmp_path / "said"
    side_by_side(say_devices, [(str(place),)], workers=1, advance=lambda: None)
    devices, threads, process = map(int, place.read_text().split())
    assert (devices, threads) == (1, 1)
    assert process != os.getpid()
    assert dict(os.environ) == before
    with pytest.raises(SettingsError, match="as it was said"):
        side_by_side(fail, [("as it was said",)], workers=1, advance=lambda: None)
    with pytest.raises(RunFolderError, match="run the command again"):
        side_by_side(end, [(7,)], workers=1, advance=lambda: None)


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    place = tmp_path / "worker"
    code = (
        "from calls import sleep; from privrec.simulate.side_by_side import side_by_side;"
        f"side_by_side(sleep, [({str(place)!r},)], workers=1, advance=lambda: None)"
    )
    here = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(here)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.DEVNULL, env=path
    ) as parent:
        try:
            wait_until(lambda: place.is_file() and bool(place.read_text()))
        finally:
            parent.kill()
    worker = int(place.read_text())
    wait_until(lambda: not is_alive(worker))


def wait_until(what: Callable[[], bool]) -> None:
    end_at = time.monotonic() + 300
    while not what():
        assert time.monotonic() < end_at
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def test_the_papers_figure_stands_beside_ours(tmp_path: Path) -> None:
    data = collectors(40)
    famous = replace(data, catalogue=replace(data.catalogue, name="movielens-1m"))
    settings: Any = {**MODEL, "cohort": 2, "rounds": 0, "adapt_epochs": 1}
    asked: Any = {"kinds": ["paper"], "repetitions": 1}
    found = attack("privrec", famous, out=tmp_path, **asked, **settings).as_json()
    assert (found["data"], found["attacks"]["paper"]["printed"]) == ("movielens-1m", 0.65)
    assert found["attacks"]["paper"]["accuracy"]["high"] == 1  # One repetition says little.
    for recipes in PRINTED_ATTACKS.values():
        assert set(recipes) <= set(RECIPES)


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_prints_and_does_not_train_again(scratch: Path) -> None:
    asked = (*ASKED, "--kinds", "paper,loss,ratio")
    given = ("attack", "--data", DATA, "--recipes", "ease,dpals", "--epsilons", "8", *asked)
    said = " ".join(done(*given).split())
    for words in ("ease", "dpals", "none", "ratio", "TPR at 1 %", "best threshold"):
        assert words in said
    before = {path: path.stat().st_mtime_ns for path in (scratch / "all").rglob("views.npz")}
    assert len(before) == 2 * 8
    found = document(*given, "--json")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [(one["recipe"], one["epsilon"], one["delta"]) for one in found] == [
        ("ease", None, None),
        ("dpals", 8.0, 1e-6),
    ]
    names = ("attack-ease.json", "attack-dpals-epsilon-8.json")
    for name, one in zip(names, found, strict=True):
        assert json.loads((scratch / "all" / name).read_text(encoding="utf-8")) == one
        assert {"data": DATA, "repetitions": 2, "seed": 0}.items() <= one.items()
        assert list(one["attacks"]) == ["paper", "loss", "ratio"]
        paper, loss, ratio = one["attacks"].values()
        assert set(paper) == {"accuracy", "auc", "printed"}
        assert set(paper["accuracy"]) == {"value", "low", "high"}
        assert (loss["members"], loss["others"]) == (50, 50)
        assert ratio["shadows"] == 4
    [noised] = (scratch / "all").glob("dpals-epsilon-8-seed-0/half-0")
    assert records.read_run(noised)[1]["noise"] == "seeded"


def test_other_people_are_asked_about_without_training_again(tmp_path: Path) -> None:
    few: Any = {**FEW, "kinds": ["loss"]}
    attack("ease", DATA, out=tmp_path, **few)
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("params.safetensors")}
    found = attack("ease", DATA, out=tmp_path, people=10, **few).as_json()["attacks"]["loss"]
    assert (found["members"], found["others"]) == (20, 20)
    assert {path: path.stat().st_mtime_ns for path in trained} == trained


@pytest.mark.slow
def test_what_is_published_and_sent_is_read_without_models(scratch: Path) -> None:
    kinds = ("--kinds", "sums,twice,server", "--json")
    given = ("attack", "--data", DATA, "--recipes", "popularity,dpals", "--epsilons", "8", *ASKED)
    none, noised = document(*given, *kinds)
    assert none["attacks"] == {}
    assert list(noised["attacks"]) == ["sums", "twice", "server"]
    once, twice, server = noised["attacks"].values()
    assert once["auc_allowed"] < twice["auc_allowed"] < 1
    assert (once["trainings"], twice["trainings"]) == (1, 2)
    assert server[0]["items"] == {"precision": 1.0, "recall": 1.0}
    assert not list((scratch / "all").glob("*/*/config.toml"))
    page = (scratch / "all" / "attack-dpals-epsilon-8.html").read_text(encoding="utf-8")
    assert "published sums" in page
    assert "What a curious server reads" in page


def test_a_run_is_attacked_with_its_own_settings(scratch: Path) -> None:
    done("train", "ease", "--data", DATA, "--set", "ease_l2=7", "--seed", "5", "--out", "run")
    [found] = document("attack", "run", *ASKED, "--kinds", "loss", "--json")
    assert json.loads((scratch / "run/simulation/attack.json").read_text()) == found
    settings = records.read_run(scratch / "all" / "like-run-seed-0" / "target-1")[1]
    assert (settings["ease_l2"], settings["test_share"]) == (7.0, 1e-9)
    assert settings["validation_share"] == 0
    assert settings["seed"] != 5
