"""The errors that privrec raises, and a helper for their messages."""

import difflib
from collections.abc import Iterable


class PrivrecError(Exception):
    """An error that the user can correct.

    The command line prints the message as one line and ends with exit code 2.
    """


class DataError(PrivrecError):
    """A file or a value of a data set is not what it must be."""


class SettingsError(PrivrecError):
    """A recipe, a key or a setting is unknown or out of range."""


class RunFolderError(PrivrecError):
    """A run folder is missing, incomplete, in the way, or of another version."""


class WireError(PrivrecError):
    """Bytes that came over the wire are no message of privrec."""


class FederationError(PrivrecError):
    """A federation cannot start or go on: a key, a certificate, too few nodes, a broken rule."""


def nearest(name: str, options: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the option closest to `name`, or "" if none is close.

    >>> nearest("privrek", ["privrec", "ease"])
    "; did you mean 'privrec'?"
    >>> nearest("zzz", ["privrec"])
    ''
    """
    known = list(options)
    folded = {option.casefold(): option for option in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


def by_likeness(name: str, options: Iterable[str]) -> list[str]:
    """Return the options, those that look most like `name` first.

    >>> by_likeness("privrec-plus", ["lm-privrec", "dp-privrec-plus"])
    ['dp-privrec-plus', 'lm-privrec']
    """
    return sorted(options, key=lambda option: -difflib.SequenceMatcher(None, name, option).ratio())


class PrivacyWarning(UserWarning):
    """A warning about a guarantee that holds but is weak; the command line prints one line."""
