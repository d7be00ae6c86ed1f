"""The run folder: the files of a run, from which a killed training can be resumed.

The top level has the files that may be released:

- `config.toml`: the settings; it is written first and never changed.
- `catalogue.json`: the items.
- `ledger.jsonl`: one line per release, flushed to disk before the release is used (`ledger.py`).
- `rounds.jsonl`: one line per round.
- `params.safetensors`: the final parameters. If this file exists, the run is finished.
- `privacy.html`: the page that states the privacy guarantee.
- `checkpoint.safetensors`: during a run, the whole server state, and the best state by validation
  if the recipe keeps one.
- `published-N.safetensors`: the published sum of round N, until a checkpoint includes it.

`simulation/` has files that are computed from raw data: the fingerprint of the data, losses, counts
and timings, validation, evaluation, attacks, audits and the report. No guarantee covers these
files. `simulation/progress.json` has the progress of a training; it is not flushed to disk, because
no other file depends on it.

A run in Python without a folder has a temporary folder, which is removed with the `Run` object.
"""

import contextlib
import fcntl
import json
import os
import platform
import shutil
import tempfile
import threading
import time
import tomllib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from privrec.data.catalogue import Catalogue, from_json
from privrec.errors import RunFolderError, SettingsError, check_kind, nearest
from privrec.runs.documents import Evaluation, RoundFigures, RoundLine, fault_in
from privrec.settings import RunSettings, to_toml

FORMAT = 4
SIMULATION = "simulation"
Arrays = Mapping[str, npt.NDArray[Any]]
AnyRound = TypeVar("AnyRound", bound=RoundLine)
_TEMPORARY = ".tmp"


class _File:
    """The path of a file in a run folder, as an attribute of `RunFolder`."""

    def __init__(self, inside: str) -> None:
        self._inside = inside

    @overload
    def __get__(self, folder: None, kind: type) -> "_File": ...
    @overload
    def __get__(self, folder: "RunFolder", kind: type) -> Path: ...
    def __get__(self, folder: "RunFolder | None", kind: type) -> "_File | Path":
        return self if folder is None else folder.path / self._inside


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class RunFolder:
    """The files of one run. If the folder is temporary, it is removed with this object."""

    path: Path
    is_temporary: bool = field(default=False, compare=False)

    def __deepcopy__(self, memo: object) -> "RunFolder":
        return self  # A temporary folder is removed with the original, so do not copy.

    config_path = _File("config.toml")
    catalogue_path = _File("catalogue.json")
    rounds_path = _File("rounds.jsonl")
    """One line per round: its number and its stage."""
    ledger_path = _File("ledger.jsonl")
    checkpoint_path = _File("checkpoint.safetensors")
    params_path = _File("params.safetensors")
    privacy_path = _File("privacy.html")
    data_path = _File("simulation/data.json")
    """The fingerprint of the data that the run began with."""
    choice_path = _File("simulation/choice.txt")
    """One line with the settings that the recipe chose automatically."""
    figures_path = _File("simulation/rounds.jsonl")
    """One line per round: its loss, counts and timings, computed from raw data."""
    evaluation_path = _File("simulation/evaluation.json")
    attack_path = _File("simulation/attack.json")
    audit_path = _File("simulation/audit.json")
    report_path = _File("simulation/report.html")
    progress_path = _File("simulation/progress.json")

    def published_path(self, round_index: int) -> Path:
        """Return the path of a round's published sum."""
        return self.path / f"published-{round_index}.safetensors"


def create_run(
    path: Path, config: RunSettings, catalogue: str, fingerprint: str | None
) -> RunFolder:
    """Return a new run folder; raise if the folder has more files than a killed start can leave.

    `catalogue` is JSON. `fingerprint` is the hash of the data, on which alone the run can resume;
    None for a federation's server, which has no data.
    """
    check_free(path)
    is_new = not path.exists()
    folder = RunFolder(path=path)
    with file_errors(path, "write"):
        folder.data_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    clear_leftovers(folder)
    # The last line is the format, so a file without it is truncated.
    text = to_toml(config, header={}) + f"format = {FORMAT}\n"
    try:
        if fingerprint is not None:
            mark_data(folder, fingerprint)
        write_whole(folder.catalogue_path, catalogue.encode())
        write_whole(folder.config_path, text.encode())
    except RunFolderError:
        shutil.rmtree(path if is_new else folder.data_path.parent, ignore_errors=True)
        raise
    return folder


def check_free(path: Path | None) -> None:
    """Raise if a new run cannot begin in this folder; None is a temporary folder."""
    if path is not None and path.exists() and not is_untouched(path):
        raise RunFolderError(
            f"{path} is in the way: choose another --out, or go on with it by --resume"
        )


