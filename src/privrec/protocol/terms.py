"""The terms of a federation: the settings that the server and all nodes agreed on.

The server and the nodes build the same stages of training from the terms (`plan_of`). So a node
knows the recipe, the clipping bound and the noise from its own copy of the terms, and refuses
requests that differ from them.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    model_validator,
)

from privrec.algorithms.recipe import Plan, Task
from privrec.algorithms.recipes import recipe_named, settings_of
from privrec.core.phase import Exchange, Phase
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients, Split, nobody
from privrec.data.federation import Federation
from privrec.data.text import safe_text
from privrec.errors import FederationError, PrivrecError, SettingsError, first_fault
from privrec.evaluation.protocols import Protocol, resolve
from privrec.privacy.calibrate import refuse_large_delta
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.statement import against_server
from privrec.protocol.noise import least_honest, least_survivors, whole_nodes
from privrec.settings import Count, RunSettings, Share, Size
from privrec.types import IntArray

VERSION: Literal[5] = 5
"""The version of the format of the terms and of the messages."""


class Document(BaseModel):
    """A document that server and nodes exchange. It cannot be changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def checked_name(name: str) -> str:
    """Return the name of a node; raise unless it has 1 to 60 characters that are safe to show."""
    if not 1 <= len(name) <= 60 or safe_text(name) != name:
        raise SettingsError(f"`name` must be 1 to 60 characters that can be shown; got {name!r}")
    return name


NodeName = Annotated[str, AfterValidator(checked_name)]


class Member(Document):
    """A node: its public key, the number of people whom it serves, and its name.

    The owner of a node can choose any name, also that of another node. So people must compare
    hashes of keys (`certificates.py: key_hash`).
    """

    public_key: str
    people: Count
    name: NodeName = ""


def _to_settings(settings: object) -> RunSettings:
    if isinstance(settings, RunSettings):
        return settings
    if not isinstance(settings, Mapping):
        raise ValueError("settings must be by name")
    return settings_of(settings)


