"""The JSON documents of a run folder, one class for each file.

Files of older versions lack some keys, so most fields have a default. Unknown keys are kept.
`as_json` returns only the keys that were set.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from privrec.data.text import short
from privrec.errors import RunFolderError
from privrec.evaluation.intervals import Difference, People
from privrec.privacy.statement import epsilon_text
from privrec.runs.figures import KINDS, at_least, figure_and_arm, text_table
from privrec.settings import RunSettings

if TYPE_CHECKING:
    import polars as pl

NOT_JSON = (ValueError, RecursionError)
"""Errors of `json.loads` on invalid JSON. A number with 5,000 digits raises `ValueError`."""


class Document(BaseModel):
    """A JSON object. Types are checked strictly: text is no number, and true is not 1."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="allow", validate_by_name=True, validate_by_alias=True
    )

    @classmethod
    def read(cls, path: Path, *, remedy: str = "") -> Self | None:
        """Return the document in a file; None if the file does not exist.

        `remedy` tells the user what to do about an unreadable file. By default it names the command
        that makes the file again.
        """
        if not path.is_file():
            return None
        verb = {"attack": "attack", "audit": "audit"}.get(path.stem, "evaluate")
        remedy = remedy or f"{verb} again"
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise RunFolderError(f"cannot read {path}: {error}; {remedy}") from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if first["type"] == "json_invalid":
                raise RunFolderError(f"cannot read {path}: {first['msg']}; {remedy}") from error
            raise RunFolderError(f"{path} {_fault(first)}: {remedy}") from error

    def as_json(self) -> dict[str, Any]:
        """Return the keys and values of the file."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def text(self) -> bytes:
        """Return the content of the file."""
        return json.dumps(self.as_json(), indent=2).encode() + b"\n"


def fault_in(value: object, kind: type[Document]) -> str | None:
    """Return the first fault in a JSON value as text that follows a file name; None if valid.

    >>> fault_in({"what": "people", "done": "x", "of": 3}, Step)
    "has 'x' for 'done', which must be a number"
    >>> fault_in({"what": "people", "done": 1}, Step)
    "has no 'of'"
    """
    try:
        kind.model_validate(value)
    except ValidationError as error:
        return _fault(error.errors(include_url=False)[0])
    return None


def _fault(error: Any) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"has no {name!r}"
    must = next((word for kind, word in _KINDS.items() if kind in error["type"]), error["msg"])
    shown = repr(error["input"])
    shown = shown if len(shown) <= 40 else f"{shown[:40]}…"
    return f"has {shown} for {name!r}, which must be {must}" if name else f"is not {must}"


_KINDS = {
    "string_": "text",
    "int_": "a number",
    "float_": "a number",
    "finite_": "a finite number",
    "greater_": "0 or more",
    "bool_": "true or false",
    "dict_": "a mapping",
    "model_": "a mapping",
    "dataclass_": "a mapping",
    "list_": "a list",
    "tuple_": "two numbers",
    "too_long": "two numbers",
}


def _has_all_k(by_k: dict[int, Any]) -> dict[int, Any]:
    if missing := [k for k in (5, 10, 20, 30) if k not in by_k]:
        raise ValueError(f"figures at 5, 10, 20 and 30, not without {missing[0]}")
    return by_k


Ends = tuple[float, float]
"""The two ends of an interval, or a point (x, y) of a curve."""
Hits = Annotated[dict[int, float], AfterValidator(_has_all_k)]
"""Hits@k (a share from 0 to 1), by k."""
MaybeHits = Annotated[dict[int, float | None], AfterValidator(_has_all_k)]
"""Hits@k by k; None if nobody was tested."""
Intervals = Annotated[dict[int, Ends], AfterValidator(_has_all_k)]
Above = Annotated[dict[int, Difference], AfterValidator(_has_all_k)]
"""A difference in Hits@k, by k."""


class NewOnly(Document):
    """Figures over tested items that are not on the person's device; None without such items."""

    hits: MaybeHits
    interval: Intervals = Field(default_factory=dict)
    differences: dict[str, dict[int, Difference]] = Field(default_factory=dict)