def is_untouched(path: Path) -> bool:
    """Return whether a folder has only files that a kill during `create_run` can leave."""
    return path.is_dir() and all(map(_is_leftover, path.iterdir()))


def clear_leftovers(folder: RunFolder) -> None:
    """Remove the temporary files that a killed process left."""
    for place in (folder.path, folder.path / SIMULATION):
        for path in filter(_is_temporary, place.iterdir() if place.is_dir() else ()):
            path.unlink(missing_ok=True)


def mark_data(folder: RunFolder, fingerprint: str) -> None:
    """Write the fingerprint of the training data, so that later commands can check the data."""
    write_whole(folder.data_path, json.dumps({"fingerprint": fingerprint}).encode() + b"\n")


def has_data_mark(folder: RunFolder) -> bool:
    """Return whether the fingerprint file exists, even if it cannot be read."""
    return os.path.lexists(folder.data_path)


def check_data(folder: RunFolder, fingerprint: str) -> None:
    """Raise unless the fingerprint equals that of the data that the run started with."""
    try:
        began = json.loads(folder.data_path.read_text(encoding="utf-8"))["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFolderError(
            f"{folder.data_path} cannot be read, so it is unknown whether the data is still the"
            " same: begin a new run"
        ) from error
    if began != fingerprint:
        raise RunFolderError(
            f"the data has changed since {folder.path} was begun: two releases would reveal"
            " what changed, and figures would be of other people; begin a new run"
        )


def read_run(path: Path) -> tuple[RunFolder, dict[str, object]]:
    """Return an existing run folder and the unchecked settings in its `config.toml`."""
    folder = RunFolder(path=path)
    if not folder.config_path.is_file():
        raise RunFolderError(f"{path} {no_run(path)}")
    try:
        content = folder.config_path.read_bytes()
    except OSError as error:
        raise RunFolderError(f"cannot read {folder.config_path}: {error}") from error
    return folder, settings_in(folder, content)


def settings_in(folder: RunFolder, content: bytes) -> dict[str, object]:
    """Return the unchecked settings in the content of a `config.toml`."""
    try:
        values = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"cannot read {folder.config_path}: {error}") from error
    if "format" not in values:
        raise RunFolderError(f"{folder.config_path} was cut short: it has no format")
    version = values.pop("format")
    if version != FORMAT:
        raise RunFolderError(
            f"{folder.path} is a run folder of format {version}; this privrec reads format {FORMAT}"
        )
    if not {"recipe", "data"} <= values.keys():
        raise RunFolderError(f"{folder.config_path} names no recipe or no data")
    return values


def no_run(path: Path) -> str:
    """Return the reason why a path is not a run folder, and a similar existing path."""
    with file_errors(path, "read"):
        if not path.exists():
            there = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
            return f"does not exist{nearest(path.name, there, str(path).removesuffix(path.name))}"
        if path.is_file():
            return "is a file, not a run folder"
        if (path / "dataset.toml").is_file():
            return f"is a data folder, not a run: train on it with --data {path}"
    return "is no run folder: it has no config.toml"


def read_settings(
    path: Path, check: Callable[[Mapping[str, object]], RunSettings]
) -> tuple[RunFolder, RunSettings]:
    """Return an existing run folder and its settings after `check` has validated them."""
    folder, values = read_run(path)
    try:
        return folder, check(values)
    except SettingsError as error:
        raise RunFolderError(f"{folder.config_path}: {error}") from error


def read_catalogue(folder: RunFolder) -> Catalogue:
    """Return the catalogue of the run."""
    path = folder.catalogue_path
    with file_errors(path, "read"):
        return from_json(path.read_bytes(), str(path))


def append_round(folder: RunFolder, line: RoundFigures, *, figures: bool) -> None:
    """Append a line to `rounds.jsonl` and, if `figures`, one to `simulation/rounds.jsonl`."""
    lines: dict[Path, RoundLine] = {
        folder.rounds_path: RoundLine(round=line.round, stage=line.stage),
        **({folder.figures_path: line} if figures else {}),
    }
    for path, content in lines.items():
        with file_errors(path, "write"), path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(content.as_json()) + "\n")


def read_rounds(path: Path, kind: type[AnyRound]) -> list[AnyRound]:
    """Return the lines of a `rounds.jsonl`, without an incomplete last line."""
    if not path.is_file():
        return []
    lines: list[AnyRound] = []
    with file_errors(path, "read"):
        texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, text in enumerate(texts, start=1):
        if not text:
            continue
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            if number == len(texts) and isinstance(error, ValueError):
                break
            raise RunFolderError(f"{path} is damaged at line {number}: {error}") from error
        if fault := fault_in(values, kind):
            raise RunFolderError(f"{path} is damaged at line {number}: it {fault}")
        lines.append(kind.model_validate(values))
    return lines