class Terms(Document):
    """The terms: the settings of the training, the enrolled nodes, and the rules of a round.

    Each person has a position in the federation: first the people of the first node, and so on.
    `catalogue` is a hash of the public catalogue. `missing` is the fraction of a round's nodes that
    may drop out, `colluding` the fraction of nodes that may help a hostile server. If nodes add the
    noise, its amount depends on these two fractions. A round with fewer than `min_people` people is
    abandoned; 0 means half of the drawn people. `deadline` is the time in seconds for one exchange.
    A round is tried at most `attempts` times. If nodes add the noise, a node helps to unmask one
    round at most `reveals` times: more than once by default, so that a killed server can repeat the
    round, but not often, so that a server cannot average the noise out.
    `transport` is what carries the messages: Flower, or by default our own HTTPS.
    """

    version: Literal[5] = VERSION
    name: str
    settings: Annotated[SerializeAsAny[RunSettings], BeforeValidator(_to_settings)]
    catalogue: str
    members: tuple[Member, ...]
    secure_sum: bool = True
    noise_from: Literal["server", "nodes"] = "server"
    missing: Share = 0.3
    colluding: Share = 0.0
    min_people: Count = 0
    deadline: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    attempts: Size = 5
    reveals: Size = 2
    transport: Literal["flower"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.members:
            raise FederationError("a federation needs at least one enrolled node; got none")
        if self.secure_sum and len(self.members) < 2:
            raise FederationError(
                "secure sums need at least 2 nodes, since a sum over one node hides nothing; got 1"
                " (--set secure_sum=false lets the server see this node's exact sums)"
            )
        if self.min_people > self.people:
            raise SettingsError(
                f"`min_people` must be <= {self.people:,}, the enrolled people;"
                f" got {self.min_people}"
            )
        if self.noise_from == "nodes":
            self._check_noise()
        return self

    def _check_noise(self) -> None:
        if not self.secure_sum:
            raise SettingsError("noise from nodes needs secure sums: a share of it hides nobody")
        budget = self.settings.budget
        if budget.mechanism != "gaussian":
            raise SettingsError(
                f"noise from nodes needs the Gaussian mechanism; {self.settings.recipe} has"
                f" {budget.mechanism}"
            )
        # Raises if no honest node would be left to add noise.
        least_honest(len(self.members), self.missing, self.colluders / len(self.members))
        if budget.noise != "secure":
            raise SettingsError("noise from nodes is always secure: leave out noise=seeded")

    @cached_property
    def firsts(self) -> IntArray:
        """The position of the first person of each node."""
        counts = [member.people for member in self.members]
        return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)

    @property
    def people(self) -> int:
        """The number of enrolled people, N in the privacy accounting."""
        return sum(member.people for member in self.members)

    def node_of(self, positions: IntArray) -> IntArray:
        """Return the index of the node that serves each of these people."""
        return np.searchsorted(self.firsts, positions, side="right") - 1

    def positions(self, node: int) -> range:
        """Return the positions of the people whom a node serves."""
        first = int(self.firsts[node])
        return range(first, first + self.members[node].people)

    def threshold(self, members: int) -> int:
        """Return t, the number of a round's n nodes that must remain, so that it can be unmasked.

        Each node has two secrets; with both, the server could remove the node's masks. If half of
        the nodes were enough, one half could reveal one secret and the other half the other. With
        2t > n + colluding nodes, nobody can get both (`secure_sum.py`).
        """
        # A server chooses which nodes it asks. So if it is not trusted, `missing` is a fraction of
        # all enrolled nodes.
        enrolled = len(self.members)
        of = enrolled if self.noise_from == "nodes" else members
        least = max(2, least_survivors(of, self.missing)) if members else 2
        if not 2 * least > members + self.colluders or least > members:
            raise FederationError(
                f"{members} nodes with a share of {self.missing:g} missing and"
                f" {self.colluding:g} colluding are too few to hide one node"
            )
        return least

    @property
    def honest(self) -> int:
        """How many enrolled nodes must be honest for the guarantee: all but the `colluders`."""
        return len(self.members) - self.colluders

    @property
    def colluders(self) -> int:
        """The number of enrolled nodes that may help a hostile server.

        If nodes add the noise, it is at least one: every node can subtract its own share of the
        noise, so it counts as a colluding node.
        """
        share = whole_nodes(len(self.members), self.colluding)
        return max(1, share) if self.noise_from == "nodes" else share

    @property
    def sums(self) -> int:
        """How many sums of one round a hostile server can get, if nodes add the noise.

        A sum needs the help of t of n nodes. The c colluding nodes help with every sum, each of the
        other n - c nodes `reveals` times. So the number is `reveals` (n - c) / (t - c), rounded
        down.
        """
        enrolled, few = len(self.members), self.colluders
        return self.reveals * (enrolled - few) // (self.threshold(enrolled) - few)

    @property
    def json_text(self) -> str:
        """The terms as JSON text, the same text for equal terms."""
        fields = self.model_dump(mode="json", exclude_none=True)
        return json.dumps(fields, sort_keys=True, indent=1)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of all terms in hexadecimal, which server, nodes and owners compare."""
        return hashlib.sha256(self.json_text.encode()).hexdigest()


def check_transport(terms: Terms, transport: Literal["flower"] | None) -> None:
    """Raise unless messages travel by this transport under these terms."""
    if terms.transport == transport:
        return
    if transport is None:
        raise FederationError(
            "these terms are for Flower: `privrec federate flower-app` and `flower-node` prepare"
            " a run (docs/federation.md)"
        )
    raise FederationError(
        "these terms are not for Flower; a server for it is prepared with --set transport=flower"
    )


def split_terms(settings: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return two parts of a user's settings: fields of the terms, and settings of the recipe."""
    fields = Terms.model_fields
    chosen = {n for n in settings if n in fields and not fields[n].is_required()} - {"version"}
    rest = {name: value for name, value in settings.items() if name not in chosen}
    return {name: settings[name] for name in chosen}, rest


def read_terms(path: Path) -> Terms:
    """Return the terms in a file."""
    try:
        text = path.read_bytes()
        fields: object = json.loads(text)
        version = fields.get("version") if isinstance(fields, dict) else None
        if version != VERSION:
            raise FederationError(f"terms of version {version!r}; this privrec reads {VERSION}")
        return Terms.model_validate_json(text)
    except OSError as error:
        raise FederationError(f"cannot read {path}: {error.strerror}") from error
    except PrivrecError as error:
        raise FederationError(f"{path}: {error}") from error
    except ValidationError as error:
        raise FederationError(f"{path}: {first_fault(error)}") from error
    except (ValueError, RecursionError) as error:
        raise FederationError(f"{path} has no terms of a federation ({error})") from error


def shown_hash(digest: str) -> str:
    """Return the first 128 bits of a hash as text for people: 8 groups of 4 letters.

    >>> shown_hash("0123456789abcdef" * 4)
    '0123 4567 89ab cdef 0123 4567 89ab cdef'
    """
    return " ".join(digest[k : k + 4] for k in range(0, 32, 4))


