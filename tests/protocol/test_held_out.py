"""A federation's model is tested on people who are known to be others, and on nobody else."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from commands import Refused, document, done
from loopback import Loopback
from privrec.algorithms.recipes import configure, prepare
from privrec.data.catalogue import to_json
from privrec.evaluation.ranking import EvalReport, evaluate
from privrec.protocol.enrolment import NodeFolder, read_enrolments, read_people
from privrec.protocol.node import noised_sums
from privrec.runs import folder as records
from privrec.runs.journal import load_params
from privrec.runs.loop import play_stages
from privrec.transport.local import make_local

PEOPLE, ITEMS = 40, 30
SETTINGS: dict[str, Any] = {"rounds": 0, "force_delta": True}


def write_club(folder: Path, *, seed: int = 0) -> None:
    """Write a data folder `club`: ratings of people who made them up."""
    draw = random.Random(seed)  # noqa: S311
    lines = ["user,item,rating"]
    for person in range(PEOPLE):
        rated = draw.sample(range(ITEMS), 8)
        lines += [f"p{person},i{item},{draw.choice((2, 4, 5))}" for item in rated]
    (folder / "club.csv").write_text("\n".join(lines) + "\n")
    shutil.rmtree(folder / "club", ignore_errors=True)
    done("data", "import", folder / "club.csv", "--out", folder / "club")


@pytest.fixture
def club(scratch: Path) -> Path:
    write_club(scratch)
    return scratch


def play(config: Any, path: Path, place: Path) -> None:
    """Train by a federation of three nodes, as a server does: it has no fingerprint of data."""
    prepared = prepare(config, privrec.load("club"))
    net = Loopback(prepared, path)
    run = net.run()
    public = to_json(prepared.task.federation.catalogue)
    folder = records.create_run(place, run.task.settings, public, None)
    play_stages(run, folder, network=net.server.network())


def test_a_folder_of_the_right_name_is_not_enough(club: Path, refused: Refused) -> None:
    play(configure("privrec-plus", "club", SETTINGS), club / "nodes", club / "fed")
    line = refused("evaluate", "fed")
    assert "fed was trained by a federation: only its nodes know who took part" in line
    assert "privrec federate test" in line
    assert "privrec evaluate" not in privrec.write_report("fed").read_text()


def test_a_federation_on_this_machine_knows_whom_it_left_out(club: Path, refused: Refused) -> None:
    local = make_local(club / "up", "privrec-plus", "club", nodes=3, settings=SETTINGS)
    place = local.server.run
    play(local.terms.settings, club / "nodes", place)
    found = document("evaluate", place, "--json")
    assert found["users"]["train"] == local.terms.people
    everybody = prepare(configure("privrec-plus", "club", SETTINGS), privrec.load("club"))
    assert found["users"]["test"] + found["users"]["skipped"] == len(everybody.task.split.test)
    # Other people in a folder of the same name are not them.
    write_club(club, seed=1)
    assert "the data has changed" in refused("evaluate", place)


# --- on a node -----------------------------------------------------------------------------------


@pytest.fixture
def node(club: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node that held a quarter of its people out, and the model that the others made.

    Who is held out is the same each time, and so are the figures on them.
    """
    draw = np.random.default_rng(0)
    monkeypatch.setattr(
        "privrec.protocol.enrolment.secret_choice",
        lambda people, size: draw.choice(people, size, replace=False),
    )
    said = done("federate", "enrol", "--data", "club", "--out", "node", "--hold-out", "0.25")
    assert "enrolled 30 people, held out 10: node" in said
    done("train", "privrec-plus", "--data", "club", "--out", "run", "--set", "rounds=0")
    done("export", "run", "--out", "model.privrec")
    return club / "node"


def test_whoever_is_held_out_is_not_enrolled(node: Path) -> None:
    folder = NodeFolder(node)
    mine, others = (read_people(folder, file)[0] for file in (folder.people, folder.held_out))
    assert len(read_enrolments(node)[0].people) == len(mine) == 30
    assert not set(mine.ids) & set(others.ids)
    assert len(set(mine.ids) | set(others.ids)) == PEOPLE
    assert folder.held_out.stat().st_mode & 0o077 == 0


def test_a_node_tests_the_model_on_those_it_held_out(node: Path) -> None:
    found = document("federate", "test", node, "--model", "model.privrec", "--json")
    data, run = privrec.load("club"), privrec.open_run("run")
    folder = NodeFolder(node)
    ids = read_people(folder, folder.held_out)[0].ids
    positions = np.flatnonzero(np.isin(data.ids(np.arange(PEOPLE)), ids))
    scorer = run.prepared.ranker(load_params(run.folder))
    exact = evaluate(data, positions, scorer, seed=0)
    assert found["people"] == {"test": exact.tested, "skipped": exact.skipped}
    assert found["hits"] == pytest.approx({str(k): value for k, value in exact.hits.items()})
    low, high = found["interval"]["20"]
    said = done("federate", "test", node, "--model", "model.privrec")
    arm = max(exact.hits[20] - low, high - exact.hits[20])
    assert f"{exact.hits[20]:.3f} ± {arm:.3f}" in said


def test_what_leaves_the_node_has_noise() -> None:
    """At most one person's 5 numbers of 1 each: Laplace noise of scale 5 / epsilon on each."""
    hits = {5: 0.1, 10: 0.2, 20: 0.3, 30: 0.4}
    found = EvalReport(tested=50, skipped=0, hits=hits, ndcg={}, list_ndcg={}, new_only={})
    close = noised_sums(found, 1e5)
    assert list(close.values()) == pytest.approx([50, 5, 10, 15, 20], abs=0.01)
    exact = np.array([50, 5, 10, 15, 20])
    draws = np.array([list(noised_sums(found, 0.5).values()) - exact for _ in range(2000)])
    # The mean distance of Laplace noise is its scale; of 10,000 draws it is within 10 %.
    assert np.abs(draws).mean() == pytest.approx(10.0, rel=0.1)


def test_wrong_input(node: Path, refused: Refused, scratch: Path) -> None:
    test = ("federate", "test")
    model = ("--model", "model.privrec")
    line = refused(*test, node, *model, "--epsilon", "0")
    assert "`epsilon` must be > 0; got 0.0" in line
    enrol = ("federate", "enrol", "--data", "club")
    done(*enrol, "--out", "all")
    assert "all has held nobody out" in refused(*test, "all", *model)
    for share in ("1", "-0.1"):
        line = refused(*enrol, "--out", "new", "--hold-out", share)
        assert "`hold_out` must be >= 0 and < 1" in line
    assert "is no folder of a node" in refused(*test, "club", *model)
    done("train", "popularity", "--data", "synthetic:users=20,items=30", "--out", "other")
    done("export", "other", "--out", "other.privrec")
    line = refused(*test, node, "--model", "other.privrec")
    assert "other.privrec has another catalogue" in line
    assert json.loads((node / "enrolment.json").read_text())["people"]
