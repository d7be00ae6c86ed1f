"""Where a run lies: in a temporary folder that goes with its object, or in a copy to keep."""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path

from privrec.errors import RunFolderError, check_kind
from privrec.runs.progressfile import is_alive, process_mark
from privrec.runs.records import (
    RunFolder,
    create_run,
    words,
)
from privrec.settings import RunSettings

_OWNER = re.compile(r"privrec-[0-9a-f]{8}-([1-9]\d{0,9})-(\d+)-.*")
"""A temporary folder's name: the machine, then the process and when it began."""


def temporary_run(config: RunSettings, catalogue: str, fingerprint: str) -> RunFolder:
    """Return a new run folder that is removed when nothing holds the returned object any more.

    At the latest it is removed at the end of the process. If that is killed, it is removed when the
    next temporary run begins.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    pid = os.getpid()
    prefix = f"privrec-{_machine()}-{pid}-{process_mark(pid) or 0}-"
    path = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        made = create_run(path, config, catalogue, fingerprint)
        folder = replace(made, is_temporary=True)
        weakref.finalize(folder, _remove, path, os.getpid())
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return folder


def discard(folder: RunFolder) -> None:
    """Remove the folder of a training that failed, where it is temporary."""
    if folder.is_temporary:
        shutil.rmtree(folder.path, ignore_errors=True)


def copied(folder: RunFolder, path: Path) -> RunFolder:
    """Return a copy of a finished run's folder at `path`, where there must be nothing yet.

    An unfinished run has no copy: two runs that go on from one ledger would publish twice.
    """
    if not folder.params_path.is_file():
        raise RunFolderError(f"{folder.path} is not finished: go on with it by --resume first")
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise RunFolderError(f"{path} is in the way: it exists and is not an empty folder")
    path = path.absolute()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with words(path, "write"):
        try:
            shutil.copytree(folder.path, part)
            part.replace(path)
        except shutil.Error as error:
            raise RunFolderError(f"cannot write {path}: {error}") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return RunFolder(path=path)


def _machine() -> str:
    """Return a mark of this machine: others may have the same temporary folder."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _remove_abandoned(place: Path) -> None:
    """Remove the user's temporary runs whose process was killed; their names say which it was."""
    with contextlib.suppress(OSError):
        for path in place.glob(f"privrec-{_machine()}-*"):
            owner = _OWNER.fullmatch(path.name)
            is_own = not path.is_symlink() and path.stat().st_uid == os.getuid()
            if owner and is_own and not is_alive(int(owner[1]), owner[2]):
                shutil.rmtree(path, ignore_errors=True)


def _remove(path: Path, owner: int) -> None:
    # A forked process has copies of the objects, and must not remove what is not its own.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def folder_path(name: str, given: object) -> Path | None:
    """Return a folder that was given as text or as a path; None if none was."""
    if given is None:
        return None
    check_kind(name, given, (str, os.PathLike), "a path")
    return Path(str(given))