def keep_rounds(folder: RunFolder, before: int) -> None:
    """Remove all lines of rounds >= `before` from both `rounds.jsonl` files."""
    for path, kind in ((folder.rounds_path, RoundLine), (folder.figures_path, RoundFigures)):
        if path.is_file():
            kept = [line.as_json() for line in read_rounds(path, kind) if line.round < before]
            write_whole(path, "".join(json.dumps(line) + "\n" for line in kept).encode())


def published_rounds(folder: RunFolder) -> set[int]:
    """Return the rounds whose published sum is on disk, also under a temporary name."""
    names = [path.name.split(".") for path in folder.path.glob("*published-*")]
    stems = [part for parts in names for part in parts if part.startswith("published-")]
    numbers = [stem.removeprefix("published-") for stem in stems]
    return {int(number) for number in numbers if number.isdecimal()}


def played_rounds(folder: RunFolder) -> int:
    """Return the number of rounds in the checkpoint or in the final parameters: the larger."""
    counts = [0]
    if folder.checkpoint_path.is_file():
        rounds: Any = read_arrays(folder.checkpoint_path).get("round_index", 0)
        counts.append(_rounds_in(folder.checkpoint_path, rounds))
    if folder.params_path.is_file():
        rounds = read_about(folder.params_path).get("rounds", 0)
        counts.append(_rounds_in(folder.params_path, rounds))
    return max(counts)


def _rounds_in(path: Path, rounds: Any) -> int:
    """Return a number of rounds from a file; raise if it is no number."""
    try:
        return int(rounds)
    except (TypeError, ValueError, OverflowError) as error:
        raise RunFolderError(f"{path} is damaged: it has no number of rounds") from error


def drop_published(folder: RunFolder, before: int) -> None:
    """Remove the published sums of rounds < `before`, which the checkpoint includes."""
    for path in folder.path.glob("published-*.safetensors"):
        number = path.stem.removeprefix("published-")
        if number.isdecimal() and int(number) < before:
            path.unlink(missing_ok=True)


def read_evaluation(path: Path, name: str = "evaluation.json") -> Evaluation:
    """Return an evaluation of a run; `name` is the file's name, by default of its own protocol."""
    folder, settings = read_run(path)
    place = folder.evaluation_path.with_name(name)
    evaluation = Evaluation.read(place)
    if evaluation is None:
        raise RunFolderError(f"{path} has no evaluation yet: run 'privrec evaluate {path}'")
    for key in ("recipe", "data", "seed"):
        if (mine := settings.get(key)) != (its := getattr(evaluation, key)):
            why = f"is of another run, with {key} {its!r} and not {mine!r}"
            raise RunFolderError(f"{place} {why}: evaluate again")
    return evaluation


