"""All settings of a run, as one frozen record read from TOML and `--set key=value`."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from privrec.core.optimize import ServerOptimizer
from privrec.data.splits import Halving
from privrec.errors import SettingsError, nearest
from privrec.models.dssm import Activation, Target
from privrec.privacy.noise import NoiseKind
from privrec.privacy.release import Mechanism
from privrec.privacy.sampling import Law
from privrec.toml import toml_value

Stage1 = Literal["none", "paper", "public", "private"]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]


class RunConfig(BaseModel):
    """The settings of a run; `privrec recipes NAME` shows a recipe's own values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str
    data: str
    seed: Count = 0

    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of people who are test people; they never train."""
    validation_share: Share = 0.1
    """Share of the other people who are used for validation and do not train."""
    validate_every: Count = 50
    """Rounds between two evaluations on the validation people; 0 means never."""
    halving: Halving = "random"
    """How a test person's data is halved: at random, or by time with the earlier half first."""

    rounds: Count = 100
    cohort: Size = 100
    """People per round; the expected number with Poisson sampling."""
    sampling: Law = "poisson"
    """How a cohort is drawn: Poisson sampling, or a fixed size (the paper's)."""
    local_epochs: Size = 1
    local_steps: Count = 0
    """The most mini-batch steps per client and round; 0 means no limit."""
    batch_size: Size = 32
    central_batch_size: Size = 256
    """Batch size of central training; adaptation uses `batch_size`."""
    local_lr: Positive = 0.1
    server_optimizer: ServerOptimizer = "adam"
    server_lr: Positive = 0.003
    weight_decay: Weight = 0.0
    """L2 weight decay on the parameters that PrivRec+ trains on top of the closed form."""

    negatives: Count = 4
    """Unseen items drawn for each like."""
    dislike_target: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Target of an item rated low, between unseen (0) and liked (1); the paper's is 0."""
    target: Target = "implicit"

    embedding_size: Size = 64
    tower_size: Size = 64
    hidden: Annotated[tuple[Size, ...], Field(min_length=1)] = (64, 64, 64, 64)
    activation: Activation = "relu"
    embedding_scale: Positive = 0.1

    adapt_epochs: Count = 5
    """Epochs over a person's own data before ranking for her; 0 means no adaptation."""
    adapt_steps: Count = 0
    """The most steps of adaptation; 0 means no limit."""
    adapt_lr: Positive = 0.1
    adapt_negatives: Count = 4

    mechanism: Mechanism = "none"
    """The noise on each round's sum of updates: none, gaussian (L2 bound), laplace (L1 bound)."""
    epsilon: Positive | None = None
    """The privacy budget. Without `noise_multiplier`, the noise is calibrated to it. With both,
    the run ends when the budget is spent."""
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 1e-6
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Noise scale on the sum, divided by the sensitivity; 0 clips updates and adds no noise."""
    clip_norm: Positive = 1.0
    """The clipping bound: the largest norm of one client's update."""
    clip_quantile: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Adaptive clipping: the bound follows this quantile of the update norms; 0 keeps it fixed."""
    noise: NoiseKind = "secure"
    """Secure noise cannot be repeated or removed. Seeded noise can: it is for experiments only."""
    train_people: Count = 0
    """The public number of training people, which the accountant uses. 0 derives it from the
    number of people that the data set declares."""
    force_delta: bool = False
    """Allows a delta of 1/N or more, with which a guarantee means little."""
    diagnostics: bool = False
    """Writes losses, counts, timings and validation figures also under secure noise. They are
    computed from raw data, and no guarantee covers them."""

    stage1: Stage1 = "none"
    """How stage one learns item vectors. "none": no stage one. "paper": from all training people
    without noise (no guarantee end to end). "public": from volunteers or public item features.
    "private": under noise."""
    volunteers: Share = 0.1
    """Share of the training people who are in a public stage one; 0 means item features alone."""
    stage1_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of epsilon for a private stage one; in PrivRec+ with noised rounds, for the sums."""
    stage1_rounds: Size = 100
    stage1_cohort: Size = 100
    stage1_clip_norm: Positive = 1.0
    stage1_lr: Positive = 0.5
    stage1_server_lr: Positive = 0.01
    views: Size = 32
    """Masked views of a person's sequence per round, at most."""
    view_window: Annotated[int, Field(ge=3)] = 20
    """Items of a sequence that a view shows, at most."""
    view_segment: Size = 5
    view_negatives: Size = 64
    """Negative items per masked item in the item loss."""
    view_others: Size = 4
    """Negative segments per masked segment in the segment loss."""
    item_mask_weight: Weight = 1.0
    segment_mask_weight: Weight = 0.3
    dssm_weight: Positive = 1.0
    """Weight of the DSSM's loss relative to the self-supervised loss in stage two."""
    item_rate: Annotated[float, Field(ge=0, le=1)] = 1.0
    """How fast stage two changes the item vectors, relative to other parameters; 0 keeps them as
    stage one left them."""

    history_rank: Count = 128
    """Length of the history tower's vectors. 0 means the size of the catalogue, which makes the
    largest model. Under noise this setting is ignored: vectors have length 64, of which the noise
    decides how many entries are used."""
    history_items: Size = 8000
    """How many items get a vector, the most popular ones. All others are ranked after them, by
    popularity."""
    history_l2: Positive = 50.0
    """Ridge on every column of a person's history, in units of people."""
    history_dropout: Share = 0.7
    """Dropout probability of each column in EDLAE: a ridge that grows with its frequency."""
    dislike_input: Weight = 0.5
    """Weight of a disliked item in a person's history; a liked item has weight 1."""
    feature_input: Weight = 0.2
    """Weight of a person's features; a liked item has weight 1. Not used under noise."""
    context_input: Weight = 0.5
    """Weight of a person's usual contexts; a liked item has weight 1. Not used under noise."""

    ease_l2: Positive = 500.0

    @property
    def draws_in_secret(self) -> bool:
        """Whether noise and cohorts come from a generator that nobody can repeat."""
        return self.mechanism != "none" and self.noise == "secure"

    @property
    def shows_raw_figures(self) -> bool:
        """Whether losses, counts and timings of a run are written to the run folder."""
        return self.diagnostics or not self.draws_in_secret

    @model_validator(mode="after")
    def _ratings_have_no_negatives(self) -> "RunConfig":
        if self.target == "rating" and (self.negatives or self.adapt_negatives):
            raise ValueError(
                '`negatives` and `adapt_negatives` must be 0 with target = "rating":'
                " an item that was never seen has no rating"
            )
        return self

    @model_validator(mode="after")
    def _noise_needs_a_mechanism(self) -> "RunConfig":
        if self.mechanism == "none":
            for key in ("epsilon", "noise_multiplier", "clip_quantile"):
                if getattr(self, key):
                    raise ValueError(
                        f"`{key}` needs a recipe with noise, such as dp-privrec-one or"
                        f" lm-privrec; {self.recipe} adds none"
                    )
        elif self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("give `epsilon`, from which the noise is found, or `noise_multiplier`")
        if self.stage1 == "private" and self.mechanism == "none":
            raise ValueError('`stage1` = "private" needs a recipe with noise, such as dp-privrec')
        if self.clip_quantile and self.mechanism == "laplace":
            raise ValueError("`clip_quantile` needs the Gaussian mechanism, not laplace")
        return self


