"""Whole trainings over a stock Flower: its SuperLink and SuperNodes, and its engine on Ray."""

import json
import re
from pathlib import Path

import pytest
from stock_flower import BIN, Flower, federation, prepared_flower, running, wait_until

import privrec
from privrec.algorithms.recipes import configure, prepare
from privrec.data.federation import Federation
from privrec.privacy.statement import OVER_FLOWER
from privrec.runs import folder as records
from privrec.runs.loop import play_stages
from privrec.transport.local import LocalFederation
from same import PLAIN_STEPS, assert_same_run, without_noise
from tiny import DATA, new_folder

pytestmark = pytest.mark.slow
NODES = 2


@pytest.fixture(scope="module", autouse=True)
def _flower_is_installed() -> None:
    assert (BIN / "flwr").is_file(), "install Flower with: make flower"


def assert_as_simulated(local: LocalFederation, data: Federation, recipe: str, path: Path) -> None:
    """Fail unless a run over Flower has the parameters and releases of the simulator."""
    prepared = prepare(configure(recipe, data.name, without_noise(recipe, **PLAIN_STEPS)), data)
    alone = new_folder(path / "alone", prepared)
    play_stages(prepared, alone)
    run, _ = records.read_run(local.server.run)
    assert_same_run(alone, run)
    assert OVER_FLOWER in privrec.open_run(run.path).privacy().statement
    assert (local.server.path / "model.privrec").is_file()


def train(flower: Flower, local: LocalFederation, where: str) -> None:
    """Run the app until the training is done; where a machine is too busy, Flower ends a run."""
    run = records.RunFolder(path=local.server.run)
    said = ""
    for _ in range(5):
        said += flower.done("flwr", "run", local.path / "app", where, "--stream")
        if run.params_path.is_file() and "trained: " in said:
            return
    raise AssertionError(said)


@pytest.mark.parametrize(
    ("recipe", "secure_sum"),
    [("privrec", True), ("privrec-plus", False), ("dp-privrec-plus", True)],
)
def test_stock_flower_learns_what_the_simulator_learns(
    recipe: str, secure_sum: bool, data: Federation, tmp_path: Path
) -> None:
    """With TLS, and SuperNodes that show their keys; a stopped run goes on."""
    flower = prepared_flower(tmp_path / "flower", NODES)
    settings = {**without_noise(recipe, **PLAIN_STEPS), "secure_sum": secure_sum}
    local = federation(flower, tmp_path / "fed", recipe, DATA, settings, NODES)
    with running(flower, local):
        if not secure_sum:
            said = flower.done("flwr", "run", local.path / "app", "tls")
            [run] = re.findall(r"started run (\d+)", said)
            wait_until(lambda: _round(local) > 0, 900)
            flower.done("flwr", "stop", run, "tls")
        train(flower, local, "tls")
    assert_as_simulated(local, data, recipe, tmp_path)


def test_the_simulation_engine_learns_what_the_simulator_learns(
    data: Federation, tmp_path: Path
) -> None:
    """One training on Ray: all nodes are in its actors."""
    flower = prepared_flower(tmp_path / "flower", NODES)
    settings = without_noise("privrec", **PLAIN_STEPS)
    local = federation(flower, tmp_path / "fed", "privrec", DATA, settings, NODES)
    try:
        train(flower, local, "engine")
    finally:
        flower.kill_all()
    assert_as_simulated(local, data, "privrec", tmp_path)


def _round(local: LocalFederation) -> int:
    """Return the round of a federation's server; 0 before the first."""
    status = local.server.status
    return int(json.loads(status.read_bytes())["round_index"]) if status.is_file() else 0