def catalogue_hash(text: str) -> str:
    """Return a hash of a catalogue; server and nodes compare it to check their catalogues.

    It leaves out the name of the data set and what it declares as public, which may differ between
    nodes.
    """
    fields = json.loads(text)
    return hashlib.sha256(
        json.dumps({**fields, "undeclared": [], "name": ""}, sort_keys=True).encode()
    ).hexdigest()


_MOST_NOISE = 2.0**12
"""The noise multiplier must be smaller, so that the discrete noise can be drawn."""


def check_terms(terms: Terms, catalogue: Catalogue) -> None:
    """Raise if no federation can work with these terms, before any file is written."""
    phases = phases_of(plan_of(terms, catalogue))
    for phase in phases if terms.noise_from == "nodes" else ():
        if not phase.release.is_private:
            raise SettingsError(
                f"noise from nodes needs noise in every phase; {phase.name} has none"
            )
        multiplier = phase.release.noise_multiplier * phase.release.sampling.reach
        if not multiplier < _MOST_NOISE:
            raise SettingsError(
                f"`noise_multiplier` must be < {_MOST_NOISE:g} with noise from nodes;"
                f" {phase.name} has {multiplier:g}"
            )
    if terms.secure_sum:
        terms.threshold(len(terms.members))


def promised(terms: Terms, phases: Sequence[Phase]) -> tuple[float, float]:
    """Return two values of epsilon for all planned rounds.

    The first one holds against those who see the model, the second one against an untrusted server.
    """
    planned = PrivacyLedger()
    for phase in phases:
        planned = planned.record(phase.release, phase.rounds)
    delta = terms.settings.budget.delta
    if not planned.is_private:
        return math.inf, math.inf
    # Over Flower, nodes run the code that the server's side sends: nothing holds against it.
    trusted = terms.noise_from == "server" or terms.transport is not None
    hostile = math.inf if trusted else against_server(planned, terms.sums, delta)
    return planned.epsilon(delta), hostile


def plan_of(terms: Terms, catalogue: Catalogue, mine: Clients | None = None, node: int = 0) -> Plan:
    """Return the plan of the training on all enrolled people, for the server or for one node.

    `mine` is the data of the people of node number `node`. Other people have positions but no data.
    """
    settings = terms.settings
    everybody = np.arange(terms.people)
    federation = Federation(
        catalogue=catalogue,
        n_clients=terms.people,
        take=partial(_taken, catalogue, mine, int(terms.firsts[node])),
        ids=lambda positions: positions,
        largest=max(1, 0 if mine is None or not len(mine) else int(mine.sizes.max())),
        repeats=True,
        population=terms.name,
        people=terms.people,
        fingerprint=terms.fingerprint,
    )
    budget = settings.budget
    if budget.mechanism != "none":
        most = max(terms.people, budget.train_people)
        refuse_large_delta(budget.delta, most, forced=budget.force_delta)
    split = Split(
        public_train=budget.train_people or terms.people,
        train=everybody,
        validation=everybody[:0],
        test=everybody[:0],
    )

    name, candidates = resolve(settings.protocol, settings.candidates, federation)
    task = Task(
        settings=settings,
        federation=federation,
        split=split,
        whole=federation,
        protocol=Protocol(name=name, candidates=candidates, seed=settings.seed),
    )
    return recipe_named(settings.recipe).plan(task)


def phases_of(plan: Plan) -> tuple[Phase, ...]:
    """Return the stages of a plan; raise if a federation cannot run one of them."""
    recipe = plan.task.settings.recipe
    for stage in plan.stages():
        if isinstance(stage, Exchange):
            raise FederationError(
                f"{recipe} has an exchange that is not a sum ({stage.name}), and a"
                " federation only adds up; set `neighbours` to 0"
            )
        if not isinstance(stage, Phase):
            raise FederationError(
                f"{recipe} needs all data in one place; a federation has it nowhere"
            )
        if stage.alone:
            raise FederationError(
                f"{recipe} adds up {stage.name}: which cells are not 0 tells what people have, and"
                f" they are too many to be masked, so a federation cannot play it; {stage.alone}"
            )
    return tuple(stage for stage in plan.stages() if isinstance(stage, Phase))


def _taken(catalogue: Catalogue, mine: Clients | None, first: int, positions: IntArray) -> Clients:
    """Return the data of people by their positions in the federation.

    `mine` is the data of the node's own people, whose positions begin at `first`. If one of the
    positions belongs to another node, all people are returned without data.
    """
    local = np.asarray(positions) - first
    if mine is not None and ((local >= 0) & (local < len(mine))).all():
        return mine.take(local)
    return nobody(catalogue.schema, len(local))
