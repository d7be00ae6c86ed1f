"""`privrec privacy` and the privacy options of `privrec train`, as used by a script."""

import json
import math
from pathlib import Path

import pytest

from commands import Refused, document, done, invoke
from tiny import DATA, MODEL, as_options

ASKED = ["--users", "4800", "--cohort", "30", "--rounds", "1000", "--delta", "1e-6"]
TINY = {**MODEL, "validate_every": 0}
SET = as_options(TINY)


@pytest.mark.slow
def test_epsilon_has_the_contracts_shape() -> None:
    found = document("privacy", "epsilon", "--json", *ASKED, "--noise-multiplier", "1")
    assert found == {
        "epsilon": pytest.approx(1.298, abs=6e-4),
        "epsilon_rdp": pytest.approx(1.6986, abs=6e-4),
        "delta": 1e-6,
        "sampling": "poisson",
        "adjacency": "add or remove one person",
        "noise_std_over_clip": 1.0,
    }
    fixed = document(
        "privacy", "epsilon", "--json", *ASKED, "--noise-multiplier", "1", "--sampling", "fixed"
    )
    assert fixed["epsilon"] == pytest.approx(1.929, abs=6e-4)
    assert fixed["epsilon_rdp"] == pytest.approx(2.446, abs=6e-4)
    assert (fixed["adjacency"], fixed["noise_std_over_clip"]) == ("replace one person", 2.0)


@pytest.mark.slow
def test_calibrate_turns_epsilon_around() -> None:
    found = document(
        "privacy", "calibrate", "--json", *ASKED, "--epsilon", "3", "--sampling", "fixed"
    )
    assert 2.97 <= found["epsilon"] <= 3
    noise = found["noise_multiplier"]
    assert found["noise_std_over_clip"] == 2 * noise
    again = document(
        "privacy",
        "epsilon",
        "--json",
        *ASKED,
        "--noise-multiplier",
        str(noise),
        "--sampling",
        "fixed",
    )
    assert again["epsilon"] == found["epsilon"]


def test_no_noise_is_null_in_json_and_infinite_in_words() -> None:
    assert (
        document("privacy", "epsilon", "--json", *ASKED, "--noise-multiplier", "0")["epsilon"]
        is None
    )
    said = invoke("privacy", "epsilon", *ASKED, "--noise-multiplier", "0").stdout
    assert "infinite (no guarantee)" in said


@pytest.mark.parametrize(
    "words", [["epsilon", "--noise-multiplier", "1"], ["calibrate", "--epsilon", "3"]]
)
@pytest.mark.parametrize("delta", [0.01, 1 / 4800])
def test_a_large_delta_is_refused_and_if_forced_warned_of_on_stderr_only(
    refused: Refused, words: list[str], delta: float
) -> None:
    asked = ["privacy", words[0], *ASKED, "--delta", str(delta), *words[1:], "--json"]
    said = f"`delta` must be < 1/4,800, one over the number of people; got {delta:g}: "
    line = refused(*asked)
    assert line.startswith(f"privrec: {said}")
    assert "--force-delta" in line
    result = invoke(*asked, "--force-delta")
    assert result.exit_code == 0
    assert math.isfinite(json.loads(result.stdout)["epsilon"])
    assert result.stderr.startswith(f"privrec: warning: {said}")
    assert len(result.stderr.splitlines()) == 1


