"""The wheel as a newcomer has it: no checkout, no extras, no pins; oldest and newest libraries."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blocks import ROOT, blocks_of, commands_in
from test_extras import NEEDS

pytestmark = pytest.mark.slow

UV = Path(sys.executable).with_name("uv")
FIVE_MINUTES = [
    command
    for block in blocks_of("README.md")
    if block.language == "bash" and not block.mark and "runs/mine" in block.text
    for command in commands_in(block.text)
]
WRONG = ["train --bogus", "bogus", "evaluate", "data bogus", "train privrec-plus --seed much"]
RATINGS = "user,item,rating\n" + "".join(
    f"u{user},i{(user + k) % 9},{1 + (user * k) % 5}\n" for user in range(30) for k in range(4)
)
ITEMS = "id,title,genres\n" + "".join(
    f"i{k},Film {k},{'a|b' if k % 2 else 'b'}\n" for k in range(9)
)
Run = Callable[[str], "subprocess.CompletedProcess[str]"]


def uv(*words: str | Path) -> None:
    environment = {"UV_HTTP_TIMEOUT": "180", **os.environ}
    ran = subprocess.run(
        [UV, *words], env=environment, capture_output=True, text=True, check=False, timeout=1200
    )
    assert ran.returncode == 0, ran.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, which is built from the checkout."""
    place = tmp_path_factory.mktemp("dist")
    uv("build", "--python", sys.executable, "--out-dir", place, ROOT)
    assert len(list(place.glob("*.tar.gz"))) == 1
    [built] = place.glob("*.whl")
    return built


@pytest.fixture(scope="module", params=["lowest-direct", "highest"])
def run(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """Run a line of a shell, in one folder, with nothing installed but the wheel."""
    folder = tmp_path_factory.mktemp(request.param)
    python, work = folder / "venv" / "bin" / "python", folder / "work"
    work.mkdir()
    uv("venv", "--python", sys.executable, folder / "venv")
    # `-r`: the lowest versions are those of the direct requirements.
    how = ("--python", python, "--only-binary", ":all:", "--resolution", request.param)
    uv("pip", "install", *how, "-r", ROOT / "pyproject.toml", wheel)
    uv("pip", "check", "--python", python)
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(folder), "COLUMNS": "100"}

    def shell(line: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-c", line],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )

    return shell


def test_uvx_runs_it_from_a_checkout(tmp_path: Path) -> None:
    from_checkout = ["--python", sys.executable, "--from", str(ROOT)]
    words = [str(UV), "tool", "run", *from_checkout, "privrec", "--version"]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        words, cwd=tmp_path, env=bare, capture_output=True, text=True, check=True, timeout=1200
    )
    assert ran.stdout.startswith("privrec ")


def said(ran: "subprocess.CompletedProcess[str]") -> str:
    """Return what was printed by a command that must succeed and complain of nothing."""
    assert (ran.returncode, ran.stderr) == (0, ""), f"{ran.args}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def test_it_starts_from_the_wheel_alone(run: Run) -> None:
    where = said(run("python -c 'import privrec; print(privrec.__file__)'"))
    assert "site-packages" in where
    assert "First steps:" in said(run("privrec --help"))
    assert said(run("privrec --version")).startswith("privrec ")
    for group in ("privrec", "privrec data"):
        ran = run(group)
        assert "--help" in ran.stdout
        assert ran.stderr == ""


@pytest.mark.parametrize("words", WRONG)
def test_wrong_usage_is_one_line(run: Run, words: str) -> None:
    ran = run(f"privrec {words}")
    assert (ran.returncode, ran.stdout) == (2, "")
    [line] = ran.stderr.splitlines()
    assert line.startswith("privrec: ")
    assert line.endswith("--help'")


def test_the_five_minutes_of_the_readme(run: Run) -> None:
    assert len(FIVE_MINUTES) >= 8
    for command in FIVE_MINUTES:
        assert said(run(command))


def test_own_files_are_read(run: Run) -> None:
    said(run(f"cat > ratings.csv <<'END'\n{RATINGS}END\ncat > items.csv <<'END'\n{ITEMS}END"))
    said(run("privrec data import ratings.csv --out my-data --items items.csv"))
    said(run("privrec train popularity --data my-data --out runs/own"))
    assert "Film" in said(run("privrec recommend runs/own --like 'Film 3'"))


@pytest.mark.parametrize("words", [words for *_, words in NEEDS], ids=" ".join)
def test_an_extra_that_is_missing_is_one_line(run: Run, words: list[str]) -> None:
    ran = run(f"privrec {' '.join(words)}")
    assert (ran.returncode, ran.stdout) == (2, "")
    [line] = ran.stderr.splitlines()
    assert "pip install 'privrec[" in line
