"""The settings that every run has, and functions that read, check and write settings.

The settings of an algorithm are a subclass of `RunSettings`, in the algorithm's package.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privrec.data.text import short
from privrec.errors import SettingsError, first_fault, nearest
from privrec.toml import toml_value
from privrec.types import Candidates, Halving, MechanismName, NoiseKind, ProtocolName

Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
"""At most 1e6, because products of larger weights can overflow 32-bit floats."""
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Few = Annotated[int, Field(ge=0, le=1000)]
"""At most 1000, so that a model from someone else cannot keep a phone busy for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The privacy budget of a run and its noise. The defaults are those of a run without noise."""

    mechanism: MechanismName = "none"
    epsilon: float | None = None
    delta: float = 1e-6
    noise: NoiseKind = "secure"
    force_delta: bool = False
    train_people: int = 0
    diagnostics: bool = False

    @property
    def draws_in_secret(self) -> bool:
        """Whether the operating system draws noise and cohorts, so that no seed repeats them."""
        return self.mechanism != "none" and self.noise == "secure"

    @property
    def shows_raw_figures(self) -> bool:
        """Whether the run folder gets losses, counts and timings, which have no noise."""
        return self.diagnostics or not self.draws_in_secret


class RunSettings(BaseModel):
    """Settings of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    retired: ClassVar[frozenset[str]] = frozenset()
    """Keys of earlier versions that had no effect. They are ignored: old run folders have them."""

    recipe: str
    """The name of the recipe."""
    data: str
    """A built-in data set, or a data folder."""
    seed: Count = 0
    """Fixes every random number of the run, except noise and cohorts that are drawn in secret."""

    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of people who are test people and never train (protocol halves)."""
    validation_share: Share = 0.1
    """Share of people for validation; under halves they do not train."""
    halving: Halving = "random"
    """How a test person's data is halved: at random, or by time with the earlier half first."""
    protocol: Literal["auto", ProtocolName] = "auto"
    """Who trains and what is tested; auto is files for data with a test file, else halves."""
    candidates: Literal["auto", Candidates] = "auto"
    """The items that a tested item is ranked among: unseen (in none of the person's lines),
    not-kept (not on her device), or auto (not-kept under the protocol files, else unseen)."""

    def __repr__(self) -> str:
        own = {key: value for key, value in self if value != type(self).model_fields[key].default}
        parts = [f"{key}={short(repr(value), 80)}" for key, value in own.items()]
        rest = len(type(self).model_fields) - len(own)
        text = short(", ".join(parts), 700)
        return f"{type(self).__name__}({text}; {rest} more have their usual values)"

    __str__ = __repr__

    @property
    def budget(self) -> Budget:
        """The privacy budget and the noise; by default, a run has no noise."""
        return Budget()

    def validates_after(self, played: int, rounds: int) -> bool:
        """Return whether to test on validation people after `played` of `rounds` rounds."""
        return False

    @property
    def worse_looks(self) -> int:
        """Training ends after this many validations worse than the best; 0 keeps no best state."""
        return 0


Settings = TypeVar("Settings", bound=RunSettings)


def make_settings(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Return the checked settings of a recipe; raise the first fault as one line."""
    values = {key: value for key, value in values.items() if key not in kind.retired}
    for key, value in values.items():
        if key not in kind.model_fields:
            raise SettingsError(_unknown(key, kind, str(values.get("recipe", ""))))
        takes_truth = kind.model_fields[key].annotation is bool
        if isinstance(value, bool) and not takes_truth:
            raise SettingsError(f"`{key}` must not be a truth value; got {value}")
    try:
        made = kind.model_validate(dict(values))
    except ValidationError as error:
        raise SettingsError(first_fault(error)) from error
    for key, value in values.items():
        if _has_text(value) and not _has_text(getattr(made, key)):
            raise SettingsError(f"`{key}` must not be text; got {value!r}")
    return made


def _has_text(value: object) -> bool:
    """Return whether a value is or contains text, which pydantic would convert to a number."""
    return isinstance(value, str) or (
        isinstance(value, list | tuple) and any(isinstance(part, str) for part in value)
    )


def _unknown(key: str, kind: type[RunSettings], recipe: str) -> str:
    return (
        f"unknown key {key!r} for {recipe}{nearest(key, kind.model_fields)}"
        f" ('privrec recipes {recipe}' lists its keys)"
    )


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """Return the settings in `key=value` pairs; a value that is not valid TOML is text.

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


def to_toml(config: RunSettings, *, header: Mapping[str, Any]) -> str:
    """Return `header` and then the settings, as TOML."""
    return "".join(
        f"{key} = {toml_value(value)}\n"
        for key, value in {**header, **config.model_dump(exclude_none=True)}.items()
    )