def test_a_ledger_is_read_from_its_file(refused: Refused, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--epsilon", "4", "--delta", "1e-3", "--out", str(run)]
    document("train", "dp-privrec-plus", "--data", DATA, *options, "--json")
    own = tmp_path / "given.jsonl"
    own.write_bytes((run / "ledger.jsonl").read_bytes().removesuffix(b"\n"))
    at = ["--delta", "1e-3"]
    spent = document("privacy", "spent", run, *at, "--json")["together"]
    found = document("privacy", "epsilon", "--json", "--ledger", own, *at)
    assert (found["epsilon"], found["epsilon_rdp"]) == (spent["epsilon"], spent["epsilon_rdp"])
    assert found["releases"] == spent["releases"] == 2
    assert "privrec privacy spent" in refused("privacy", "epsilon", "--ledger", run, *at)
    own.write_text((run / "ledger.jsonl").read_text().replace("popularity", "popularities"))
    assert "damaged at line 1" in refused("privacy", "epsilon", "--ledger", own, *at)
    own.write_bytes((run / "ledger.jsonl").read_bytes() + b'{"cut": sho')
    assert "damaged at line 3" in refused("privacy", "epsilon", "--ledger", own, *at)
    own.write_text("")
    assert "has no release" in refused("privacy", "epsilon", "--ledger", own, *at)


def test_a_ledger_of_seeded_noise_has_no_guarantee(tmp_path: Path) -> None:
    options = ["--set", "noise=seeded", "--delta", "1e-3", "--out", str(tmp_path / "run")]
    document("train", "dp-privrec-plus", "--data", DATA, *options, "--json")
    ledger = str(tmp_path / "run" / "ledger.jsonl")
    asked = ["privacy", "epsilon", "--ledger", ledger, "--delta", "1e-3"]
    found = document(*asked, "--json")
    assert found["epsilon"] is None
    assert 7 < found["epsilon_of_mechanism"] <= 8
    said = done(*asked)
    assert "no guarantee: noise came from a seed" in said
    assert "protection" not in said


@pytest.mark.slow
def test_training_with_a_budget_and_adding_runs_up(refused: Refused, tmp_path: Path) -> None:
    budget = ["--epsilon", "4", "--delta", "1e-3", "--rounds", "3"]
    runs = [tmp_path / "one", tmp_path / "two"]
    for seed, path in enumerate(runs):
        words = ["--data", DATA, "--out", str(path), "--seed", str(seed), *budget, *SET]
        found = document("train", "dp-privrec-one", "--json", *words)
        assert found["rounds"] == 3
        assert 3.96 <= found["privacy"]["epsilon"] <= 4
        assert found["privacy"]["epsilon_of_mechanism"] == found["privacy"]["epsilon"]
        assert found["privacy"]["delta"] == 1e-3
    together = document("privacy", "spent", "--json", *runs, "--delta", "1e-3")
    assert set(together["runs"]) == {str(path) for path in runs}
    single = together["runs"][str(runs[0])]["epsilon"]
    assert single < together["together"]["epsilon"] < 2 * single
    assert together["together"]["epsilon"] == together["together"]["epsilon_of_mechanism"]
    assert (together["together"]["releases"], together["together"]["noise"]) == (6, "secure")
    # The same run given twice, under two names, counts once.
    twice = document("privacy", "spent", "--json", runs[0], tmp_path / "." / "two" / ".." / "one")
    assert twice["together"]["releases"] == 3
    done = invoke("train", "dp-privrec-one", "--out", runs[0], "--resume").stdout
    assert "Each of about 43 people who train" in done
    assert "`epsilon` is given twice" in refused(
        "train", "dp-privrec-one", "--epsilon", "4", "--set", "epsilon=3"
    )
    assert "was started with epsilon = 4.0, not 2.0" in refused(
        "train", "dp-privrec-one", "--data", DATA, "--out", runs[0], "--epsilon", "2", "--resume"
    )


@pytest.mark.slow
def test_seeded_noise_costs_everything_and_other_people_are_not_added_up(
    refused: Refused, scratch: Path
) -> None:
    words = ["--epsilon", "5", "--delta", "1e-3", "--rounds", "2", *SET]
    for name, more in (
        ("secure", ["--data", DATA]),
        ("seeded", ["--data", DATA, "--set", "noise=seeded"]),
        ("other", ["--data", DATA + ",seed=1"]),
    ):
        found = document("train", "dp-privrec-one", "--json", "--out", name, *words, *more)
        mechanism = found["privacy"]["epsilon_of_mechanism"]
        assert 4.95 <= mechanism <= 5
        assert found["privacy"]["epsilon"] == (None if name == "seeded" else mechanism)
    spent = document("privacy", "spent", "--json", "secure", "seeded", "--delta", "1e-3")
    single = spent["runs"]["secure"]["epsilon"]
    assert (single, spent["runs"]["seeded"]["epsilon"]) == (mechanism, None)
    assert spent["runs"]["seeded"]["epsilon_of_mechanism"] == mechanism
    both = spent["together"]
    assert (both["epsilon"], both["epsilon_rdp"], both["noise"]) == (None, None, "seeded")
    assert single < both["epsilon_of_mechanism"] < 2 * single
    for name, is_seeded in (("seeded", True), ("secure", False)):
        assert ("no guarantee" in invoke("privacy", "spent", name).stdout) == is_seeded
    line = refused("privacy", "spent", "secure", "other")
    assert "secure and other name different populations" in line


@pytest.mark.slow
def test_a_budget_that_ends_first_is_said(tmp_path: Path) -> None:
    words = ["--epsilon", "2", "--delta", "1e-3", "--set", "noise_multiplier=1", "--rounds", "12"]
    result = invoke(
        "train", "dp-privrec-one", "--data", DATA, "--out", tmp_path / "run", *words, *SET
    )
    assert result.exit_code == 0, result.stderr
    assert "of 12 rounds: the budget, epsilon 2, affords no more" in result.stdout
