"""The folders of a node and of a server, and the enrolment by which a server knows a node.

A node's folder has its key, its people's data and their pseudonyms, readable by its owner alone.
`enrolment.json` in it is what the server gets: the public key and pseudonyms, signed by the key.
A server's folder has the terms, the enrolments of its nodes and its certificates.
"""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from privrec.core.contribution import told_from_bytes, told_to_bytes
from privrec.data import catalogue as catalogues
from privrec.data.catalogue import Catalogue, from_json
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.schema import Bag
from privrec.errors import FederationError, PrivrecError
from privrec.protocol.certificates import (
    check_hosts,
    make_authority,
    make_node_key,
    public_key_text,
    read_private_key,
    sign,
    verify,
    write_private,
)
from privrec.protocol.terms import (
    Document,
    Member,
    NodeName,
    Terms,
    catalogue_hash,
    check_terms,
    checked_name,
    make_terms,
    read_terms,
)
from privrec.types import IntArray, Leaf

_COLUMNS = ("ids", "offsets", "item", "value", "liked", "time")
ENROLMENT = "enrolment.json"


class Enrolment(Document):
    """What a node tells the server about itself: nothing of its people but their pseudonyms."""

    name: NodeName
    public_key: str
    people: tuple[str, ...]
    catalogue: str
    undeclared: tuple[str, ...]
    signature: str = ""

    @property
    def statement(self) -> bytes:
        """What the node signs."""
        parts = [self.name, self.public_key, self.people, self.catalogue, self.undeclared]
        return b"privrec enrolment " + hashlib.sha256(json.dumps(parts).encode()).digest()

    @property
    def member(self) -> Member:
        """The node as the terms have it."""
        return Member(public_key=self.public_key, people=len(self.people), name=self.name)


_ROSTER = TypeAdapter(list[Enrolment])


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
    unsigned = Enrolment(
        name=name,
        public_key=public_key_text(folder.key),
        people=pseudonyms,
        catalogue=catalogue_hash(public),
        undeclared=tuple(data.catalogue.undeclared),
    )
    signature = sign(read_private_key(folder.key), unsigned.statement).hex()
    enrolment = unsigned.model_copy(update={"signature": signature})
    write_private(folder.enrolment, enrolment.model_dump_json().encode())
    return enrolment


def read_enrolments(path: Path) -> list[Enrolment]:
    """Return a node's enrolment, or all in a server's `roster.json`.

    Raise unless each is whole and signed by its own key.
    """
    if path.is_dir():
        path /= ENROLMENT
    try:
        text = path.read_bytes().strip()
        enrolments = _ROSTER.validate_json(text if text[:1] == b"[" else b"[" + text + b"]")
        signatures = [bytes.fromhex(enrolment.signature) for enrolment in enrolments]
    except (OSError, ValueError, PrivrecError) as error:
        raise FederationError(f"{path} is no enrolment of a node ({error})") from error
    if not enrolments:
        raise FederationError(f"{path} is no enrolment of a node: it is empty")
    for enrolment, signature in zip(enrolments, signatures, strict=True):
        if not verify(enrolment.public_key, enrolment.statement, signature):
            raise FederationError(f"{path} is not signed by the key that it presents")
        if len(set(enrolment.people)) != len(enrolment.people) or not enrolment.people:
            raise FederationError(f"{path} names nobody, or somebody twice")
    return enrolments


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


def create_federation(
    path: Path,
    *,
    catalogue: str,
    enrolments: Sequence[Enrolment],
    options: Mapping[str, Any],
    hosts: Sequence[str] = (),
) -> Terms:
    """Write the folder of a new federation's server; return its terms.

    `catalogue` is JSON; `options` are fields of `Terms`. The terms come last, so a folder that
    has them is whole.
    """
    folder = ServerFolder(path=path)
    if folder.terms.exists():
        raise FederationError(f"{folder.terms} is there already: choose another folder")
    mark = catalogue_hash(catalogue)
    check_roster(enrolments, mark)
    members = tuple(enrolment.member for enrolment in enrolments)
    terms = make_terms({**options, "catalogue": mark, "members": members})
    check_terms(terms, from_json(catalogue, "the catalogue"))
    check_hosts(hosts)
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    make_authority(path, hosts=hosts)
    # What any node's data does not declare public is not covered for anybody.
    whole: dict[str, Any] = json.loads(catalogue)
    named = [*whole["undeclared"], *(w for entry in enrolments for w in entry.undeclared)]
    whole["undeclared"] = list(dict.fromkeys(named))
    write_private(folder.catalogue, json.dumps(whole).encode())
    write_private(folder.roster, _ROSTER.dump_json(list(enrolments), indent=1))
    write_private(folder.terms, terms.json_text.encode())
    return terms


def read_server(path: Path) -> tuple[ServerFolder, Terms, Catalogue]:
    """Return a server's folder, its terms and its catalogue."""
    folder = ServerFolder(path=path)
    if not folder.terms.is_file():
        raise FederationError(f"{path} has no federation: it has no terms.json")
    terms = read_terms(folder.terms)
    text = folder.catalogue.read_text(encoding="utf-8")
    if catalogue_hash(text) != terms.catalogue:
        raise FederationError(f"{folder.catalogue} is not the catalogue of the terms")
    return folder, terms, from_json(text, str(folder.catalogue))
