"""`privrec compare --data`: trains what is missing, and shows every recipe in one table."""

from pathlib import Path

import privrec
from commands import Refused, document, done
from privrec.algorithms.recipes import configure, prepare
from privrec.core.contribution import to_bytes
from privrec.core.phase import Phase
from privrec.runs.evaluate import bytes_sent
from privrec.runs.frontier import jobs_of
from privrec.simulate.cost import usual_person
from tiny import DATA

GIVEN = (
    "compare",
    "--data",
    DATA,
    "--recipes",
    "popularity,dpals",
    "--seeds",
    "0,1",
    "--out",
    "all",
)


def test_recipes_with_noise_run_once_for_each_budget() -> None:
    jobs = jobs_of(["ease", "dpals"], seeds=[3, 1], epsilons=[8, 2])
    assert [job.name for job in jobs] == [
        "ease-seed-3",
        "ease-seed-1",
        "dpals-epsilon-2-seed-3",
        "dpals-epsilon-2-seed-1",
        "dpals-epsilon-8-seed-3",
        "dpals-epsilon-8-seed-1",
    ]


def test_one_command_trains_tests_and_shows(scratch: Path, refused: Refused) -> None:
    said = " ".join(done(*GIVEN).split())
    for words in ("popularity (2 seeds)", "dpals (2 seeds)", "mechanism", "bytes sent"):
        assert words in said
    before = {path: path.stat().st_mtime_ns for path in (scratch / "all").rglob("params*")}
    assert len(before) == 4
    found = document(*GIVEN, "--json")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    cost = {Path(name).name: one["cost"]["bytes_sent"] for name, one in found.items()}
    assert cost["popularity-seed-0"] == 0
    assert cost["dpals-epsilon-8-seed-0"] > 500
    # A run of that name with other settings is not taken for the one that was asked for.
    done("train", "ease", "--data", DATA, "--set", "ease_l2=7", "--out", "all/ease-seed-0")
    words = refused("compare", "--data", DATA, "--recipes", "ease", "--out", "all")
    assert "was started with ease_l2 = 7.0, not 500.0" in words


def test_bytes_sent_are_those_of_the_largest_message() -> None:
    data = privrec.load(DATA)
    settings = {"noise": "seeded", "noise_multiplier": 1.0, "force_delta": True}
    prepared = prepare(configure("dpals", DATA, settings), data)
    popular, train = prepared.stages()
    assert isinstance(popular, Phase)
    assert isinstance(train, Phase)
    params = train.start(None).params
    person = data.take(usual_person(data, train.population))
    sizes = [
        len(to_bytes(stage.device.contribute(stage.tell(stage.start(params)), person, stage.first)))
        for stage in (popular, train)
    ]
    assert bytes_sent(prepared, params) == max(sizes)
    assert sizes[0] < sizes[1]