class Figures(Document):
    """The quality of a recommender for the people tested, by k."""

    hits: Hits
    ndcg: dict[int, float | None] = Field(default_factory=dict)
    list_ndcg: dict[int, float | None] = Field(default_factory=dict)
    new_only: NewOnly | None = None
    recall: dict[int, float | None] = Field(default_factory=dict)
    interval: Intervals = Field(default_factory=dict)
    beyond: dict[str, dict[int, float | None]] = Field(default_factory=dict)
    beyond_interval: dict[str, dict[int, Ends]] = Field(default_factory=dict)

    def __repr__(self) -> str:
        hits = ", ".join(f"@{k} {value:.3f}" for k, value in self.hits.items())
        return f"{type(self).__name__}(hits {hits})"

    def __str__(self) -> str:
        return repr(self)


class OfRun(Document):
    """A document about a run: its recipe, data and seed."""

    recipe: str
    data: str
    seed: int


class Users(Document):
    """The numbers of people. `skipped` is the number of test people without an item to test."""

    train: int | None = None
    validation: int | None = None
    test: int
    skipped: int


class Group(Document):
    """Figures of the people who have `from` to `to` items on their device, by k."""

    least: int = Field(alias="from")
    most: int | None = Field(alias="to", default=None)
    people: int
    hits: MaybeHits
    interval: Intervals = Field(default_factory=dict)
    references: dict[str, MaybeHits] = Field(default_factory=dict)


class Part(Document):
    """Figures for the tested items in one part of the catalogue, by k.

    `part` is head, middle or tail of the items in order of popularity; each part has a third of the
    likes in the training data. `people` is the number of people with a tested item in this part.
    """

    part: str
    items: int
    people: int
    hits: MaybeHits
    interval: dict[int, Ends] = Field(default_factory=dict)
    references: dict[str, MaybeHits] = Field(default_factory=dict)


class FewItems(Document):
    """Figures of people with few items on their device, with and without local adaptation."""

    fewer_than: int
    people: int
    hits: MaybeHits
    interval: dict[int, Ends] = Field(default_factory=dict)
    without_adaptation: MaybeHits | None
    interval_without: dict[int, Ends] = Field(default_factory=dict)


class Privacy(Document):
    """The privacy guarantee of a run (`PrivacyReport`)."""

    epsilon: float | None = None
    epsilon_of_mechanism: float | None = None
    delta: float | None = None
    adjacency: str | None = None
    stage_two_epsilon: float | None = None
    statement: str
    short: str = ""
    strength: str = ""
    not_covered: list[str] = Field(default_factory=list)
    local_noise: bool = False

    @property
    def has_noise(self) -> bool:
        """Whether anything that was sent or published had noise."""
        known = (self.epsilon_of_mechanism, self.stage_two_epsilon)
        return self.local_noise or any(epsilon is not None for epsilon in known)


class Cost(Document):
    """The bytes that a person with median data sends per round, and the seconds of all rounds."""

    bytes_sent: int | None = None
    seconds: float | None = None


class Attacked(Document):
    """The strongest attack on a run and the audit of the run; a field without a result is None."""

    auc: float | None = None
    attack: str | None = None
    epsilon_lower: float | None = None
    epsilon_ledger: float | None = None
    holds: bool | None = None

    def sentences(self) -> list[str]:
        """Return the results as sentences without a full stop."""
        lines = []
        if self.epsilon_lower is not None:
            least, most = at_least(self.epsilon_lower), epsilon_text(self.epsilon_ledger)
            held = verdict(self.epsilon_ledger, self.holds)
            lines.append(f"audit: at least epsilon {least}, ledger says {most}: {held}")
        if self.attack is not None:
            kind = KINDS[self.attack]
            lines.append(f"attack: the highest AUC is {self.auc:.3f} ({kind}); guessing has 0.5")
        return lines


def verdict(epsilon: float | None, holds: bool | None) -> str:
    """Return as text whether an audit agrees with the ledger's epsilon."""
    if epsilon is None and holds is not False:
        return "nothing is promised"
    return "holds" if holds else "does NOT hold"


