"""Makes text from data safe to show: no terminal control codes, no reordered letters."""

import unicodedata

# Other, control; other, format (bidirectional overrides, zero-width signs); surrogates;
# line and paragraph separators.
_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")


def safe_text(text: str) -> str:
    r"""Return the text with every control, formatting and separator character replaced by `�`.

    An escape code in a title could change what the terminal shows. A bidirectional override could
    make a name look like another name.

    >>> safe_text("Toy Story\x1b[2J"), safe_text("evil\u202egpj.exe"), safe_text("naïve ☂")
    ('Toy Story�[2J', 'evil�gpj.exe', 'naïve ☂')
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join("�" if unicodedata.category(c) in _UNSAFE else c for c in text)


def data_title(name: str, data: str) -> str:
    """Return what to call a data set: its name, and the folder, as two may have the same name.

    >>> data_title("The shop", "data/shop"), data_title("frappe", "frappe")
    ('The shop (data/shop)', 'frappe')
    """
    return data if name == data or data.startswith("synthetic:") else f"{name} ({data})"
