"""Writing TOML values; the standard library only reads them."""

import json
from typing import Any


def toml_value(value: Any) -> str:
    r"""Return a string, number, truth value or sequence of them as TOML.

    >>> print(toml_value("a \"b\"\n"), toml_value((1, 2.5)), toml_value(True))
    "a \"b\"\n" [1, 2.5] true
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str):
        # TOML strings equal JSON strings, but TOML also escapes the delete character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