def write_arrays(path: Path, arrays: Arrays, metadata: Mapping[str, str]) -> None:
    """Write named arrays to a safetensors file, atomically."""
    # One metadata entry and sorted names, so that the same arrays always give the same bytes.
    entry = {"privrec": json.dumps(dict(metadata), sort_keys=True)}
    # Arrays of wider numbers come first, so that every array is aligned.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, object] = {"__metadata__": entry}
    end = 0
    for name in names:
        start, end = end, end + arrays[name].nbytes
        kind, shape = _DTYPES[arrays[name].dtype.name], list(arrays[name].shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    # Write one array at a time, because `safetensors.numpy.save` copies all arrays twice.
    parts = (np.asarray(arrays[name], order="C").tobytes() for name in names)
    write_whole(path, chain([len(text).to_bytes(8, "little"), text], parts))


_DTYPES = {
    "bool": "BOOL",
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
}
"""The names of numpy's types in safetensors files."""


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a safetensors file."""
    try:
        return load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"cannot read {path}: {error}") from error


def read_about(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file that `write_arrays` wrote."""
    try:
        with safe_open(path, framework="np") as file:
            about = json.loads((file.metadata() or {}).get("privrec", "{}"))
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise RunFolderError(f"cannot read {path}: {error}") from error
    return about if isinstance(about, dict) else {}


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file atomically: to a temporary name, flushed to disk, then renamed."""
    temporary, parts = temporary_name(path), [content] if isinstance(content, bytes) else content
    with file_errors(path, "write"):
        mode = 0o700 if path.parent.name == SIMULATION else 0o777
        path.parent.mkdir(mode=mode, parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as out:
                for part in parts:
                    out.write(part)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def temporary_name(path: Path) -> Path:
    """Return the name under which this process writes a file before it is complete."""
    return path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")


def sync_folder(path: Path) -> None:
    """Flush a folder's file names to disk, so that a renamed file survives a power cut."""
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


@contextlib.contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Lock a run folder, because two processes that train in it would corrupt its ledger."""
    with file_errors(folder.path, "read"):
        place = os.open(folder.path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunFolderError(f"{folder.path} is in use by another process") from error
        yield
    finally:
        os.close(place)


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(_TEMPORARY)


def _is_leftover(path: Path) -> bool:
    """Return whether a kill before `config.toml` was written can have left this file."""
    if path.name == SIMULATION:
        return path.is_dir() and all(
            inner.name == "data.json" or _is_temporary(inner) for inner in path.iterdir()
        )
    no_run = not (path.parent / "config.toml").exists()
    return _is_temporary(path) or (path.name == "catalogue.json" and no_run)


@contextlib.contextmanager
def file_errors(path: Path, verb: str) -> Iterator[None]:
    """Turn an error of the file system into a `RunFolderError` that names the file."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"cannot {verb} {path}: {error.strerror or error}") from error


WRITE_SECONDS = 0.25
"""The least seconds between two writes of progress. Chosen by hand; a page asks once per second."""
Clock = Callable[[], float]


class ProgressFile:
    """Writes the progress of a training to a file.

    Errors of writing are ignored, so that the training does not fail because of them.
    """

    def __init__(self, path: Path, *, clock: Clock = time.monotonic) -> None:
        """Prepare the writer; no file is written yet."""
        self._path, self._clock, self._lock = path, clock, threading.Lock()
        self._written: float | None = None
        self._who = {
            "pid": os.getpid(),
            "process": process_mark(os.getpid()),
            "machine": platform.node(),
            "began": round(time.time(), 3),
        }

    def write(self, content: dict[str, object], *, now: bool = False) -> None:
        """Write the content; without `now`, not within `WRITE_SECONDS` of the last write."""
        with self._lock:
            time_now = self._clock()
            if not now and self._written is not None and time_now - self._written < WRITE_SECONDS:
                return
            self._written = time_now
            temporary = temporary_name(self._path)
            with contextlib.suppress(OSError):
                text = json.dumps({**self._who, **content}) + "\n"
                temporary.write_text(text, encoding="utf-8")
                temporary.replace(self._path)

    def remove(self) -> None:
        """Remove the file."""
        with self._lock, contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def is_alive(pid: int, mark: object) -> bool:
    """Return whether the process with this number and `process_mark` still runs here."""
    if (now := process_mark(pid)) is not None or Path("/proc/self").is_dir():
        return now is not None and now == mark
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def process_mark(pid: int) -> str | None:
    """Return the start time of a process in ticks since boot; None if unknown.

    A process number may be used again later; the start time tells the two processes apart.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the name in brackets, which may contain spaces and brackets.
    return stat.rpartition(")")[2].split()[19]


def temporary_run(config: RunSettings, catalogue: str, fingerprint: str) -> RunFolder:
    """Return a new run folder, removed when the returned object is garbage-collected.

    It is removed at the latest at the end of the process, unless the process is killed.
    """
    path = Path(tempfile.mkdtemp(prefix="privrec-"))
    try:
        folder = replace(create_run(path, config, catalogue, fingerprint), is_temporary=True)
        weakref.finalize(folder, _remove, path, os.getpid())
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return folder


def discard(folder: RunFolder) -> None:
    """Remove the folder of a failed training if it is temporary."""
    if folder.is_temporary:
        shutil.rmtree(folder.path, ignore_errors=True)


def copied(folder: RunFolder, path: Path) -> RunFolder:
    """Return a copy of a finished run's folder at `path`, which must not exist or be empty.

    An unfinished run is not copied: if both copies were resumed, both would publish sums, but each
    ledger would count only the sums of its own copy.
    """
    if not folder.params_path.is_file():
        raise RunFolderError(f"{folder.path} is not finished: go on with it by --resume first")
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise RunFolderError(f"{path} is in the way: it exists and is not an empty folder")
    path = path.absolute()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with file_errors(path, "write"):
        try:
            shutil.copytree(folder.path, part)
            part.replace(path)
        except shutil.Error as error:
            raise RunFolderError(f"cannot write {path}: {error}") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return RunFolder(path=path)


def _remove(path: Path, owner: int) -> None:
    # A forked process has a copy of the object, but the folder belongs to its parent.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def folder_path(name: str, given: object) -> Path | None:
    """Return a folder that is given as text, path or None; raise for other types."""
    if given is None:
        return None
    check_kind(name, given, (str, os.PathLike), "a path")
    return Path(str(given))
