"""`privrec compare --data`: trains what is missing, and shows every recipe in one table."""

from pathlib import Path

import pytest

from commands import Refused, document, done
from privrec.runs.experiments import jobs_of
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


def test_one_command_trains_tests_and_shows(scratch: Path) -> None:
    said = " ".join(done(*GIVEN).split())
    for words in ("popularity (2 seeds)", "dpals (2 seeds)", "ε of the mechanism", "bytes sent"):
        assert words in said
    before = {path: path.stat().st_mtime_ns for path in (scratch / "all").rglob("params*")}
    assert len(before) == 4
    found = document(*GIVEN, "--json")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    cost = {Path(name).name: one["cost"]["bytes_sent"] for name, one in found.items()}
    assert cost["popularity-seed-0"] == 0
    assert cost["dpals-epsilon-8-seed-0"] > 500


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", DATA, "--recipes", "dpal"], "did you mean 'dpals'"),
        (["--data", DATA, "--recipes", "ease", "--seeds", "-1"], "`seeds` must be >= 0"),
        (["--data", DATA, "--recipes", "ease", "--seeds", "a"], "`seeds` must be whole numbers"),
        (["--data", DATA, "--recipes", "ease", "--epsilons", "0"], "`epsilons` must be > 0"),
        ([], "give either run folders or --data"),
        (["run", "--data", DATA], "give either run folders or --data"),
    ],
)
def test_wrong_input_is_one_line(
    options: list[str], said: str, refused: Refused, scratch: Path
) -> None:
    assert said in refused("compare", *options)
    assert not list(scratch.iterdir())