class Evaluation(Figures, OfRun):
    """`evaluation.json`: figures for the test people, of the run and of reference recommenders.

    `differences` are the run's Hits@k minus those of each reference, paired over people. `by_items`
    groups people by the number of items on their device. `by_popularity` groups tested items by
    their popularity in the training data. `references_left_out` has the reason for each missing
    reference. `config` and `people` (the figures of each person) are not in this file, so they are
    None unless the evaluation was made in this process.
    """

    data_name: str = ""
    users: Users
    protocol: str = "halves"
    candidates: str = "unseen"
    differences: dict[str, Above] = Field(default_factory=dict)
    by_items: list[Group] = Field(default_factory=list)
    by_popularity: list[Part] = Field(default_factory=list)
    few_items: FewItems | None = None
    references: dict[str, Figures]
    references_left_out: dict[str, object] = Field(default_factory=dict)
    privacy: Privacy
    cost: Cost = Cost()
    warnings: list[str] = Field(default_factory=list)
    _config: RunSettings | None = PrivateAttr(default=None)
    _people: People | None = PrivateAttr(default=None)

    def as_json(self) -> dict[str, Any]:
        """Return the keys and values of the file, with recipe, data and seed first."""
        values = super().as_json()
        first = ("recipe", "data", "data_name", "seed", "users")
        return {key: values[key] for key in first if key in values} | values

    def keep(self, config: RunSettings, people: People) -> None:
        """Set `config` and `people`."""
        self._config, self._people = config, people

    @property
    def config(self) -> RunSettings | None:
        """The settings of the run; None if the evaluation was read from a file."""
        return self._config

    @property
    def people(self) -> People | None:
        """The figures of each person; None if the evaluation was read from a file."""
        return self._people

    @property
    def recommenders(self) -> dict[str, Figures]:
        """The figures of the run and of the references, by name."""
        return {self.recipe: self, **self.references}

    @property
    def title(self) -> str:
        """The recipe, the data and the number of people tested, as text."""
        people = f"{self.users.test:,} people tested"
        return f"Hits@k of {short(self.recipe)} on {short(self.data)}, {people}"

    def frame(self) -> "pl.DataFrame":
        """Return the figures as a frame with one row for each recommender and k.

        The columns are name, k, hits, ndcg, list_ndcg, recall, new_only, low and high; some may be
        missing if they have no values. `new_only` is Hits@k over items that are not on the device.
        `low` and `high` are the ends of the interval of `hits`.
        """
        import polars as pl

        rows = []
        for name, one in self.recommenders.items():
            for k, hits in one.hits.items():
                row: dict[str, object] = {"name": name, "k": k, "hits": hits}
                for figure in ("ndcg", "list_ndcg", "recall"):
                    if by_k := getattr(one, figure):
                        row[figure] = by_k.get(k)
                row["new_only"] = None if one.new_only is None else one.new_only.hits.get(k)
                if k in one.interval:
                    row["low"], row["high"] = one.interval[k]
                rows.append(row)
        return pl.DataFrame(rows, infer_schema_length=None)

    def __repr__(self) -> str:
        rows = [
            [name, *(figure_and_arm(hits, one.interval.get(k)) for k, hits in one.hits.items())]
            for name, one in self.recommenders.items()
        ]
        table = text_table(["", *(f"@{k}" for k in self.hits)], rows)
        warnings = "".join(f"\n{short(line, 150)}" for line in self.warnings[:1])
        return f"Evaluation: {self.title}\n{table}{warnings}"


class Area(Document):
    """A figure with the ends of its interval."""

    value: float
    low: float | None
    high: float | None


class Kind(Document):
    """The result of one kind of attack: how well it separates members from other people.

    A member is a person who took part in the training. `members` and `others` are the numbers of
    people about whom the attack guesses. `curve` is the ROC curve of the attack, and `allowed` the
    highest ROC curve that epsilon allows after `trainings` trainings. `printed` is the accuracy in
    the paper.
    """

    auc: Area | None = None
    accuracy: float | Area | None = None
    rates: dict[str, Area] = Field(default_factory=dict)
    others: int | None = None
    shadows: int | None = None
    printed: float | None = None
    curve: list[Ends] = Field(default_factory=list)
    allowed: list[Ends] = Field(default_factory=list)
    members: int | None = None
    trainings: int | None = None
    auc_allowed: float | None = None

    def can_tell(self, rate: float) -> bool:
        """Return whether a false-positive rate can be measured: with n others, it is at least 1/n.

        >>> Kind(others=75).can_tell(0.01), Kind(others=100).can_tell(0.01)
        (False, True)
        """
        return self.others is None or rate * self.others >= 1 - 1e-9


class Share(Document):
    """Precision and recall of the items that a server infers for a person."""

    precision: float | None
    recall: float | None = None


