"""Write and read the folders of nodes and servers, and the enrolments of nodes.

A node's folder has the private key of the node, and the data and pseudonyms of its people. Only its
owner can read it. The server gets one file of it, `enrolment.json`: the node's public key and the
pseudonyms, signed with the private key. A server's folder has the terms of the federation, the
enrolments of the nodes and the server's certificates.
"""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from privrec.algorithms.recipes import configure
from privrec.core.contribution import told_from_bytes, told_to_bytes
from privrec.data.catalogue import Catalogue, from_json, to_json
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.schema import Bag
from privrec.errors import FederationError, PrivrecError, SettingsError, first_fault
from privrec.protocol.certificates import (
    copy_authority,
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
    read_terms,
    split_terms,
)
from privrec.seeds import secret_choice
from privrec.types import IntArray, Leaf

_COLUMNS = ("ids", "offsets", "item", "value", "liked", "time")
_SIDES = ("features", "context")
ENROLMENT = "enrolment.json"


class Enrolment(Document):
    """What a node tells the server about itself. Of its people, it has only the pseudonyms.

    `catalogue` is the hash of the public catalogue. `undeclared` names what of it the data set does
    not declare as public. After a change of the key, `replaces` is the old public key, and
    `consent` a signature with the old key.
    """

    name: NodeName
    public_key: str
    people: tuple[str, ...]
    catalogue: str
    undeclared: tuple[str, ...]
    signature: str = ""
    replaces: str = ""
    consent: str = ""

    @property
    def statement(self) -> bytes:
        """The bytes that the node signs."""
        parts = [self.name, self.public_key, self.people, self.catalogue, self.undeclared]
        parts += [self.replaces] if self.replaces else []
        return b"privrec enrolment " + hashlib.sha256(json.dumps(parts).encode()).digest()

    @property
    def member(self) -> Member:
        """The entry of the node in the terms."""
        return Member(public_key=self.public_key, people=len(self.people), name=self.name)


_ROSTER = TypeAdapter(list[Enrolment])


class NodeFolder:
    """The paths of a node's files.

    The server gets `enrolment`. `catalogue` is public, and so is the public key, in `key.pub`. The
    other files never leave the folder: the private key, the data of the people who take part, and
    the data of the held-out people, on whom a model is tested.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = path / "key"
        self.people = path / "people.safetensors"
        self.held_out = path / "held-out.safetensors"
        self.catalogue = path / "catalogue.json"
        self.enrolment = path / ENROLMENT

    def reveals(self, fingerprint: str) -> Path:
        """Return the path of the file of the sums with which the node helped (`node.py: Reveals`).

        `fingerprint` is the hash of the federation's terms.
        """
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

    `name` is the name of the node that others see, by default that of the folder. `held_out` are
    people who do not take part; the model can be tested on their data.
    """
    name = checked_name(path.resolve().name if name is None else name)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FederationError(f"{path} is in the way: a node's folder is made anew")
    if not len(positions):
        raise FederationError("a node must serve at least one person; got none")
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    folder = NodeFolder(path)
    make_node_key(folder.key)
    public = to_json(data.catalogue)
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


def renew_key(path: Path) -> Enrolment:
    """Give a node a new key; return its new enrolment, which both keys sign.

    The people of the node and their pseudonyms stay the same. The old key is deleted.
    """
    folder = NodeFolder(path)
    [enrolment] = read_enrolments(folder.enrolment)
    old, new = read_private_key(folder.key), folder.key.with_name("key.new")
    make_node_key(new)
    unsigned = enrolment.model_copy(
        update={"public_key": public_key_text(new), "replaces": public_key_text(folder.key)}
    )
    signed = unsigned.model_copy(
        update={
            "signature": sign(read_private_key(new), unsigned.statement).hex(),
            "consent": sign(old, unsigned.statement).hex(),
        }
    )
    write_private(folder.enrolment, signed.model_dump_json().encode())
    # The private key is replaced last, so that `renew_key` can run again after a failure.
    new.with_name("key.new.pub").replace(folder.key.with_name("key.pub"))
    new.replace(folder.key)
    return signed


