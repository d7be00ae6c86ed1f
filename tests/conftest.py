"""Set before JAX is imported: two host devices on any machine, and a compiler in a hurry."""

import os

# Two devices, so that no test is skipped.
os.environ["JAX_NUM_CPU_DEVICES"] = "2"
# Tests run in as many processes as there are cores: a second thread in each only waits.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests compile many programs and run each for a moment: without XLA's usual emitters and LLVM's
# usual passes, all tests together take a third less CPU with an empty compilation cache. Processes
# that tests start inherit this. What you set yourself comes last, and wins.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0"
    " --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1"
    f" {os.environ.get('XLA_FLAGS', '')}"
)

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from commands import SET, Refused, document, invoke, tree
from privrec.data.federation import Federation
from privrec.data.sources import is_here, load
from privrec.runs.folder import RunFolder
from tiny import DATA

pytest.register_assert_rewrite("privrec.testing")
# The same examples each time, so that a test that passes passes again. `make test-all` tries more.
settings.register_profile("few", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("many", deadline=None, derandomize=True, max_examples=200)
settings.load_profile(os.environ.get("PRIVREC_EXAMPLES", "few"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Mark tests that need the real data sets as skipped if the files are missing."""
    if item.get_closest_marker("realdata") and not all(map(is_here, ("movielens-1m", "frappe"))):
        pytest.skip("MovieLens-1M or Frappe is not in $PRIVREC_DATA")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(scratch: Path) -> Refused:
    """Run a command that must fail; return its one line. Check that nothing changes on disk."""

    def check(*words: str | Path) -> str:
        before = tree(scratch)
        result = invoke(*words)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert tree(scratch) == before
        [line] = result.stderr.splitlines()
        assert line.startswith("privrec: ")
        return line

    return check


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, not evaluated. Tests that change it take a copy."""
    path = tmp_path_factory.mktemp("cli") / "run"
    said = document("train", "privrec", "--data", DATA, "--out", path, *SET, "--json")
    keys = ("epsilon", "epsilon_of_mechanism", "delta", "stage_two_epsilon")
    none = dict.fromkeys(keys)
    assert said == {"run": str(path), "rounds": 3, "privacy": none}
    return path


@pytest.fixture(scope="session")
def evaluated(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The same run evaluated, and what the command printed."""
    path = tmp_path_factory.mktemp("cli") / "evaluated"
    shutil.copytree(trained, path)
    return path, document("evaluate", path, "--json")


@pytest.fixture
def copy(trained: Path, scratch: Path) -> RunFolder:
    shutil.copytree(trained, scratch / "run")
    return RunFolder(path=scratch / "run")


@pytest.fixture(scope="session")
def data() -> Federation:
    """The small data set of most tests."""
    return load(DATA)
