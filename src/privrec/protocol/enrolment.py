"""Enrolling: a node makes its keys and keeps its people; the server keeps a list of who is there.

A node's folder has its key, its people's data and their pseudonyms, readable by its owner alone.
`enrolment.json` in it is what the server gets: the public key and pseudonyms, signed by the key.

The folder of a federation's server: what it agreed on with whom, and its certificates.
"""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privrec.core.contribution import told_from_bytes, told_to_bytes
from privrec.data import catalogue as catalogues
from privrec.data.catalogue import Catalogue, from_json
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.schema import Bag
from privrec.errors import FederationError, PrivrecError
from privrec.protocol import terms as agreed
from privrec.protocol.certificates import (
    check_hosts,
    make_authority,
    make_node_key,
    public_key_text,
    read_private_key,
    sign,
    verify,
)
from privrec.protocol.terms import Member, Terms, catalogue_hash, checked_name
from privrec.settings import RunSettings
from privrec.types import IntArray, Leaf

_COLUMNS = ("ids", "offsets", "item", "value", "liked", "time")
ENROLMENT = "enrolment.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """What a node tells the server about itself: nothing of its people but their pseudonyms."""

    name: str
    public_key: str
    people: tuple[str, ...]
    catalogue: str
    undeclared: tuple[str, ...]
    signature: str

    @property
    def member(self) -> Member:
        """The node as the terms have it."""
        return Member(public_key=self.public_key, people=len(self.people), name=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFolder:
    """The files of a node."""

    path: Path

    @property
    def key(self) -> Path:
        """The private key; its public half lies beside it."""
        return self.path / "key"

    @property
    def people(self) -> Path:
        """The people's data. It never leaves this folder."""
        return self.path / "people.safetensors"

    @property
    def held_out(self) -> Path:
        """The data of people who were held out to be tested; not there where nobody was."""
        return self.path / "held-out.safetensors"

    @property
    def catalogue(self) -> Path:
        """The public catalogue by which the data is coded."""
        return self.path / "catalogue.json"

    @property
    def enrolment(self) -> Path:
        """What the server gets."""
        return self.path / ENROLMENT

    def reveals(self, fingerprint: str) -> Path:
        """How often a round of a federation was answered."""
        return self.path / f"reveals-{fingerprint[:16]}.json"


def enrol(
    data: Federation,
    positions: IntArray,
    path: Path,
    name: str | None = None,
    *,
    held_out: Sequence[int] | IntArray = (),
) -> Enrolment:
    """Write the folder of a node that serves these people of a data set; return its enrolment.

    `name` is what others call the node; without one, the folder's name. `held_out` are people who
    do not take part; their data is kept to test the model on.
    """
    name = checked_name(path.resolve().name if name is None else name)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FederationError(f"{path} is in the way: a node's folder is made anew")
    if not len(positions):
        raise FederationError("a node must serve at least one person; got none")
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    folder = NodeFolder(path=path)
    make_node_key(folder.key)
    public = catalogues.to_json(data.catalogue)
    write_private(folder.catalogue, public.encode())
    write_private(folder.people, told_to_bytes(_to_arrays(data.take(positions))))
    if len(held_out):
        others = data.take(np.asarray(held_out, np.int64))
        write_private(folder.held_out, told_to_bytes(_to_arrays(others)))
    pseudonyms = tuple(secrets.token_hex(16) for _ in positions)
    key, mark = public_key_text(folder.key), catalogue_hash(public)
    undeclared = tuple(data.catalogue.undeclared)
    signed = _signed(name, key, pseudonyms, mark, undeclared)
    made = Enrolment(
        name=name,
        public_key=key,
        people=pseudonyms,
        catalogue=mark,
        undeclared=undeclared,
        signature=sign(read_private_key(folder.key), signed).hex(),
    )
    write_private(folder.enrolment, json.dumps(asdict(made)).encode())
    return made


