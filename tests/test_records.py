"""A run folder's files are whole or absent, and say so when they are neither."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privrec import records
from privrec.errors import RunFolderError
from privrec.recipes import configure

CONFIG = configure("privrec", "synthetic:users=60", {"hidden": [8, 4], "rounds": 12})
LINES = [{"round": k, "clients": 8, "loss": 0.5 / (k + 1), "seconds": 0.01} for k in range(4)]


def fail_with(code: int) -> Any:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def folder_with_rounds(path: Path, text: str) -> records.RunFolder:
    (path / "rounds.jsonl").write_text(text)
    return records.RunFolder(path=path)


# --- write_whole -----------------------------------------------------------------------------


def test_a_written_file_holds_exactly_the_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"old", b"", b"\x00\xff\r\n"):
        records.write_whole(path, content)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("owner", "name", "code"),
    [(os, "fsync", errno.ENOSPC), (os, "fsync", errno.EIO), (Path, "replace", errno.EACCES)],
)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, code: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(owner, name, fail_with(code))
    with pytest.raises(RunFolderError, match=os.strerror(code)) as caught:
        records.write_whole(path, b"new")
    assert str(path) in str(caught.value)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_content_is_on_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut leaves an empty file under the final name."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    seen: list[tuple[str, bytes]] = []
    fsync, replace = os.fsync, Path.replace

    def spy_fsync(descriptor: int) -> None:
        seen.append(("fsync", path.read_bytes()))
        assert os.fstat(descriptor).st_size == len(b"new content")
        fsync(descriptor)

    def spy_replace(self: Path, target: Path) -> Path:
        seen.append(("replace", self.read_bytes()))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "replace", spy_replace)
    records.write_whole(path, b"new content")
    assert seen == [("fsync", b"old"), ("replace", b"new content")]


@pytest.mark.parametrize("place", ["missing/file", "taken/file"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(RunFolderError, match=place):
        records.write_whole(tmp_path / place, b"new")
    assert os.listdir(tmp_path) == ["taken"]


# --- arrays ----------------------------------------------------------------------------------

DTYPES = st.sampled_from([np.float32, np.int32, np.uint32, np.int64, np.bool_])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(array=hnp.arrays(DTYPES, SHAPES), transposed=st.booleans())
def test_arrays_come_back_with_shape_type_and_bits(
    tmp_path: Path, array: npt.NDArray[Any], transposed: bool
) -> None:
    """Shapes of no dimensions too: an optimizer counts its steps in one."""
    written = array.T if transposed else array
    records.write_arrays(tmp_path / "a.safetensors", {"x": written}, {"recipe": "privrec"})
    read = records.read_arrays(tmp_path / "a.safetensors")
    assert list(read) == ["x"]
    assert (read["x"].shape, read["x"].dtype) == (written.shape, written.dtype)
    assert read["x"].tobytes() == written.tobytes()


def test_the_same_arrays_are_the_same_bytes(tmp_path: Path) -> None:
    arrays = {name: np.arange(3, dtype=np.float32) for name in "zyxabc"}
    facts = {name: name for name in "recipedsoun"}
    for name in ("one", "other"):
        records.write_arrays(tmp_path / name, arrays, facts)
        arrays = dict(reversed(arrays.items()))
        facts = dict(reversed(facts.items()))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_arrays_that_were_cut_or_damaged_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    records.write_arrays(path, {"x": np.arange(6, dtype=np.float32)}, {})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(RunFolderError, match=r"a\.safetensors"):
            records.read_arrays(path)
    path.write_bytes(b"\xff" * 8 + whole[8:])
    with pytest.raises(RunFolderError, match=r"a\.safetensors"):
        records.read_arrays(path)
    path.unlink()
    with pytest.raises(RunFolderError, match=r"a\.safetensors"):
        records.read_arrays(path)


# --- rounds.jsonl ----------------------------------------------------------------------------


def test_rounds_are_read_as_they_were_appended(tmp_path: Path) -> None:
    folder = records.RunFolder(path=tmp_path)
    assert records.read_rounds(folder) == []
    for line in LINES:
        records.append_round(folder, line)
    assert records.read_rounds(folder) == LINES
    text = (tmp_path / "rounds.jsonl").read_text()
    assert [json.loads(line) for line in text.splitlines()] == LINES
    assert text.endswith("\n")


def test_a_line_torn_anywhere_costs_that_line_alone(tmp_path: Path) -> None:
    whole = "".join(json.dumps(line) + "\n" for line in LINES)
    last = json.dumps(LINES[-1])
    for cut in range(len(last)):
        torn = whole[: len(whole) - 1 - len(last) + cut]
        folder = folder_with_rounds(tmp_path, torn)
        assert records.read_rounds(folder) == LINES[:-1], torn
    # Only the newline is missing: the line is whole, and the next one must not be glued to it.
    folder = folder_with_rounds(tmp_path, whole[:-1])
    records.keep_rounds(folder, 4)
    records.append_round(folder, {"round": 4})
    assert records.read_rounds(folder) == [*LINES, {"round": 4}]


@pytest.mark.parametrize("before", range(6))
def test_rounds_are_cut_back_to_those_before_the_checkpoint(tmp_path: Path, before: int) -> None:
    torn = "".join(json.dumps(line) + "\n" for line in LINES) + '{"round": 4, "clie'
    folder = folder_with_rounds(tmp_path, torn)
    records.keep_rounds(folder, before)
    assert records.read_rounds(folder) == LINES[:before]
    kept = "".join(json.dumps(line) + "\n" for line in LINES[:before])
    assert (tmp_path / "rounds.jsonl").read_text() == kept
    assert os.listdir(tmp_path) == ["rounds.jsonl"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is full")
def test_a_full_disk_while_appending_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records.RunFolder, "rounds_path", Path("/dev/full"))
    with pytest.raises(RunFolderError, match=r"cannot write /dev/full: No space left on device"):
        records.append_round(records.RunFolder(path=tmp_path), LINES[0])


# --- the folder ------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["synthetic", 'a "quoted" name', "back\\slash", "Ünï/cödé 映画"])
def test_the_settings_come_back_as_they_went_in(tmp_path: Path, data: str) -> None:
    config = configure("privrec-paper", data, {"hidden": [8, 4], "local_lr": 1e-7, "seed": 2**40})
    made = records.create_run(tmp_path / "deep" / "run", config)
    opened, read = records.open_run(tmp_path / "deep" / "run")
    assert (opened, read) == (made, config)
    assert os.listdir(made.path) == ["config.toml"]


def test_an_empty_folder_is_taken_and_a_used_one_left_alone(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    records.create_run(tmp_path / "empty", CONFIG)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.txt").write_text("three years of work")
    (tmp_path / "file").write_text("a file")
    for name in ("used", "file", "empty"):
        with pytest.raises(RunFolderError, match="in the way"):
            records.create_run(tmp_path / name, CONFIG)
    assert os.listdir(tmp_path / "used") == ["thesis.txt"]
    assert (tmp_path / "file").read_text() == "a file"


def test_what_a_kill_during_creation_leaves_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".config.toml.4711.tmp").write_bytes(b"format = ")
    assert records.is_untouched(tmp_path)
    folder = records.create_run(tmp_path, CONFIG)
    assert os.listdir(folder.path) == ["config.toml"]
    assert not records.is_untouched(tmp_path)
    assert not records.is_untouched(tmp_path / "nowhere")


def test_only_temporary_files_of_ours_are_cleared(tmp_path: Path) -> None:
    folder = records.create_run(tmp_path / "run", CONFIG)
    for name in (".params.safetensors.1.tmp", ".rounds.jsonl.22.tmp", "notes.tmp", ".hidden"):
        (folder.path / name).write_text("")
    records.clear_leftovers(folder)
    assert sorted(os.listdir(folder.path)) == [".hidden", "config.toml", "notes.tmp"]


def test_a_folder_that_cannot_get_its_settings_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.setattr(os, "fsync", fail_with(errno.ENOSPC))
    for name in ("new", "there"):
        with pytest.raises(RunFolderError, match="No space left"):
            records.create_run(tmp_path / name, CONFIG)
    assert os.listdir(tmp_path) == ["there"]
    assert os.listdir(tmp_path / "there") == []


def test_settings_cut_short_anywhere_are_refused(tmp_path: Path) -> None:
    """Also between two lines, where the rest would silently be the defaults of another run."""
    folder = records.create_run(tmp_path, CONFIG)
    whole = folder.config_path.read_bytes()
    for size in range(len(whole) - 1):  # the last byte is a newline
        folder.config_path.write_bytes(whole[:size])
        with pytest.raises(RunFolderError, match=r"config\.toml"):
            records.open_run(tmp_path)


@pytest.mark.parametrize("version", ["0", "1", '"2"', "2.5"])
def test_a_folder_of_another_format_is_refused(tmp_path: Path, version: str) -> None:
    folder = records.create_run(tmp_path, CONFIG)
    text = folder.config_path.read_text()
    folder.config_path.write_text(text.replace("format = 2", f"format = {version}"))
    with pytest.raises(RunFolderError, match="this privrec reads format 2"):
        records.open_run(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rounds = 12", "rounds = -3", "`rounds` must be >= 0; got -3"),
        ("rounds = 12", "roundz = 12", "did you mean 'rounds'"),
        ("rounds = 12", "rounds = ", "cannot read"),
        ('recipe = "privrec"', 'recipe = "\x00"', "cannot read"),
    ],
)
def test_settings_that_were_edited_wrongly_name_the_file(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    folder = records.create_run(tmp_path, CONFIG)
    text = folder.config_path.read_text()
    assert old in text
    folder.config_path.write_text(text.replace(old, new))
    with pytest.raises(RunFolderError) as caught:
        records.open_run(tmp_path)
    assert words in str(caught.value)
    assert str(folder.config_path) in str(caught.value)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="nowhere does not exist"):
        records.open_run(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match="is no run folder"):
        records.open_run(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"recipe": "privrec"}', "\x00"])
def test_an_evaluation_that_is_not_one_is_refused(tmp_path: Path, text: str) -> None:
    folder = records.create_run(tmp_path, CONFIG)
    with pytest.raises(RunFolderError, match="no evaluation yet: run 'privrec evaluate"):
        records.read_evaluation(tmp_path)
    folder.evaluation_path.write_text(text)
    with pytest.raises(RunFolderError, match=r"evaluation\.json"):
        records.read_evaluation(tmp_path)
