"""Safe and short display of text from data: without control codes or long lists."""

import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

ITEM_LIST = "the list of items and their features"
"""The entry of a catalogue's `undeclared` for a computed list of items."""
ITEM_FEATURES = "the features of items"
"""The beginning of its entry for features of items that are not declared public."""
_BREAKS = re.compile(r"\r\n|[\t\n\r]")
# Unicode categories: control, format (bidirectional overrides, zero-width signs), surrogates, line
# and paragraph separators.
_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")


def safe_text(text: str) -> str:
    r"""Return the text with every control, formatting and separator character replaced by `�`.

    A line break or a tab becomes a space. An escape code in a title could change what the terminal
    shows, and a bidirectional override could make a name look like another name.

    >>> safe_text("Toy Story\x1b[2J"), safe_text("evil\u202egpj.exe"), safe_text("naïve\r\n☂")
    ('Toy Story�[2J', 'evil�gpj.exe', 'naïve ☂')
    """
    if text.isascii() and text.isprintable():
        return text
    spaced = _BREAKS.sub(" ", text)
    return "".join("�" if unicodedata.category(c) in _UNSAFE else c for c in spaced)


def value_text(value: object) -> str:
    """Return the text of a raw value in a vocabulary: 1, 1.0 and "1" have the same text.

    >>> value_text(1.0), value_text("1"), value_text(2.5), value_text(True)
    ('1', '1', '2.5', 'true')
    """
    import numpy as np  # The help and the completion of commands must start fast.

    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def natural_order(text: str) -> tuple[float, str]:
    """Return a key that sorts numbers by size, then words by letter.

    >>> sorted(["b", "10", "9", "a"], key=natural_order)
    ['9', '10', 'a', 'b']
    """
    try:
        number = float(text)
    except ValueError:
        return math.inf, text
    return (math.inf if math.isnan(number) else number), text


def short(text: object, most: int = 60) -> str:
    """Return text that is safe to show, cut to `most` characters.

    >>> short("The Silent Harbour", 11)
    'The Silent…'
    """
    safe = safe_text(str(text)[: most + 1])
    return safe if len(safe) <= most else f"{safe[: most - 1]}…"


def brief(record: Any) -> str:
    """Return a record in one line of at most 900 characters, for `__repr__`.

    Arrays are shown as their sizes, and functions are left out.
    """
    names = getattr(record, "__dataclass_fields__", None) or record._fields
    parts = [f"{name}={text}" for name in names if (text := _field(getattr(record, name)))]
    return short(f"{type(record).__name__}({', '.join(parts)})", 900)


def _field(value: Any) -> str:
    if isinstance(value, str):
        return repr(short(value))
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"<{' × '.join(f'{size:,}' for size in shape)} numbers>"
    if isinstance(value, Mapping | list | tuple | set | frozenset) and len(value):
        return f"<{len(value):,} {'entry' if len(value) == 1 else 'entries'}>"
    return "" if callable(value) else short(repr(value), 200)


def data_title(name: str, data: str) -> str:
    """Return the name of a data set with its folder, because two data sets may have the same name.

    >>> data_title("The shop", "data/shop"), data_title("frappe", "frappe")
    ('The shop (data/shop)', 'frappe')
    """
    return data if name == data or data.startswith("synthetic:") else f"{name} ({data})"


def in_gb(count: float) -> str:
    """Return a number of bytes as text in GB or MB.

    >>> in_gb(2_140_000_000), in_gb(57.6e9), in_gb(4.2e12), in_gb(3e6)
    ('2.1 GB', '58 GB', '4,200 GB', '3 MB')
    """
    gigabytes = count / 1e9
    if gigabytes < 0.1:
        return f"{1e3 * gigabytes:.0f} MB"
    return f"{gigabytes:.1f} GB" if gigabytes < 10 else f"{gigabytes:,.0f} GB"
