"""The run folder: what a run writes, so that a kill at any moment costs time and nothing else.

`config.toml` comes first and is never changed. `ledger.jsonl` gets a line per release, which is on
the disk before the release is used. `rounds.jsonl` gets a line per round.
`checkpoint.safetensors` holds the whole server state and is replaced in one step; on resume the
rounds after it are cut off and played again, which gives the same bits, because every random
number comes from (seed, round, purpose). `params.safetensors` marks a finished run.
"""

import contextlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from privrec.config import RunConfig, make_config, to_toml
from privrec.errors import RunFolderError, SettingsError

FORMAT = 2
Arrays = Mapping[str, npt.NDArray[Any]]
_TEMPORARY = ".tmp"
_EVALUATION_KEYS = ("recipe", "data", "seed", "users", "hits", "references", "privacy")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def config_path(self) -> Path:
        """The settings."""
        return self.path / "config.toml"

    @property
    def rounds_path(self) -> Path:
        """One JSON line per round."""
        return self.path / "rounds.jsonl"

    @property
    def ledger_path(self) -> Path:
        """One JSON line per release."""
        return self.path / "ledger.jsonl"

    @property
    def checkpoint_path(self) -> Path:
        """The server's state after some round."""
        return self.path / "checkpoint.safetensors"

    @property
    def params_path(self) -> Path:
        """The parameters of a finished run."""
        return self.path / "params.safetensors"

    @property
    def evaluation_path(self) -> Path:
        """The figures of the final report."""
        return self.path / "evaluation.json"

    @property
    def report_path(self) -> Path:
        """The report for people."""
        return self.path / "report.html"


def create_run(path: Path, config: RunConfig) -> RunFolder:
    """Return a new run folder; a folder that has anything in it is left alone."""
    is_new = not path.exists()
    if not is_new and not is_untouched(path):
        raise RunFolderError(
            f"{path} is in the way: choose another --out, or go on with it by --resume"
        )
    with _words(path, "write"):
        path.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path=path)
    clear_leftovers(folder)
    # The format comes last: a file that was cut short has none.
    text = to_toml(config, header={}) + f"format = {FORMAT}\n"
    try:
        write_whole(folder.config_path, text.encode())
    except RunFolderError:
        if is_new:
            path.rmdir()
        raise
    return folder


def is_untouched(path: Path) -> bool:
    """Return whether a folder holds nothing but what a kill during `create_run` can leave."""
    return path.is_dir() and all(map(_is_leftover, path.iterdir()))


def clear_leftovers(folder: RunFolder) -> None:
    """Remove the temporary files that a killed process left behind."""
    for path in filter(_is_leftover, folder.path.iterdir()):
        path.unlink(missing_ok=True)


def open_run(path: Path) -> tuple[RunFolder, RunConfig]:
    """Return an existing run folder and its settings."""
    folder = RunFolder(path=path)
    if not path.exists():
        raise RunFolderError(f"{path} does not exist")
    if not folder.config_path.is_file():
        raise RunFolderError(f"{path} is no run folder: it has no config.toml")
    try:
        values = tomllib.loads(folder.config_path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RunFolderError(f"cannot read {folder.config_path}: {error}") from error
    if "format" not in values:
        raise RunFolderError(f"{folder.config_path} was cut short: it has no format")
    version = values.pop("format")
    if version != FORMAT:
        raise RunFolderError(
            f"{path} is a run folder of format {version}; this privrec reads format {FORMAT}"
        )
    try:
        return folder, make_config(values)
    except SettingsError as error:
        raise RunFolderError(f"{folder.config_path}: {error}") from error


def append_round(folder: RunFolder, line: Mapping[str, Any]) -> None:
    """Add one line to `rounds.jsonl`."""
    with _words(folder.rounds_path, "write"), folder.rounds_path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def read_rounds(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the lines of `rounds.jsonl`; a last line that a kill cut short is left out."""
    if not folder.rounds_path.is_file():
        return []
    lines = []
    for text in folder.rounds_path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def keep_rounds(folder: RunFolder, before: int) -> None:
    """Cut `rounds.jsonl` back to the rounds before the given one."""
    kept = [json.dumps(line) + "\n" for line in read_rounds(folder) if line["round"] < before]
    write_whole(folder.rounds_path, "".join(kept).encode())


def append_release(folder: RunFolder, line: Mapping[str, Any]) -> None:
    """Add one line to `ledger.jsonl` and return when it is on the disk."""
    with _words(folder.ledger_path, "write"), folder.ledger_path.open("ab") as out:
        out.write(json.dumps(line).encode() + b"\n")
        out.flush()
        os.fsync(out.fileno())


def start_ledger(folder: RunFolder) -> None:
    """Make sure that `ledger.jsonl` is there, in a folder that is on the disk, and ends in a line.

    A last line that a kill cut short was never used, and is cut off.
    """
    path = folder.ledger_path
    with _words(path, "write"):
        text = path.read_bytes() if path.is_file() else b""
        whole = text.rfind(b"\n") + 1
        with path.open("ab") as out:
            out.truncate(whole)
            os.fsync(out.fileno())
        place = os.open(folder.path, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def read_ledger(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the lines of `ledger.jsonl`, all of them; a damaged ledger is refused."""
    with _words(folder.ledger_path, "read"):
        text = folder.ledger_path.read_bytes() if folder.ledger_path.is_file() else b""
    # What follows the last line's end was never used.
    lines = []
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            found = json.loads(line)
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise RunFolderError(
                f"{folder.ledger_path} is damaged at line {number}: {error}"
            ) from error
        if not isinstance(found, dict) or not {"round", "stage"} <= found.keys():
            raise RunFolderError(
                f"{folder.ledger_path} is damaged at line {number}: it names no round and stage"
            )
        lines.append(found)
    missing = {line["round"] for line in read_rounds(folder)} - {line["round"] for line in lines}
    if missing:
        raise RunFolderError(
            f"{folder.ledger_path} lacks the release of round {min(missing)}, which was played:"
            " its epsilon would be too small"
        )
    return lines


def read_evaluation(path: Path) -> dict[str, Any]:
    """Return the `evaluation.json` of a run folder."""
    folder, _ = open_run(path)
    if not folder.evaluation_path.is_file():
        raise RunFolderError(f"{path} has no evaluation yet: run 'privrec evaluate {path}'")
    try:
        found: dict[str, Any] = json.loads(folder.evaluation_path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunFolderError(f"cannot read {folder.evaluation_path}: {error}") from error
    missing = [key for key in _EVALUATION_KEYS if key not in found]
    if missing:
        raise RunFolderError(f"{folder.evaluation_path} has no {missing[0]!r}: evaluate again")
    return found


def write_arrays(path: Path, arrays: Arrays, metadata: Mapping[str, str]) -> None:
    """Write named arrays to a safetensors file, whole or not at all."""
    # Not ascontiguousarray, which makes a scalar a vector.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # One entry: safetensors writes several in an order that differs from one call to the next.
    entry = {"privrec": json.dumps(dict(metadata), sort_keys=True)}
    write_whole(path, save(contiguous, metadata=entry))


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a safetensors file."""
    try:
        return load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"cannot read {path}: {error}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to disk, then rename it into place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    with _words(path, "write"):
        try:
            with temporary.open("wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _is_leftover(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(_TEMPORARY)


@contextlib.contextmanager
def _words(path: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"cannot {verb} {path}: {error.strerror or error}") from error