def drawn_apart(people: int, share: float) -> tuple[IntArray, IntArray]:
    """Return the positions of the people who enrol, and of those who are held out.

    Random numbers of the operating system hold out the fraction `share` of the people.
    """
    if not 0 <= share < 1:
        raise SettingsError(f"`hold_out` must be >= 0 and < 1; got {share:g}")
    held_out = np.sort(secret_choice(people, round(share * people)))
    return np.setdiff1d(np.arange(people), held_out), held_out


def read_enrolments(path: Path) -> list[Enrolment]:
    """Return the enrolment of a node, or all enrolments in a server's `roster.json`.

    Raise `FederationError` unless each enrolment is complete and signed with its own key.
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
        if enrolment.replaces and not _consents(enrolment):
            raise FederationError(f"{path} is not signed by the key that it replaces")
    return enrolments


def _consents(enrolment: Enrolment) -> bool:
    try:
        consent = bytes.fromhex(enrolment.consent)
    except ValueError:
        return False
    return verify(enrolment.replaces, enrolment.statement, consent)


def changed(
    known: Sequence[Enrolment], more: Sequence[Enrolment], retired: Sequence[str]
) -> list[Enrolment]:
    """Return the `known` enrolments without the nodes named in `retired`, and with `more`.

    An enrolment with a renewed key takes the place of the enrolment with the old key. After two
    renewals the old key may be unknown. Then the enrolment counts as a new node, and the known node
    of the same name must be in `retired`.
    """
    names = [enrolment.name for enrolment in known]
    for name in retired:
        if names.count(name) != 1:
            there = ", ".join(map(repr, names))
            raise FederationError(f"{name!r} is not the name of one node; there are: {there}")
    left = [enrolment for enrolment in known if enrolment.name not in retired]
    for enrolment in more:
        keys = [one.public_key for one in left]
        if enrolment.replaces in keys:
            left[keys.index(enrolment.replaces)] = enrolment
        elif enrolment.replaces and enrolment.name not in retired:
            raise FederationError(
                f"the key that {enrolment.name!r} replaces is of no node here; if it was renewed"
                f" twice, compare the new one with its owner, and retire {enrolment.name!r} as well"
            )
        else:
            left.append(enrolment)
    return left


def check_roster(enrolments: Sequence[Enrolment], catalogue: str) -> None:
    """Raise unless all nodes and people are different and all enrolments have this catalogue."""
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
    """Return the data of a node's people, and the catalogue that gives its codes a meaning.

    Without `file`, these are the people who take part. For held-out people, it is their data file.
    """
    try:
        text = folder.catalogue.read_bytes()
        arrays = told_from_bytes((file or folder.people).read_bytes())
        people = _from_arrays(arrays)
    except (OSError, KeyError, PrivrecError) as error:
        raise FederationError(f"{folder.path} is no folder of a node ({error})") from error
    return people, from_json(text, str(folder.catalogue))


def _to_arrays(people: Clients) -> dict[str, Leaf]:
    arrays: dict[str, Leaf] = {name: np.asarray(getattr(people, name)) for name in _COLUMNS}
    for side in _SIDES:
        for table, bag in getattr(people, side).items():
            arrays[f"{side} codes {table}"] = np.asarray(bag.codes)
            arrays[f"{side} weights {table}"] = np.asarray(bag.weights)
    return arrays


def _from_arrays(arrays: dict[str, Leaf]) -> Clients:
    bags: dict[str, dict[str, Bag]] = {side: {} for side in _SIDES}
    for name, codes in arrays.items():
        side, is_code, table = name.partition(" codes ")
        if is_code:
            bags[side][table] = Bag(codes, arrays[f"{side} weights {table}"])
    columns = {name: arrays[name] for name in _COLUMNS}
    return Clients(**columns, features=bags["features"], context=bags["context"])


class ServerFolder:
    """The paths of a server's files. Nodes get `terms` and `ca`; the server keeps the others.

    `roster` has the enrolled nodes and the pseudonyms of their people. `status` has the present
    state of the round and of the nodes, `unmasking` the last round for which the server asked nodes
    to remove their masks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.terms = path / "terms.json"
        self.ca = path / "ca.crt"
        self.catalogue = path / "catalogue.json"
        self.roster = path / "roster.json"
        self.status = path / "status.json"
        self.unmasking = path / "unmasking.json"
        self.run = path / "run"


