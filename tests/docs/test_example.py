"""The example recipe, added to a copy of the package: its own file, and one line of the table."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE = '    "subspace": __import__("privrec.algorithms.subspace", fromlist=["x"]).SUBSPACE,\n'
PROGRAM = """
import json, pathlib, privrec
from typer.testing import CliRunner
from privrec.cli.app import app
from privrec.runs import loop

DATA = "synthetic:users=80,items=40,longest=20"
SMALL = ["--data", DATA, "--set", "cohort=20", "--set", "rounds=3"]
NOISED = ["--set", "mechanism=gaussian", "--epsilon", "8", "--delta", "1e-3"]

def run(*words):
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return found.stdout

assert "item vectors by a federated subspace iteration" in run("recipes")
assert "Length of an item's vector." in " ".join(run("recipes", "subspace").split())
said = json.loads(run("train", "subspace", *SMALL, *NOISED, "--dry-run", "--json"))
assert 7.8 < said["privacy"]["epsilon"] <= 8, said
run("train", "subspace", *SMALL, "--out", "plain")
figures = json.loads(run("evaluate", "plain", "--json"))
run("train", "subspace", *SMALL, *NOISED, "--out", "noised", "--json")
noised = json.loads(run("evaluate", "noised", "--json"))
assert len(pathlib.Path("noised/ledger.jsonl").read_text().splitlines()) == 3
assert 7.8 < noised["privacy"]["epsilon"] <= 8
assert "list of items" in noised["privacy"]["statement"]

class Stopped(BaseException):
    pass

def stop(what, done, total):
    if what == "rounds" and done == 2:
        raise Stopped

loop.CHECKPOINT_SECONDS = -1.0
try:
    privrec.train("subspace", DATA, out="stopped", cohort=20, rounds=3, on_progress=stop)
except Stopped:
    pass
run("train", "subspace", "--data", DATA, "--out", "stopped", "--resume")
same = [pathlib.Path(name, "params.safetensors").read_bytes() for name in ("plain", "stopped")]
assert same[0] == same[1]
run("export", "plain", "--out", "model.privrec")
film = privrec.load(DATA).catalogue.titles[3]
listed = json.loads(run("recommend", "model.privrec", "--like", film, "--json"))
print(json.dumps({"hits": figures["hits"]["10"], "listed": len(listed)}))
"""


@pytest.mark.slow
def test_the_example_is_one_file_and_one_line(tmp_path: Path) -> None:
    package = tmp_path / "src" / "privrec"
    shutil.copytree(ROOT / "src" / "privrec", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "examples" / "subspace.py", package / "algorithms")
    table = package / "algorithms" / "recipes.py"
    text = table.read_text()
    begin = "RECIPES: dict[str, Recipe] = {\n"
    assert text.count(begin) == 1
    table.write_text(text.replace(begin, begin + LINE))
    place = {**os.environ, "PYTHONPATH": str(package.parent)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["hits"] > 0.2
    assert said["listed"] == 10
