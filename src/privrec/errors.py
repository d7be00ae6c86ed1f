"""The errors that privrec raises, and functions that check values and write messages."""

import difflib
import importlib.util
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pydantic import ValidationError


Option = TypeVar("Option", bound=str)


class PrivrecError(Exception):
    """An error that the user can correct.

    The command line prints the message as one line and ends with exit code 2. Long messages are
    cut.
    """

    def __str__(self) -> str:
        return _cut(super().__str__())

    def __repr__(self) -> str:
        return _cut(f"{type(self).__name__}({super().__str__()!r})")


_LONGEST = 900


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class DataError(PrivrecError):
    """A file or a value of a data set is invalid."""


class SettingsError(PrivrecError):
    """A recipe, a key or a setting is unknown or out of range."""


class ScorerError(PrivrecError):
    """A recommender raised an error, or returned scores that cannot be ranked."""


class RunFolderError(PrivrecError):
    """A run folder or model file is missing, damaged, of another version, or in the way."""


class WireError(PrivrecError):
    """Bytes from the network are not a valid message."""


class FederationError(PrivrecError):
    """A federation cannot start or go on, for example because of a key or too few nodes."""


def got(value: object) -> str:
    """Return the text by which an error message names a refused value, in a few words.

    >>> got(1.5), got("four"), got([1, 2]), got({})
    ('1.5', "'four'", '[1, 2]', 'a dict')
    """
    plain = value is None or isinstance(value, str | int | float | complex | bytes)
    if plain or (isinstance(value, list | tuple) and len(value) <= 8):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:79]}…"
    return f"a {type(value).__name__}"


def check_kind(name: str, value: object, kind: type | tuple[type, ...], must: str) -> None:
    """Raise unless the value has one of these types; a truth value does not pass as a number.

    >>> check_kind("top", "ten", int, "a whole number")
    Traceback (most recent call last):
    privrec.errors.SettingsError: `top` must be a whole number; got 'ten'
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise SettingsError(f"`{name}` must be {must}; got {got(value)}")


_SIGNS = {
    "greater than or equal to": ">=",
    "less than or equal to": "<=",
    "greater than": ">",
    "less than": "<",
}


def first_fault(error: "ValidationError") -> str:
    """Return the first fault that pydantic found, in the form "`key` must be …; got …"."""
    fault = error.errors()[0]
    if not fault["loc"]:
        return fault["msg"].removeprefix("Value error, ")
    name = ".".join(map(str, fault["loc"]))
    must = (
        fault["msg"]
        .removeprefix("Value error, ")
        .replace("Input should be", "must be")
        .replace("Field required", "must be given")
    )
    for words, sign in _SIGNS.items():
        must = must.replace(words, sign)
    return f"`{name}` {must}; got {got(fault['input'])}"


_EXTRAS = {
    "autodp": ("autodp", "paper"),
    "jax_privacy": ("jax-privacy", "attack"),
    "sklearn": ("scikit-learn", "attack"),
}
"""Optional modules: the library of each, and the extra of privrec that installs it."""


def check_extra(module: str, what: str) -> None:
    """Raise unless the optional module that `what` needs is installed.

    Call this before long work, because the module itself is imported later.
    """
    library, extra = _EXTRAS[module]
    if importlib.util.find_spec(module) is None:
        raise SettingsError(f"{what} needs {library}: pip install 'privrec[{extra}]'")


def nearest(name: str, options: Iterable[str], before: str = "") -> str:
    """Return "; did you mean 'x'?" for the option closest to `name`, or "" if none is close.

    `before` is shown in front of the option.

    >>> nearest("privrek", ["privrec", "ease"])
    "; did you mean 'privrec'?"
    >>> nearest("zzz", ["privrec"])
    ''
    """
    known = list(options)
    folded = {option.casefold(): option for option in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    return f"; did you mean {before + folded[close[0]]!r}?" if close else ""


def one_of(name: str, value: object, options: Sequence[Option]) -> Option:
    """Return the option that equals `value`; if there is none, raise and suggest the nearest.

    >>> one_of("protocol", "files", ("halves", "files"))
    'files'
    """
    for option in options:
        if option == value:
            return option
    *others, last = map(repr, options)
    text = got(value)
    raise SettingsError(
        f"`{name}` must be {', '.join(others)} or {last}; got {text}{nearest(str(value), options)}"
    )


def by_likeness(name: str, options: Iterable[str]) -> list[str]:
    """Return the options, the one most similar to `name` first.

    >>> by_likeness("privrec-plus", ["lm-privrec", "dp-privrec-plus"])
    ['dp-privrec-plus', 'lm-privrec']
    """
    return sorted(options, key=lambda option: -difflib.SequenceMatcher(None, name, option).ratio())


class PrivacyWarning(UserWarning):
    """A warning: δ is large, the people are too few for the noise, or a model may reveal data."""
