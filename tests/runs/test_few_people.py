"""Too few people under noise, and nobody to test: said before training, and in the statement."""

import math
from pathlib import Path

import numpy as np
import pytest

import privrec
from commands import Refused, document, done, invoke
from privrec.algorithms.recipes import configure, prepare
from privrec.data.sources import load
from privrec.errors import PrivacyWarning
from privrec.privacy.aggregate import gaussian, laplace
from privrec.privacy.calibrate import Sums, people_needed
from privrec.privacy.release import Release, Sampling, seeded
from privrec.runs.ledger import read_ledger
from privrec.runs.loop import too_few_to_learn
from privrec.seeds import rng

FIVE = "synthetic:users=5"
SAID = "4 people are too few for this noise"


def test_it_is_said_before_training_with_the_number_that_would_do(tmp_path: Path) -> None:
    result = invoke("train", "dp-privrec-plus", "--data", FIVE, "--out", tmp_path / "run")
    assert result.exit_code == 0
    [line] = result.stderr.splitlines()
    assert line.startswith(f"privrec: warning: {SAID}")
    # After training, what is promised has it too.
    assert SAID in result.stdout
    assert "nothing can be learned" in line
    # The first sum has 600 numbers, an item each, and the second one for each of two features;
    # their noise has the ledger's scale. What shows first is said.
    run = privrec.open_run(tmp_path / "run")
    first, second = (line.noise_multiplier for line in read_ledger(run.folder))
    needed = math.ceil(min(first * math.sqrt(600), second * math.sqrt(2)))
    assert f"at least about {needed} people" in line
    assert 8 < needed < 20


def test_the_statement_says_how_few_they_are(tmp_path: Path) -> None:
    with pytest.warns(PrivacyWarning, match="too few"):
        run = privrec.train("dp-privrec-plus", FIVE, out=tmp_path / "run", progress=False)
    statement = run.privacy().statement
    assert statement.startswith("Each of about 4 people")
    assert SAID in statement
    assert SAID in run.privacy().short
    done("export", run.folder.path, "--out", tmp_path / "model.privrec")
    assert SAID in str(privrec.open_model(tmp_path / "model.privrec").privacy["statement"])


@pytest.mark.slow
def test_a_dry_run_says_it_too() -> None:
    words = ("train", "dp-privrec-plus", "--data", FIVE, "--dry-run")
    assert f"warning: {SAID}" in done(*words)
    [said] = document(*words, "--json")["warnings"]
    assert said.startswith(SAID)


@pytest.mark.parametrize(
    ("recipe", "data", "settings"),
    [
        ("dp-privrec-plus", "synthetic:users=60", {}),
        ("privrec-plus", FIVE, {}),
        ("dp-privrec-plus", FIVE, {"noise_multiplier": 0.0}),
    ],
)
def test_enough_people_or_no_noise_is_not_worth_a_word(
    recipe: str, data: str, settings: dict[str, float]
) -> None:
    assert too_few_to_learn(prepare(configure(recipe, data, settings), load(data))) == ""


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["dp-privrec-one", "dp-privrec", "lm-privrec", "dpals"])
def test_every_recipe_with_noise_has_a_number(recipe: str) -> None:
    settings = {"cohort": 3, **({"stage1_cohort": 3} if recipe == "dp-privrec" else {})}
    made = prepare(configure(recipe, FIVE, settings), load(FIVE))
    assert "too few for this noise" in too_few_to_learn(made)


# --- the number ----------------------------------------------------------------------------------


def sums_of(mechanism: str, count: int, numbers: int) -> Sums:
    sampling = Sampling(law="poisson", users=100, cohort=50)
    make = gaussian if mechanism == "gaussian" else laplace
    release = make(sampling, clip_norm=1.0, noise_multiplier=2.0).release
    return Sums(release=release, count=count, numbers=numbers)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("count", [1, 4])
def test_with_that_number_of_people_sums_are_as_long_as_their_noise(
    mechanism: str, count: int
) -> None:
    """People of one mind, half of whom are in each of `count` sums, against noise that is drawn."""
    sums = sums_of(mechanism, count, 4000)
    needed = people_needed([sums])
    assert needed is not None
    sampling = Sampling(law="poisson", users=needed, cohort=needed // 2)
    make = gaussian if mechanism == "gaussian" else laplace
    aggregator = make(sampling, clip_norm=1.0, noise_multiplier=2.0)
    one_mind = np.zeros(4000)
    one_mind[7] = needed / 2
    published = [
        aggregator.publish({"sum": one_mind}, 1.0, seeded(rng(0, k, "noise")))["sum"]
        for k in range(count)
    ]
    noise = np.sum(published, axis=0) - count * one_mind
    assert np.linalg.norm(noise) / np.linalg.norm(count * one_mind) == pytest.approx(1, abs=0.05)


def test_the_easiest_sum_counts_and_one_without_noise_needs_nobody() -> None:
    easy, hard = sums_of("gaussian", 1, 100), sums_of("gaussian", 1, 10_000)
    assert people_needed([hard, easy]) == people_needed([easy]) == 40
    bare = Sums(
        release=Release(mechanism="none", sampling=easy.release.sampling), count=1, numbers=9
    )
    assert people_needed([easy, bare]) is None
    assert people_needed([]) is None


# --- nobody to test ------------------------------------------------------------------------------


@pytest.mark.slow
def test_where_nobody_can_be_tested_the_next_step_is_another_one(refused: Refused) -> None:
    words = ("train", "privrec-plus", "--data", FIVE, "--set", "test_share=1e-9")
    said = done(*words, "--set", "rounds=0", "--out", "run")
    assert "nobody can be tested" in said
    assert "privrec evaluate" not in said
    assert "next: privrec recommend run --like ITEM" in said
    line = refused("evaluate", "run")
    assert line.startswith("privrec: nobody can be tested: the seed 0 did not draw any of the 5")
    [warning] = document(*words, "--dry-run", "--json")["warnings"]
    assert warning.startswith("nobody can be tested")
