"""All of it, quickly, as a user runs it; killed by the system again and again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from privrec.reproduce.experiments import EXPERIMENTS
from privrec.runs.documents import Document

pytestmark = pytest.mark.slow
COMMAND = (str(Path(sys.executable).with_name("privrec")), "reproduce")
FEW = ("personalisation", "activity", "epsilon-tables", "--quick", "--jobs", "2")


def test_everything_runs_quickly(tmp_path: Path) -> None:
    """Under ten minutes on two cores that nothing else uses; the test itself has no clock."""
    subprocess.run([*COMMAND, "all", "--quick", "--out", str(tmp_path)], check=True)
    page = (tmp_path / "reproduction.html").read_text(encoding="utf-8")
    assert "A quick run" in page
    for name in EXPERIMENTS:
        assert f'id="{name}"' in page
        result = Document.read(tmp_path / f"{name}.json")
        assert result is not None
        assert result.as_json()["sentences"], name
        assert (tmp_path / f"{name}.csv").is_file()
        assert (tmp_path / f"{name}.tex").is_file()
        assert list(tmp_path.glob(f"{name}-*.svg")), name


def test_killed_by_the_system_it_goes_on(tmp_path: Path) -> None:
    cells = tmp_path / "killed" / "cells"
    kept: dict[str, tuple[float, str]] = {}

    def check() -> int:
        """Return how many parts are finished; none of them has changed."""
        for path in cells.glob("*.json") if cells.is_dir() else ():
            if not path.name.startswith(("evaluation", ".")):
                now = (path.stat().st_mtime, path.read_text(encoding="utf-8"))
                assert kept.setdefault(path.name, now) == now
        return len(kept)

    command = [*COMMAND, *FEW, "--out", str(tmp_path / "killed")]
    for wanted in (1, 3, 4, 7, 11):
        process = subprocess.Popen(command, start_new_session=True)
        while check() < wanted and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True)
    finished = check()
    subprocess.run([*COMMAND, *FEW, "--out", str(tmp_path / "whole")], check=True)
    assert check() == finished
    for name in ("reproduction.html", "personalisation.json", "activity.csv"):
        mine, other = (tmp_path / folder / name for folder in ("killed", "whole"))
        assert mine.read_bytes() == other.read_bytes()
    plan = [*COMMAND, *FEW, "--out", str(tmp_path / "killed"), "--dry-run", "--json"]
    told = json.loads(subprocess.run(plan, check=True, capture_output=True).stdout)
    assert told["seconds"] == 0
