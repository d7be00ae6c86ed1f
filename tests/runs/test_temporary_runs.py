"""A run without `out` is there as long as somebody uses it; after that nothing of it is left."""

import copy
import gc
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import privrec
from privrec.errors import RunFolderError, SettingsError
from privrec.runs import folder as records
from tiny import DATA, MODEL

ROUNDS = {**MODEL, "rounds": 2, "validate_every": 0}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, which nothing else uses."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.slow
def test_a_run_goes_with_its_last_user(place: Path) -> None:
    run = privrec.train("popularity", DATA)
    folder = run.folder
    assert [run.folder.path] == list(place.iterdir())
    assert "temporary" in repr(run)
    me = run.device()
    model = run.model()
    run.evaluate(references=[])
    del run
    gc.collect()
    assert list(place.iterdir())  # The folder's object is still in use.
    del folder
    gc.collect()
    assert list(place.iterdir()) == []
    assert len(me.recommend(3)) == len(model.device().recommend(3)) == 3


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError, privrec.PrivrecError])
def test_a_training_that_fails_leaves_nothing(place: Path, fault: type[BaseException]) -> None:
    seen: list[Any] = []

    def on_progress(what: str, done: int, total: int) -> None:
        seen.append(list(place.iterdir()))
        if what == "rounds" and done == 1:
            raise fault("stop")

    with pytest.raises(fault, match="stop") as caught:
        privrec.train("privrec", DATA, on_progress=on_progress, **ROUNDS)
    assert all(map(len, seen))  # It had a folder.
    assert list(place.iterdir()) == []
    del caught


@pytest.mark.slow
def test_a_folder_of_ones_own_stays_also_if_training_fails(place: Path, tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what == "rounds":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        privrec.train("privrec", DATA, out=tmp_path / "run", on_progress=stop, **ROUNDS)
    assert (tmp_path / "run" / "config.toml").is_file()
    run = privrec.train("privrec", DATA, out=tmp_path / "run", resume=True)
    path = run.folder.path
    del run
    gc.collect()
    assert path.is_dir()
    assert list(place.iterdir()) == []


ENDINGS = {
    "at the end": "",
    "with an error": "raise ValueError",
    "with an exit": "import sys; sys.exit(3)",
    "interrupted": "raise KeyboardInterrupt",
    "in a child": (
        "import os\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    del run\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "assert run.folder.params_path.is_file()"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", [*ENDINGS])
def test_nothing_is_left_when_python_ends(ending: str, tmp_path: Path) -> None:
    """With a stand-in for the training, because JAX takes seconds to import."""
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from types import SimpleNamespace\n"
        "from privrec.runs.folder import temporary_run\n"
        "from privrec.settings import RunSettings\n"
        "made = temporary_run(RunSettings(recipe='a', data='b'), '{}', 'mark')\n"
        "made.params_path.write_bytes(b'1')\n"
        "run = SimpleNamespace(folder=made); del made\n"
        "assert run.folder.config_path.is_file()\n" + ENDINGS[ending]
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "AssertionError" not in ran.stderr
    assert "ImportError" not in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_deep_copy_keeps_the_folder(place: Path) -> None:
    run = privrec.train("popularity", DATA)
    again = copy.deepcopy(run)
    del run
    gc.collect()
    assert len(again.device().recommend(3)) == 3
    del again
    gc.collect()
    assert list(place.iterdir()) == []


def test_what_comes_from_raw_data_is_for_its_owner_alone(tmp_path: Path) -> None:
    run = privrec.train("popularity", DATA, out=tmp_path / "run")
    simulation = run.folder.path / "simulation"
    assert stat.S_IMODE(simulation.stat().st_mode) == 0o700
    shutil.rmtree(simulation)
    records.write_whole(run.folder.report_path, b"")
    assert stat.S_IMODE(simulation.stat().st_mode) == 0o700
    assert stat.S_IMODE(run.folder.path.stat().st_mode) & 0o700 == 0o700


@pytest.mark.slow
def test_a_saved_run_stays(place: Path, tmp_path: Path) -> None:
    run = privrec.train("popularity", DATA)
    found = run.evaluate(references=[]).as_json()
    kept = run.save(tmp_path / "deep" / "kept")
    first = [one.item for one in run.device().recommend(5)]
    with pytest.raises(RunFolderError, match="in the way"):
        run.save(kept.folder.path)
    with pytest.raises(SettingsError, match="`path` must be a path; got 3"):
        run.save(3)  # type: ignore[arg-type]
    del run
    gc.collect()
    assert list(place.iterdir()) == []
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["kept"]
    again = privrec.open_run(tmp_path / "deep" / "kept")
    assert [one.item for one in again.device().recommend(5)] == first
    assert again.evaluate(references=[]).as_json() == found
    assert kept.evaluate(references=[]).as_json() == found
    assert "temporary" not in repr(kept)


def test_an_unfinished_run_has_no_copy(trained: Path, tmp_path: Path) -> None:
    run = privrec.open_run(privrec.open_run(trained).save(tmp_path / "one").folder.path)
    run.folder.params_path.unlink()
    with pytest.raises(RunFolderError, match="is not finished"):
        run.save(tmp_path / "two")
    assert not (tmp_path / "two").exists()
