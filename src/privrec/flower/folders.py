"""The folder of a federation's server: what it agreed on with whom, and its certificates."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from privrec.data.catalogue import Catalogue, from_json
from privrec.errors import FederationError
from privrec.flower import terms as agreed
from privrec.flower.certificates import check_hosts, make_authority
from privrec.flower.enrolment import Enrolment, check_roster, write_private
from privrec.flower.terms import Terms, catalogue_hash
from privrec.settings import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFolder:
    """The files of a server. `terms.json` and `ca.crt` are for the nodes; all else is its own."""

    path: Path

    @property
    def terms(self) -> Path:
        """What the federation agreed on."""
        return self.path / "terms.json"

    @property
    def catalogue(self) -> Path:
        """The public catalogue."""
        return self.path / "catalogue.json"

    @property
    def roster(self) -> Path:
        """The enrolled nodes and the pseudonyms of their people."""
        return self.path / "roster.json"

    @property
    def status(self) -> Path:
        """What the server sees at present."""
        return self.path / "status.json"

    @property
    def unmasking(self) -> Path:
        """The round whose masks nodes were last asked to take off."""
        return self.path / "unmasking.json"

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.path / "run"

    @property
    def ca(self) -> Path:
        """The certificate by which nodes know the server."""
        return self.path / "ca.crt"


@contextmanager
def running(folder: ServerFolder) -> Iterator[None]:
    """Mark the server as running: by a lock, which the system takes off however a process ends."""
    handle = os.open(folder.path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def is_running(folder: ServerFolder) -> bool:
    """Return whether a process serves this federation."""
    handle = os.open(folder.path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def found(
    path: Path,
    *,
    catalogue: str,
    enrolments: Sequence[Enrolment],
    options: Mapping[str, Any],
    hosts: Sequence[str] = (),
    check: Callable[[Terms, Catalogue], None],
) -> Terms:
    """Write the folder of a new federation's server; return its terms.

    `catalogue` is JSON; `options` are fields of `Terms`. `check` raises for terms that could not
    be kept. The terms come last, so a folder that has them is whole.
    """
    folder = ServerFolder(path=path)
    if folder.terms.exists():
        raise FederationError(f"{folder.terms} is there already: choose another folder")
    mark = catalogue_hash(catalogue)
    check_roster(enrolments, mark)
    terms = Terms(catalogue=mark, members=tuple(entry.member for entry in enrolments), **options)
    check(terms, from_json(catalogue, "the catalogue"))
    check_hosts(hosts)
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    make_authority(path, hosts=hosts)
    # What any node's data does not declare public is not covered for anybody.
    whole: dict[str, Any] = json.loads(catalogue)
    named = [*whole["undeclared"], *(w for entry in enrolments for w in entry.undeclared)]
    whole["undeclared"] = list(dict.fromkeys(named))
    write_private(folder.catalogue, json.dumps(whole).encode())
    roster = [asdict(enrolment) for enrolment in enrolments]
    write_private(folder.roster, json.dumps(roster, indent=1).encode())
    write_private(folder.terms, agreed.to_json(terms).encode())
    return terms


def read_server(
    path: Path, settings_of: Callable[[Mapping[str, Any]], RunSettings]
) -> tuple[ServerFolder, Terms, Catalogue]:
    """Return a server's folder, its terms and its catalogue."""
    folder = ServerFolder(path=path)
    if not folder.terms.is_file():
        raise FederationError(f"{path} has no federation: it has no terms.json")
    terms = agreed.from_json(folder.terms.read_bytes(), str(folder.terms), settings_of)
    text = folder.catalogue.read_text(encoding="utf-8")
    if catalogue_hash(text) != terms.catalogue:
        raise FederationError(f"{folder.catalogue} is not the catalogue of the terms")
    return folder, terms, from_json(text, str(folder.catalogue))
