"""A run folder's files are complete or absent; a damaged file gives an error."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privrec.algorithms.recipes import configure, settings_of
from privrec.errors import RunFolderError
from privrec.runs import folder as records
from privrec.runs.api import open_run
from privrec.settings import RunSettings

CONFIG = configure("privrec", "synthetic:users=60", {"hidden": [8, 4], "rounds": 12})
MARK = "a hash of the data"
NEW = ["catalogue.json", "config.toml", "simulation"]


def fail_with(code: int) -> Any:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def create(path: Path, config: RunSettings = CONFIG) -> records.RunFolder:
    return records.create_run(path, config, "{}", MARK)


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
        found = os.fstat(descriptor)
        what = "folder" if stat.S_ISDIR(found.st_mode) else "file"
        assert what == "folder" or found.st_size == len(b"new content")
        seen.append((what, path.read_bytes()))
        fsync(descriptor)

    def spy_replace(self: Path, target: Path) -> Path:
        seen.append(("replace", self.read_bytes()))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "replace", spy_replace)
    records.write_whole(path, b"new content")
    new = b"new content"
    assert seen == [("file", b"old"), ("replace", new), ("folder", new)]


@pytest.mark.parametrize("place", ["taken/file", "taken/deep/file"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(RunFolderError, match=place):
        records.write_whole(tmp_path / place, b"new")
    assert os.listdir(tmp_path) == ["taken"]
    assert (tmp_path / "taken").read_text() == "a file, not a folder"


def test_a_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    records.write_whole(tmp_path / "some" / "where" / "file", b"new")
    assert (tmp_path / "some" / "where" / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path / "some" / "where") == ["file"]


# --- arrays ----------------------------------------------------------------------------------

DTYPES = st.sampled_from([np.float32, np.int32, np.uint32, np.int64, np.bool_])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(array=hnp.arrays(DTYPES, SHAPES), transposed=st.booleans())
def test_arrays_come_back_with_shape_type_and_bits(
    tmp_path: Path, array: npt.NDArray[Any], transposed: bool
) -> None:
    """Also scalars, in which an optimizer counts its steps."""
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


# --- the folder ------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["synthetic", 'a "quoted" name', "back\\slash", "Ünï/cödé 映画"])
def test_the_settings_come_back_as_they_went_in(tmp_path: Path, data: str) -> None:
    config = configure("privrec-paper", data, {"hidden": [8, 4], "local_lr": 1e-7, "seed": 2**40})
    made = create(tmp_path / "deep" / "run", config)
    opened, read = records.read_run(tmp_path / "deep" / "run")
    assert (opened, settings_of(read)) == (made, config)
    assert sorted(os.listdir(made.path)) == NEW
    assert os.listdir(made.path / "simulation") == ["data.json"]


def test_the_settings_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise there could be a run whose data cannot be checked."""
    written: list[str] = []
    real = records.write_whole

    def spy(path: Path, content: bytes) -> None:
        real(path, content)
        written.append(path.name)

    monkeypatch.setattr(records, "write_whole", spy)
    create(tmp_path)
    assert written[-1] == "config.toml"
    assert {"data.json", "catalogue.json"} <= set(written)


def test_only_the_same_data_may_go_on(tmp_path: Path) -> None:
    folder = create(tmp_path)
    records.check_data(folder, MARK)
    with pytest.raises(RunFolderError, match="the data has changed since"):
        records.check_data(folder, MARK + "!")
    for text in ("", "[]", "{}", "5", "\x00"):
        folder.data_path.write_text(text)
        with pytest.raises(RunFolderError, match=r"data\.json cannot be read"):
            records.check_data(folder, MARK)
    folder.data_path.unlink()
    with pytest.raises(RunFolderError, match=r"data\.json cannot be read"):
        records.check_data(folder, MARK)


