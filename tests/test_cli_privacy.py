"""`privrec privacy` and the privacy options of `privrec train`, as a script meets them."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from commands import Refused, document, invoke
from tiny import DATA, MODEL, as_options

ASKED = ["--users", "4800", "--cohort", "30", "--rounds", "1000", "--delta", "1e-6"]
TINY = {**MODEL, "validate_every": 0}
SET = as_options(TINY)


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
    ("words", "said"),
    [
        (["epsilon", "--noise-multiplier", "-1"], "`noise_multiplier` must be >= 0"),
        (["epsilon", "--noise-multiplier", "nan"], "`noise_multiplier` must be >= 0"),
        (["epsilon", "--noise-multiplier", "1", "--delta", "0"], "`delta` must be > 0 and < 1"),
        (["epsilon", "--noise-multiplier", "1", "--delta", "1.5"], "`delta` must be > 0 and < 1"),
        (["epsilon", "--noise-multiplier", "1", "--sampling", "x"], "'poisson' or 'fixed'; got"),
        (["epsilon", "--noise-multiplier", "1", "--mechanism", "x"], "'gaussian' or 'laplace'"),
        (["epsilon", "--noise-multiplier", "1", "--cohort", "5000"], "`cohort` must be <= 4800"),
        (["epsilon", "--noise-multiplier", "1", "--rounds", "-1"], "`times` must be >= 0"),
        (["calibrate", "--epsilon", "0"], "`epsilon` must be > 0; got 0.0"),
        (["calibrate", "--epsilon", "-2"], "`epsilon` must be > 0; got -2.0"),
        (["calibrate", "--epsilon", "nan"], "`epsilon` must be > 0; got nan"),
        (["calibrate", "--epsilon", "1", "--rounds", "0"], "`rounds` must be >= 1; got 0"),
    ],
)
def test_wrong_input_is_one_line(refused: Refused, words: list[str], said: str) -> None:
    assert said in refused("privacy", words[0], *ASKED, *words[1:])


def test_a_large_delta_is_warned_of_on_stderr_only() -> None:
    words = ["privacy", "epsilon", *ASKED, "--delta", "0.01", "--noise-multiplier", "1", "--json"]
    result = invoke(*words)
    assert result.exit_code == 0
    assert math.isfinite(json.loads(result.stdout)["epsilon"])
    assert result.stderr.startswith("privrec: warning: delta 0.01 is larger than 1/4,800: ")
    assert len(result.stderr.splitlines()) == 1


def test_training_with_a_budget_and_adding_runs_up(refused: Refused, tmp_path: Path) -> None:
    budget = ["--epsilon", "4", "--delta", "1e-3", "--rounds", "3"]
    runs = [tmp_path / "one", tmp_path / "two"]
    for seed, path in enumerate(runs):
        words = ["--data", DATA, "--out", str(path), "--seed", str(seed), *budget, *SET]
        found = document("train", "dp-privrec-one", "--json", *words)
        assert found["rounds"] == 3
        assert 3.96 <= found["privacy"]["epsilon"] <= 4
        assert found["privacy"]["delta"] == 1e-3
    together = document("privacy", "spent", "--json", *runs, "--delta", "1e-3")
    assert set(together["runs"]) == {str(path) for path in runs}
    single = together["runs"][str(runs[0])]["epsilon"]
    assert single < together["together"]["epsilon"] < 2 * single
    assert together["together"]["releases"] == 6
    done = invoke("train", "dp-privrec-one", "--out", runs[0], "--resume").stdout
    assert "Each of the 43 people who train" in done
    assert "`epsilon` is given twice" in refused(
        "train", "dp-privrec-one", "--epsilon", "4", "--set", "epsilon=3"
    )
    assert "was started with epsilon = 4.0, not 2.0" in refused(
        "train", "dp-privrec-one", "--data", DATA, "--out", runs[0], "--epsilon", "2", "--resume"
    )


def test_a_budget_that_ends_first_is_said(tmp_path: Path) -> None:
    words = ["--epsilon", "2", "--delta", "1e-3", "--noise-multiplier", "1", "--rounds", "12"]
    result = invoke(
        "train", "dp-privrec-one", "--data", DATA, "--out", tmp_path / "run", *words, *SET
    )
    assert result.exit_code == 0, result.stderr
    assert "of 12 rounds: the budget, epsilon 2, affords no more" in result.stdout


def test_the_calculator_works_with_no_data_and_no_jax_devices() -> None:
    code = "import privrec.cli_privacy as c, sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