def read_enrolments(path: Path) -> list[Enrolment]:
    """Return a node's enrolment, or all in a server's `roster.json`.

    Raise unless each is whole and signed by its own key.
    """
    if path.is_dir():
        path /= ENROLMENT
    try:
        whole: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FederationError(f"{path} is no enrolment of a node ({error})") from error
    found = whole if isinstance(whole, list) and whole else [whole]
    return [_enrolment(entry, path) for entry in found]


def _enrolment(found: Any, path: Path) -> Enrolment:
    """Return the enrolment in a JSON document; `path` names it in an error."""
    try:
        made = Enrolment(
            name=checked_name(found["name"]),
            public_key=str(found["public_key"]),
            people=tuple(map(str, found["people"])),
            catalogue=str(found["catalogue"]),
            undeclared=tuple(map(str, found["undeclared"])),
            signature=str(found["signature"]),
        )
        signature = bytes.fromhex(made.signature)
    except (ValueError, KeyError, TypeError, AttributeError, PrivrecError) as error:
        raise FederationError(f"{path} is no enrolment of a node ({error})") from error
    signed = _signed(made.name, made.public_key, made.people, made.catalogue, made.undeclared)
    if not verify(made.public_key, signed, signature):
        raise FederationError(f"{path} is not signed by the key that it presents")
    if len(set(made.people)) != len(made.people) or not made.people:
        raise FederationError(f"{path} names nobody, or somebody twice")
    return made


def check_roster(enrolments: Sequence[Enrolment], catalogue: str) -> None:
    """Raise unless the enrolments are of different nodes and people and of this catalogue."""
    keys = [enrolment.public_key for enrolment in enrolments]
    people = [person for enrolment in enrolments for person in enrolment.people]
    if len(set(keys)) != len(keys):
        raise FederationError("two enrolments present the same key")
    if len(set(people)) != len(people):
        raise FederationError("two enrolments name the same person")
    for number, enrolment in enumerate(enrolments, start=1):
        if enrolment.catalogue != catalogue:
            raise FederationError(
                f"enrolment {number} was made with another catalogue than the server's: its data"
                " must declare the same items, values of features and threshold of a like"
            )


def read_people(folder: NodeFolder, file: Path | None = None) -> tuple[Clients, Catalogue]:
    """Return the data of a node's people, and the catalogue by which it is coded.

    `file` is that of the held-out people, instead of those who take part.
    """
    try:
        text = folder.catalogue.read_bytes()
        arrays = told_from_bytes((file or folder.people).read_bytes())
        people = _from_arrays(arrays)
    except (OSError, KeyError, PrivrecError) as error:
        raise FederationError(f"{folder.path} is no folder of a node ({error})") from error
    return people, catalogues.from_json(text, str(folder.catalogue))


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, under a temporary name first."""
    temporary = path.with_name(path.name + ".tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)


def _signed(
    name: str, public_key: str, people: Sequence[str], catalogue: str, undeclared: Sequence[str]
) -> bytes:
    whole = json.dumps([name, public_key, list(people), catalogue, list(undeclared)]).encode()
    return b"privrec enrolment " + hashlib.sha256(whole).digest()


def _to_arrays(people: Clients) -> dict[str, Leaf]:
    arrays: dict[str, Leaf] = {name: np.asarray(getattr(people, name)) for name in _COLUMNS}
    for side in ("features", "context"):
        for table, bag in getattr(people, side).items():
            arrays[f"{side} codes {table}"] = np.asarray(bag.codes)
            arrays[f"{side} weights {table}"] = np.asarray(bag.weights)
    return arrays


def _from_arrays(arrays: dict[str, Leaf]) -> Clients:
    def bags(side: str) -> dict[str, Bag]:
        start = f"{side} codes "
        tables = [name.removeprefix(start) for name in arrays if name.startswith(start)]
        return {
            table: Bag(arrays[f"{side} codes {table}"], arrays[f"{side} weights {table}"])
            for table in tables
        }

    return Clients(
        **{name: arrays[name] for name in _COLUMNS},
        features=bags("features"),
        context=bags("context"),
    )


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