def test_an_empty_folder_is_taken_and_a_used_one_left_alone(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.txt").write_text("three years of work")
    (tmp_path / "file").write_text("a file")
    for name in ("used", "file", "empty"):
        with pytest.raises(RunFolderError, match="in the way"):
            create(tmp_path / name)
    assert os.listdir(tmp_path / "used") == ["thesis.txt"]
    assert (tmp_path / "file").read_text() == "a file"


LEFT = {
    "simulation/.data.json.1.tmp": b"{",
    "simulation/data.json": b'{"fingerprint": "of other data"}',
    ".catalogue.json.1.tmp": b"{",
    "catalogue.json": b'{"other": 1}',
    ".config.toml.4711.tmp": b"recipe = ",
}


@pytest.mark.parametrize("left", [list(LEFT)[:count] for count in range(len(LEFT) + 1)])
def test_what_a_kill_during_creation_leaves_is_no_obstacle(tmp_path: Path, left: list[str]) -> None:
    for name in left:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(LEFT[name])
    assert records.is_untouched(tmp_path)
    folder = create(tmp_path)
    assert sorted(os.listdir(folder.path)) == NEW
    assert os.listdir(folder.path / "simulation") == ["data.json"]
    records.check_data(folder, MARK)
    assert folder.catalogue_path.read_text() == "{}"
    assert not records.is_untouched(tmp_path)
    assert not records.is_untouched(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["simulation/rounds.jsonl", "simulation/my.txt", "my/data.json"])
def test_what_no_creation_leaves_is_an_obstacle(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("mine")
    assert not records.is_untouched(tmp_path)
    with pytest.raises(RunFolderError, match="in the way"):
        create(tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_only_temporary_files_of_ours_are_cleared(tmp_path: Path) -> None:
    folder = create(tmp_path / "run")
    for place in (folder.path, folder.path / "simulation"):
        for name in (".params.safetensors.1.tmp", ".rounds.jsonl.22.tmp", "notes.tmp", ".hidden"):
            (place / name).write_text("")
    records.clear_leftovers(folder)
    assert sorted(os.listdir(folder.path)) == [".hidden", *NEW[:2], "notes.tmp", "simulation"]
    raw = os.listdir(folder.path / "simulation")
    assert sorted(raw) == [".hidden", "data.json", "notes.tmp"]


def test_a_folder_that_cannot_get_its_settings_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.setattr(os, "fsync", fail_with(errno.ENOSPC))
    for name in ("new", "there"):
        with pytest.raises(RunFolderError, match="No space left"):
            create(tmp_path / name)
    assert os.listdir(tmp_path) == ["there"]
    assert not [path for path in (tmp_path / "there").rglob("*") if path.is_file()]
    monkeypatch.undo()
    create(tmp_path / "there")


def test_settings_cut_short_anywhere_are_refused(tmp_path: Path) -> None:
    """Also between two lines: the missing settings would silently become defaults."""
    folder = create(tmp_path)
    whole = folder.config_path.read_bytes()
    for size in range(len(whole) - 1):  # the last byte is a newline
        folder.config_path.write_bytes(whole[:size])
        with pytest.raises(RunFolderError, match=r"config\.toml"):
            records.read_run(tmp_path)


@pytest.mark.parametrize("version", ["0", "1", "2", '"3"', "3.5"])
def test_a_folder_of_another_format_is_refused(tmp_path: Path, version: str) -> None:
    folder = create(tmp_path)
    text = folder.config_path.read_text()
    folder.config_path.write_text(text.replace("format = 4", f"format = {version}"))
    with pytest.raises(RunFolderError, match="this privrec reads format 4"):
        records.read_run(tmp_path)


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
    folder = create(tmp_path)
    text = folder.config_path.read_text()
    assert old in text
    folder.config_path.write_text(text.replace(old, new))
    with pytest.raises(RunFolderError) as caught:
        open_run(tmp_path)
    assert words in str(caught.value)
    assert str(folder.config_path) in str(caught.value)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="nowhere does not exist"):
        records.read_run(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match="is no run folder"):
        records.read_run(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"recipe": "privrec"}', "\x00"])
def test_an_evaluation_that_is_not_one_is_refused(tmp_path: Path, text: str) -> None:
    folder = create(tmp_path)
    with pytest.raises(RunFolderError, match="no evaluation yet: run 'privrec evaluate"):
        records.read_evaluation(tmp_path)
    folder.evaluation_path.write_text(text)
    with pytest.raises(RunFolderError, match=r"evaluation\.json"):
        records.read_evaluation(tmp_path)
