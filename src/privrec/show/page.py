"""One look for all pages: a document that needs no network and runs no script but ours."""

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from privrec.data.text import safe_text
from privrec.show.style import SCRIPT, STYLE

Link = tuple[str, str]
"""(its text, its address: a path relative to the page, or `#id`)"""


RAW_NOTE = (
    '<p class="note">This page is computed from raw data of the people tested and, for the'
    " references, of those who trained. No guarantee covers it: it is for the holder of the data,"
    " and not for release.</p>"
)


def html_text(text: str) -> str:
    """Return text from data as HTML, also for the value of an attribute."""
    return html.escape(safe_text(text))


def html_words(text: str) -> str:
    """Return a sentence of ours as HTML: what is between two backticks is set as code.

    >>> html_words("in `simulation`, 1 < 2")
    'in <code>simulation</code>, 1 &lt; 2'
    """
    return re.sub("`([^`]+)`", r"<code>\1</code>", html_text(text))


def page(title: str, parts: Sequence[str], *, links: Sequence[Link] = (), script: str = "") -> str:
    """Return a whole HTML document.

    `title` is plain text, `parts` are HTML, `links` are shown at the top. `script` is a script of
    ours, a constant: never put text from data into it. A browser runs only scripts whose hash is
    in the policy, so a script that came with data cannot run.
    """
    scripts = [SCRIPT, script] if script else [SCRIPT]
    nav = "".join(html_link(name, to) for name, to in links)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><meta name="generator" content="privrec">'
        f"<title>{html_text(title)}</title><style>{STYLE}</style></head>\n<body><main>"
        + (f'<nav aria-label="Pages">{nav}</nav>\n' if nav else "")
        + "\n".join(part for part in parts if part)
        + "</main>"
        + "".join(f"<script>{one}</script>" for one in scripts)
        + "</body></html>\n"
    )


def _policy(scripts: Sequence[str]) -> str:
    hashes = " ".join(f"'sha256-{_hash(one)}'" for one in scripts)
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'self';"
        f" base-uri 'none'; form-action 'self'; script-src {hashes}"
    )


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def html_link(text: str, to: str) -> str:
    """Return a link as HTML; `to` is an address of `path_link`, or `#id`."""
    return f'<a href="{html_text(to)}">{html_text(text)}</a>'


def path_link(path: str) -> str:
    """Return a relative path as an address: a folder may have quotes, `#`, `?` or `%` in its name.

    >>> path_link('../my "run" #1/report.html')
    '../my%20%22run%22%20%231/report.html'
    """
    # "a:b/…" would be read as an address with the scheme "a".
    scheme = ":" in path.split("/", 1)[0]
    return ("./" if scheme else "") + quote(path)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    kinds: Sequence[str] = (),
    name: str = "",
    look: str = "",
) -> str:
    """Return a table of plain text in a box that scrolls sideways where there is no room.

    `kinds` are the classes of its rows: "ours", "reference", "paper". `name` is read aloud. `look`
    is "text" where all cells are words, "words" where the last one is, "short" where the first one
    is, and "wide" makes small print for many columns; also several of them, "wide words".
    """
    cells = [[html_text(cell) for cell in row] for row in rows]
    return html_table([html_text(cell) for cell in head], cells, kinds=kinds, name=name, look=look)


def html_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    kinds: Sequence[str] = (),
    name: str = "",
    look: str = "",
) -> str:
    """Return the table of `table`, from cells that are HTML."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    classes = [*kinds, *[""] * (len(rows) - len(kinds))]
    body = "".join(
        (f'<tr class="{kind}">' if kind else "<tr>")
        + "".join(f"<td>{cell}</td>" for cell in row)
        + "</tr>"
        for row, kind in zip(rows, classes, strict=True)
    )
    label = html_text(name or "table")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        + (f'<table class="{look}">' if look else "<table>")
        + (f"<thead><tr>{top}</tr></thead>" if head else "")
        + f"<tbody>{body}</tbody></table></div>"
    )


def between(value: str, ends: str) -> str:
    """Return a figure with its interval in small print below it, as HTML; `ends` may be ""."""
    small = f' <span class="ends">{html_text(ends)}</span>' if ends else ""
    return html_text(value) + small


def beside(place: Path, *, sure: Sequence[str] = ()) -> list[Link]:
    """Return links to the other pages of a run; those of `sure` even before they are written.

    `place` is in `simulation/`. What is promised may be released, so it lies outside.
    """
    pages = {
        "report": "report.html",
        "privacy": "../privacy.html",
        "attack": "attack.html",
        "audit": "audit.html",
    }
    return [
        (name, to)
        for name, to in pages.items()
        if to != place.name and (name in sure or (place.parent / to).is_file())
    ]


def note(text: str) -> str:
    """Return a remark in small print; `text` is plain text."""
    return f'<p class="note">{html_text(text)}</p>'


def figure(value: float | None) -> str:
    """Return a figure as text; a dash if nothing was tested."""
    return "-" if value is None else f"{value:.3f}"
