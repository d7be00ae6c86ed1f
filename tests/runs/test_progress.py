"""Progress inside long rounds: told by a clock of our own, and cheap where rounds are short."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Cohort, Unwritten
from privrec.core.round import PEOPLE, SERVER, Surroundings, cohort_draw, fastest, play_stage_round
from privrec.data.sources import load
from privrec.runs.folder import RunFolder
from privrec.runs.frontier import find_frontier, jobs_of, run_jobs
from privrec.runs.progress import Progress
from tiny import DATA, MODEL, own

RECIPES = ["privrec", "privrec-plus", "privrec-cen", "ease", "item-knn", "fcf"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_round_counts_everybody_once_and_then_comes_the_servers_part(recipe: str) -> None:
    data = load(DATA)
    made = prepare(configure(recipe, DATA, own(recipe, MODEL)), data)
    stage, told = made.stages()[0], []
    around = Surroundings(
        take=data.take,
        run=fastest,
        draw=cohort_draw(0, secret=False),
        journal=Unwritten(),
        on_step=lambda *step: told.append(step),
    )
    _, report = play_stage_round(stage, stage.start(None), around)
    people = [(done, total) for what, done, total in told if what == PEOPLE]
    assert people[0] == (0, report.clients)
    assert [done for done, _ in people] == sorted(done for done, _ in people)
    assert told[-1] == (SERVER, 0, 1)
    # The last of them is told as the beginning of what comes after.
    assert told.index((SERVER, 0, 1)) == len(people)


def test_parts_of_a_cohort_are_told_when_they_are_done() -> None:
    told: list[int] = []
    data = load(DATA)
    cohort = Cohort(np.arange(25), data.take, told.append)
    seen = [(len(part), sum(told)) for part in cohort.parts(10)]
    assert seen == [(10, 0), (10, 10), (5, 20)]
    assert told == [10, 10, 5]


class Hand:
    """A clock that moves when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def stages(recipe: str = "privrec", **settings: Any) -> Any:
    return prepare(configure(recipe, DATA, {**own(recipe, MODEL), **settings}), load(DATA)).stages()


def written(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RunFolder(path=path).progress_path.read_text())
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "simulation").mkdir()
    return tmp_path


def test_a_long_round_is_told_in_steps_and_a_short_one_is_not(path: Path) -> None:
    clock, told = Hand(), []
    (stage,) = stages(rounds=5)
    progress = Progress(
        RunFolder(path=path), [stage], lambda *said: told.append(said), figures=True, clock=clock
    )
    progress.begin_stage(stage, played=0, last=5)
    progress.begin_round()
    for done in range(1000):
        clock.now += 0.0001
        progress.step(PEOPLE, done, 1000)
    progress.end_round(1)
    assert told == [("rounds", 1, 5)]
    progress.begin_round()
    for done in range(1000):
        clock.now += 0.01
        progress.step(PEOPLE, done, 1000)
    assert all(what == PEOPLE for what, _, _ in told[1:])
    assert 30 <= len(told) <= 40  # Nine seconds, four times a second.
    step = written(path)["step"]
    assert (step["what"], step["of"]) == (PEOPLE, 1000)
    assert step["seconds"] == pytest.approx(0.01 * step["done"], abs=0.05)
    progress.step(SERVER, 0, 1)  # Another kind of step is told at once.
    assert told[-1] == (SERVER, 0, 1)
    assert written(path)["step"]["what"] == SERVER
    clock.now += 2
    progress.end_round(2)
    assert written(path)["seconds_per_round"] == pytest.approx(12.1 / 2, abs=0.05)
    # With a round its steps are over, also those whose end was too soon after to be told.
    assert told[-3:] == [(PEOPLE, 1000, 1000), (SERVER, 1, 1), ("rounds", 2, 5)]
    progress.begin_round()
    progress.end_round(3)
    assert told[-2:] == [("rounds", 2, 5), ("rounds", 3, 5)]


def test_one_slow_round_does_not_set_the_speed(path: Path) -> None:
    clock = Hand()
    (stage,) = stages(rounds=5)
    progress = Progress(RunFolder(path=path), [stage], None, figures=True, clock=clock)
    progress.begin_stage(stage, played=0, last=5)
    for played, seconds in enumerate([60.0, 2.0, 2.0], start=1):
        progress.begin_round()
        clock.now += seconds
        progress.end_round(played)
    assert written(path)["seconds_per_round"] == 2.0


def test_without_figures_a_step_is_told_in_per_cent_and_nothing_of_time(path: Path) -> None:
    clock, told = Hand(), []
    (stage,) = stages(rounds=5)
    progress = Progress(
        RunFolder(path=path), [stage], lambda *said: told.append(said), figures=False, clock=clock
    )
    progress.begin_stage(stage, played=0, last=5)
    progress.begin_round()
    clock.now += 10
    progress.step(PEOPLE, 1234, 4936)
    assert told == [(PEOPLE, 25, 100)]
    assert written(path)["step"] == {"what": PEOPLE, "done": 25, "of": 100}
    assert "1234" not in RunFolder(path=path).progress_path.read_text()
    clock.now += 10
    progress.end_round(1)
    assert not {"seconds_per_round", "memory"} & written(path).keys()
    progress.end(finished=True)
    assert not RunFolder(path=path).progress_path.exists()


def test_many_short_rounds_write_a_few_times_a_second(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, count = Hand(), [0]
    (stage,) = stages(rounds=1000)
    real = Path.write_text

    def write_text(self: Path, *words: Any, **named: Any) -> int:
        count[0] += 1
        return real(self, *words, **named)

    monkeypatch.setattr(Path, "write_text", write_text)
    progress = Progress(RunFolder(path=path), [stage], None, figures=True, clock=clock)
    progress.begin_stage(stage, played=0, last=1000)
    for played in range(1, 1001):
        progress.begin_round()
        progress.step(PEOPLE, 0, 8)
        progress.step(SERVER, 0, 1)
        clock.now += 0.01
        progress.end_round(played)
    assert count[0] <= 2 + 10 * 12  # Ten seconds; three kinds of writes, each four times a second.


def test_a_folder_that_cannot_be_written_does_not_stop_a_training(tmp_path: Path) -> None:
    (stage,) = stages(rounds=5)
    progress = Progress(RunFolder(path=tmp_path / "nowhere"), [stage], None, figures=True)
    progress.begin_stage(stage, played=0, last=5)
    progress.begin_round()
    progress.end_round(1)
    progress.end(finished=True)


def test_each_reference_is_named_while_it_is_solved(tmp_path: Path) -> None:
    run, told = privrec.train("popularity", DATA, out=tmp_path / "run"), []
    run.evaluate(on_progress=lambda *said: told.append(said))
    for name in ("popularity", "own-items", "item-knn", "ease"):
        what = f"solving the reference {name}"
        assert [said[1:] for said in told if said[0] == what] == [(0, 1), (1, 1)]


@pytest.mark.slow
def test_the_runs_of_an_experiment_tell_how_far_they_are(tmp_path: Path) -> None:
    jobs: set[str] = set()
    listed = jobs_of(["popularity"], seeds=[0], epsilons=[8.0])
    places = {tmp_path / job.name: job for job in listed}
    run_jobs(places, DATA, lambda what, *_: jobs.add(what))
    frontier: set[str] = set()
    asked: Any = {"delta": 1e-3, "seeds": [0], "out": tmp_path / "frontier"}
    find_frontier(DATA, [8.0], **asked, on_progress=lambda what, *_: frontier.add(what))
    steps = {"runs", "compiling", "solving the reference ease", "people tested"}
    assert steps <= jobs
    assert steps <= frontier
