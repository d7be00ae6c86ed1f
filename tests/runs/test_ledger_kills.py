"""A run under differential privacy that is killed at any moment: its ledger has every release.

It has no release twice: what was released before a kill is used again, not released again.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from privrec.runs import folder as records
from privrec.runs.ledger import ledger_of, read_ledger
from tiny import DATA, MODEL
from witness import TESTS

ROUNDS = 12
TINY = {**MODEL, "rounds": ROUNDS, "validate_every": 0, "delta": 1e-3}


# Each use of a release writes a hash to a separate file, on disk before the sum is used. Pauses
# around the ledger line leave time for a kill.
PROGRAM = """
import os, sys, time
import privrec, privrec.runs.journal, privrec.runs.loop
sys.path.insert(0, sys.argv.pop())
from witness import digest, witness
out, data, settings = sys.argv[1], sys.argv[2], eval(sys.argv[3])
privrec.runs.loop.CHECKPOINT_SECONDS = 0.05
real_line = privrec.runs.journal.append_release
def note(state, published):
    with open(out + ".used", "a") as file:
        file.write(digest(published) + "\\n")
        file.flush()
        os.fsync(file.fileno())
def append_release(*words):
    time.sleep(0.01)
    line = real_line(*words)
    time.sleep(0.01)
    return line
witness(note)
privrec.runs.journal.append_release = append_release
slowly = lambda what, done, total: time.sleep(0.02 if what == "rounds" else 0)
resume = os.path.exists(out)
privrec.train("dp-privrec-one", data, out=out, resume=resume, on_progress=slowly, **settings)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """Kills training processes, and compares the ledger with the used releases after each kill."""

    path: Path
    cache: Path
    settings: dict[str, Any]

    def start(self) -> subprocess.Popen[bytes]:
        words = [str(self.path), DATA, repr(self.settings), str(TESTS)]
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(self.cache)},
            stderr=subprocess.PIPE,
        )

    def kill(self, draw: random.Random) -> None:
        """Kill a process after a random time, or a random moment after some release."""
        process = self.start()
        late = time.monotonic() + draw.uniform(0, 4) + (60 if draw.random() < 0.6 else 0)
        releases = self.releases() + draw.randrange(1, 4)
        while process.poll() is None and time.monotonic() < late and self.releases() < releases:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.06))
        process.send_signal(signal.SIGKILL)
        _, said = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL), said.decode()

    def finish(self) -> None:
        process = self.start()
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()

    def releases(self) -> int:
        ledger = self.path / "ledger.jsonl"
        return ledger.read_bytes().count(b"\n") if ledger.exists() else 0

    def used(self) -> list[str]:
        witness = Path(f"{self.path}.used")
        return witness.read_text().splitlines() if witness.exists() else []

    def check(self) -> None:
        """The folder opens, and its ledger counts what was used, each round once."""
        if not self.path.exists() or records.is_untouched(self.path):
            assert not self.used()
            return
        folder, _ = records.read_run(self.path)
        lines = read_ledger(folder)
        assert [line.round for line in lines] == list(range(len(lines)))
        assert {line.noise for line in lines} <= {self.settings["noise"]}
        # Publishing the same numbers again is not another release.
        assert len(set(self.used())) <= len(lines)

    def clear(self) -> None:
        shutil.rmtree(self.path)
        Path(f"{self.path}.used").unlink()


def torment(victim: Victim, kills: int, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311
    for _ in range(kills):
        victim.kill(draw)
        victim.check()
        if (victim.path / "params.safetensors").exists():
            victim.clear()
    victim.finish()
    victim.check()
    ledger = ledger_of(records.RunFolder(path=victim.path))
    assert ledger.epsilon(1e-3) <= 5.0
    assert ledger.releases == ROUNDS
    assert len(set(victim.used())) == ROUNDS
    assert not list(victim.path.glob("published-*"))


def victims(pytestconfig: pytest.Config, tmp_path: Path) -> list[Victim]:
    cache = pytestconfig.cache.mkdir("compiled")
    return [
        Victim(
            path=tmp_path / noise, cache=cache, settings={**TINY, "epsilon": 5.0, "noise": noise}
        )
        for noise in ("seeded", "secure")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, 30])
def test_kills_lose_no_release(pytestconfig: pytest.Config, tmp_path: Path, kills: int) -> None:
    """Many kills with each kind of noise, in parallel."""
    with ThreadPoolExecutor(2) as pool:
        pair = victims(pytestconfig, tmp_path)
        list(pool.map(torment, pair, [kills] * 2, [1, 2]))
