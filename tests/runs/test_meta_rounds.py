"""`privrec bench meta`: what is timed, what is printed, and what is refused."""

import json
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from privrec.cli.app import app
from privrec.core.phase import Phase, ServerState
from privrec.core.round import Surroundings, play_round
from privrec.runs import meta_rounds
from privrec.runs.meta_rounds import CONTENDERS, time_rounds
from tiny import DATA


@pytest.mark.slow
def test_all_take_turns_on_the_same_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody plays two rounds in a row, and each of them asks the same cohort in a round."""
    asked: list[tuple[int, tuple[int, ...]]] = []

    def watched(phase: Phase, state: ServerState, around: Surroundings) -> object:
        people = phase.release.sampling.draw(phase.population, around.draw(state.round_index))
        asked.append((state.round_index, tuple(people.tolist())))
        return play_round(phase, state, around)

    monkeypatch.setattr(meta_rounds, "play_round", watched)
    seen: list[tuple[int, int]] = []
    found = time_rounds(DATA, [4], rounds=2, on_progress=lambda _, *n: seen.append(n))
    assert [number for number, _ in asked] == [0] * 4 + [1] * 4 + [2] * 4
    for number in range(3):
        assert len({people for played, people in asked if played == number}) == 1
    assert seen[-1] == (12, 12)
    assert found.seconds[4].keys() == CONTENDERS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--json"], []])
def test_the_command_says_what_is_compared(words: Sequence[str]) -> None:
    asked = ["bench", "meta", "--data", DATA, "--cohorts", "2,4", "--rounds", "1", *words]
    result = CliRunner().invoke(app, asked, env={"COLUMNS": "200"})
    assert result.exit_code == 0
    if words:
        found = json.loads(result.stdout)
        assert found["seconds"].keys() == {"2", "4"}
        times = found["seconds"]["4"]
        assert found["ratio"]["4"]["Reptile"] == pytest.approx(times["MAML"] / times["Reptile"])
        assert found["paper"]["ratio"] == [1.1, 1.3]
    else:
        assert "one pass over all instances" in result.stdout
        assert "support half" in result.stdout
        assert "the paper: " in result.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--cohorts", "5,many"], "`cohorts` must be whole numbers with commas; got '5,many'"),
        (["--cohorts", "0"], "`cohorts` must be >= 1; got 0"),
        (["--rounds", "0"], "`rounds` must be >= 1; got 0"),
    ],
)
def test_wrong_numbers_are_one_line(words: list[str], line: str) -> None:
    result = CliRunner().invoke(app, ["bench", "meta", "--data", DATA, *words])
    assert result.exit_code == 2
    assert result.stderr == f"privrec: {line}\n"