def make_config(values: Mapping[str, Any]) -> RunConfig:
    """Return the checked settings; raise the first error as one line."""
    for key in values:
        if key not in RunConfig.model_fields:
            raise SettingsError(f"unknown key {key!r}{nearest(key, RunConfig.model_fields)}")
        takes_truth = RunConfig.model_fields[key].annotation is bool
        if isinstance(values[key], bool) and not takes_truth:
            raise SettingsError(f"`{key}` must not be a truth value; got {values[key]}")
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as error:
        fault = error.errors()[0]
        if not fault["loc"]:
            raise SettingsError(fault["msg"].removeprefix("Value error, ")) from error
        name = ".".join(map(str, fault["loc"]))
        must = fault["msg"].replace("Input should be", "must be").replace("Field", "must be")
        for words, sign in _SIGNS.items():
            must = must.replace(words, sign)
        raise SettingsError(f"`{name}` {must}; got {fault['input']!r}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """Return the settings of `key=value` pairs; a value is TOML where it can be, else text.

    >>> parse_overrides(["rounds=20", "hidden=[32, 16]", "activation=tanh"])
    {'rounds': 20, 'hidden': [32, 16], 'activation': 'tanh'}
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise SettingsError(f"--set takes key=value; got {pair!r}")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = text
    return values


def to_toml(config: RunConfig, *, header: Mapping[str, Any]) -> str:
    """Return the settings as TOML, with `header` before them."""
    return "".join(
        f"{key} = {toml_value(value)}\n"
        for key, value in {**header, **config.model_dump(exclude_none=True)}.items()
    )


_SIGNS = {
    "greater than or equal to": ">=",
    "less than or equal to": "<=",
    "greater than": ">",
    "less than": "<",
}
