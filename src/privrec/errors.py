"""The errors that privrec raises, and a helper for their messages."""

import difflib
import importlib.util
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pydantic import ValidationError


Option = TypeVar("Option", bound=str)


class PrivrecError(Exception):
    """An error that the user can correct.

    The command line prints the message as one line and ends with exit code 2. A message that
    quotes a long text is cut.
    """

    def __str__(self) -> str:
        return _cut(super().__str__())

    def __repr__(self) -> str:
        return _cut(f"{type(self).__name__}({super().__str__()!r})")


_LONGEST = 900


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class DataError(PrivrecError):
    """A file or a value of a data set is not what it must be."""


class SettingsError(PrivrecError):
    """A recipe, a key or a setting is unknown or out of range."""


class ScorerError(PrivrecError):
    """A recommender of the user's own raised, or returned what cannot be ranked."""


class RunFolderError(PrivrecError):
    """A run folder is missing, incomplete, in the way, or of another version."""


class WireError(PrivrecError):
    """Bytes that came over the wire are no message of privrec."""


class FederationError(PrivrecError):
    """A federation cannot start or go on: a key, a certificate, too few nodes, a broken rule."""


def got(value: object) -> str:
    """Return a value of the wrong kind as an error shows it, in a few words.

    >>> got(1.5), got("four"), got([1, 2]), got({})
    ('1.5', "'four'", '[1, 2]', 'a dict')
    """
    plain = value is None or isinstance(value, str | int | float | complex | bytes)
    if plain or (isinstance(value, list | tuple) and len(value) <= 8):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:79]}…"
    return f"a {type(value).__name__}"


def check_kind(name: str, value: object, kind: type | tuple[type, ...], must: str) -> None:
    """Raise unless the value is of this kind; a truth value is not a number.

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
    """Return the first fault that pydantic found, as privrec says it: `key` must be …; got …."""
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
"""The modules that not everybody has: the name of each library, and the extra that installs it."""


def check_extra(module: str, what: str) -> None:
    """Raise unless a module of an extra is installed; `what` needs it.

    Call it before the work begins, and not when hours later the module is imported.
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
    """Return the option that was given by its name, or raise with the nearest one.

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
    """Return the options, those that look most like `name` first.

    >>> by_likeness("privrec-plus", ["lm-privrec", "dp-privrec-plus"])
    ['dp-privrec-plus', 'lm-privrec']
    """
    return sorted(options, key=lambda option: -difflib.SequenceMatcher(None, name, option).ratio())


class PrivacyWarning(UserWarning):
    """A guarantee holds but is weak, or its noise hides all; the command line prints one line."""