@contextmanager
def running(folder: ServerFolder) -> Iterator[None]:
    """Lock the server's folder while the server runs.

    When the process ends, also by a crash, the operating system removes the lock.
    """
    handle = os.open(folder.path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def is_running(folder: ServerFolder) -> bool:
    """Return whether a process of this machine runs the server of this folder."""
    handle = os.open(folder.path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def found_federation(
    path: Path,
    catalogue: Path | None,
    enrolments: Sequence[Path],
    recipe: str,
    settings: Mapping[str, object],
    hosts: Sequence[str],
) -> Terms:
    """Write the server's folder of a new federation from the files of its nodes; return the terms.

    `settings` has settings of the recipe and fields of the terms, by name.
    """
    if catalogue is None or not enrolments:
        raise FederationError(
            f"{path} has no federation yet: give --catalogue and an --enrolment for each node"
        )
    try:
        text = catalogue.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FederationError(f"{catalogue} is not a catalogue: it is no text") from error
    name = from_json(text, str(catalogue)).name
    nodes = [enrolment for file in enrolments for enrolment in read_enrolments(file)]
    chosen, rest = split_terms(settings)
    config = configure(recipe, str(rest.pop("data", name)), rest)
    options = {**chosen, "name": name, "settings": config}
    return create_federation(path, catalogue=text, enrolments=nodes, options=options, hosts=hosts)


def changed_federation(
    path: Path, old: Path, enrolments: Sequence[Path], retired: Sequence[str]
) -> Terms:
    """Write the server's folder of a federation that follows an `old` one; return its terms.

    Nodes and keys may differ. Settings, catalogue and certificates stay the same, so nodes need
    only the new terms.
    """
    folder, terms, _ = read_server(old)
    if is_running(folder):
        raise FederationError(f"the server of {old} is running: stop it first")
    more = [enrolment for file in enrolments for enrolment in read_enrolments(file)]
    fields = Terms.model_fields.keys() - {"version", "catalogue", "members"}
    return create_federation(
        path,
        catalogue=folder.catalogue.read_text(encoding="utf-8"),
        enrolments=changed(read_enrolments(folder.roster), more, retired),
        options={name: getattr(terms, name) for name in fields},
        authority=old,
    )


def create_federation(
    path: Path,
    *,
    catalogue: str,
    enrolments: Sequence[Enrolment],
    options: Mapping[str, object],
    hosts: Sequence[str] = (),
    authority: Path | None = None,
) -> Terms:
    """Write the folder of a new federation's server; return its terms.

    `catalogue` is JSON text, and `options` are fields of `Terms`. The terms are written last, so a
    folder with terms is complete. Certificates are copied from the folder `authority`, or new.
    """
    folder = ServerFolder(path)
    if folder.terms.exists():
        raise FederationError(f"{folder.terms} is there already: choose another folder")
    mark = catalogue_hash(catalogue)
    check_roster(enrolments, mark)
    members = tuple(enrolment.member for enrolment in enrolments)
    try:
        terms = Terms.model_validate({**options, "catalogue": mark, "members": members})
    except ValidationError as error:
        raise SettingsError(first_fault(error)) from error
    check_terms(terms, from_json(catalogue, "the catalogue"))
    if authority is None:
        make_authority(path, hosts=hosts)
    else:
        copy_authority(authority, path)
    path.chmod(0o700)
    # No guarantee covers what one of the nodes does not declare as public.
    whole = json.loads(catalogue)
    for enrolment in enrolments:
        whole["undeclared"] = list(dict.fromkeys([*whole["undeclared"], *enrolment.undeclared]))
    write_private(folder.catalogue, json.dumps(whole).encode())
    write_private(folder.roster, _ROSTER.dump_json(list(enrolments), indent=1))
    write_private(folder.terms, terms.json_text.encode())
    return terms


def read_server(path: Path) -> tuple[ServerFolder, Terms, Catalogue]:
    """Return a server's folder, its terms and its catalogue."""
    folder = ServerFolder(path)
    if not folder.terms.is_file():
        raise FederationError(f"{path} has no federation: it has no terms.json")
    terms = read_terms(folder.terms)
    text = folder.catalogue.read_text(encoding="utf-8")
    if catalogue_hash(text) != terms.catalogue:
        raise FederationError(f"{folder.catalogue} is not the catalogue of the terms")
    return folder, terms, from_json(text, str(folder.catalogue))