class ServerView(Document):
    """What a curious server infers from the contributions of people in one phase."""

    phase: str
    people: int
    items: Share
    likes: Share
    guessing: Share


class Attacks(Document):
    """The results of the attacks by kind; None for a kind that was not tried."""

    paper: Kind | None = None
    loss: Kind | None = None
    ratio: Kind | None = None
    sums: Kind | None = None
    twice: Kind | None = None
    server: list[ServerView] = Field(default_factory=list)


class Attack(OfRun):
    """`attack.json`: the results of attacks on a run."""

    epsilon: float | None = None
    delta: float | None = None
    repetitions: int | float | None = None
    attacks: Attacks


class Audit(OfRun):
    """`audit.json`: a lower bound on epsilon from a training with made-up people (canaries).

    `epsilon_most` is the largest lower bound that the area under the ROC curve can give with this
    number of canaries; None without a guarantee. If the ledger's epsilon is larger, this bound
    cannot contradict it. `findings` are errors that are visible without statistics. `allowed` is
    the highest ROC curve that the ledger's epsilon allows.
    """

    canaries: int
    releases: int | None = None
    confidence: float
    delta: float
    epsilon_lower: float
    epsilon_ledger: float | None
    epsilon_most: float | None = None
    holds: bool | None
    auc: Area | None = None
    auc_allowed: float | None = None
    bounds: dict[str, float | None] = Field(default_factory=dict)
    curve: list[Ends] = Field(default_factory=list)
    allowed: list[Ends] = Field(default_factory=list)
    findings: list[str] = Field(default_factory=list)
    noise: str = "-"

    @property
    def verdict(self) -> str:
        """Whether the audit agrees with the ledger's epsilon, as text."""
        return verdict(self.epsilon_ledger, self.holds)


def summary(attack: Attack | None, audit: Audit | None) -> Attacked | None:
    """Return the strongest attack and the audit of a run; None if neither was made.

    The attack on two trainings is left out, because the epsilon of this one run does not bound it.
    """
    found = Attacked()
    if attack is not None:
        kinds = {name: getattr(attack.attacks, name) for name in KINDS if name != "twice"}
        areas = [(kind.auc.value, name) for name, kind in kinds.items() if kind and kind.auc]
        if areas:
            auc, strongest = max(areas)
            found = Attacked(auc=auc, attack=strongest)
    if audit is not None:
        names = ("epsilon_lower", "epsilon_ledger", "holds")
        found = found.model_copy(update={name: getattr(audit, name) for name in names})
    return found if found.model_fields_set else None


class Listed(Document):
    """An item in the list of an example person; `hit` is true if it is one of her hidden likes."""

    title: str
    hit: bool


class Example(Document):
    """An example person from public data: the titles that she liked, and her list."""

    liked: list[str]
    more: int
    held_out: int
    list: list[Listed]


class Examples(Document):
    """`examples.json`: example people."""

    examples: list[Example]


class Step(Document):
    """The progress of a step inside a round or an evaluation."""

    what: str
    done: int
    of: int
    seconds: float | None = None


class Memory(Document):
    """The current and the peak memory of a process, in bytes."""

    now: int
    peak: int


class Progress(Document):
    """`progress.json`: the progress of a training."""

    stages: list[str] | None = None
    of: int | None = None
    doing: str | None = None
    stage: str | None = None
    round: int | None = None
    stage_round: int | None = None
    stage_of: int | None = None
    step: Step | None = None
    seconds_per_round: float | None = None
    memory: Memory | None = None


class WatchedSettings(Document):
    """The settings on the page about a running training."""

    recipe: str
    data: str
    seed: int = 0
    delta: float | None = None
    epsilon: float | None = None


class RoundLine(Document):
    """A line of `rounds.jsonl`: a round and its stage."""

    round: int
    stage: str = ""


class RoundFigures(RoundLine):
    """A line of `simulation/rounds.jsonl`: the figures of a round, from raw data."""

    stage: str
    seconds: float
    clients: int | None = None
    loss: float | None
    clipped: int = 0
    dropped: int = 0
    skipped: int = 0
    validation: dict[str, float | None] = Field(default_factory=dict)
    validation_interval: dict[str, list[float]] = Field(default_factory=dict)
    best: bool | None = None
    stopped: bool = False
