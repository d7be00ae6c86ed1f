"""HTML pages from Jinja2 templates. Text from data is escaped; a page loads nothing from elsewhere.

`templates/` also has style sheets and scripts. They contain no text from data, so a page may run
these scripts (`policy`).
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from privrec.data.text import safe_text
from privrec.privacy.statement import epsilon_text
from privrec.runs.figures import figure

TEMPLATES = Path(__file__).parent / "templates"
Link = tuple[str, str]
"""The text of a link, and its address: a path relative to the page, or `#id`."""
Cell = str
"""Plain text, or HTML as `Markup`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table in a box that scrolls sideways if the table is too wide.

    `kinds` are the CSS classes of the rows: "ours", "reference" or "paper". Screen readers read
    `name` aloud. `look` has CSS classes, such as "wide words": "text" (all columns are words),
    "words" (the last column is words), "short" (the first column is not wrapped), "wide" (small
    print for many columns).
    """

    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    kinds: Sequence[str] = ()
    name: str = "table"
    look: str = ""


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code": with_code, "epsilon": epsilon_text}
    return environment


def _shown(value: object) -> object:
    """Return the value that a template prints: text without control characters, to be escaped."""
    return safe_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def render(template: str, script: str = "", /, **context: object) -> str:
    """Return the text of a page.

    `script` is the name of a second script in `templates/`, besides that of the charts. A browser
    runs only scripts whose hash is in the policy, so a script in text from data cannot run.
    """
    scripts = [Markup(text) for text in _scripts(script)]  # noqa: S704 - our own files
    page = {"scripts": scripts, "policy": Markup(policy(script)), "links": (), **context}  # noqa: S704
    return _environment().get_template(template).render(page)


def part(template: str, **context: object) -> Markup:
    """Return a part of a page, as HTML."""
    return Markup(render(template, **context))  # noqa: S704 - the template has escaped its texts


@cache
def _scripts(script: str) -> list[str]:
    names = ["chart.js", script] if script else ["chart.js"]
    return [(TEMPLATES / name).read_text(encoding="utf-8") for name in names]


def light_style() -> Markup:
    """Return the style sheet of a chart in its own SVG file, with colours of the light theme."""
    style, page = ((TEMPLATES / name).read_text("utf-8") for name in ("chart.css", "style.css"))
    colours = dict(re.findall(r"--([\w-]+):(#\w+)", page.partition("@media")[0]))
    return Markup(re.sub(r"var\(--([\w-]+)\)", lambda use: colours[use[1]], style))  # noqa: S704


def policy(script: str = "") -> str:
    """Return the Content-Security-Policy of a page: what the page may load and run."""
    hashes = [hashlib.sha256(text.encode()).digest() for text in _scripts(script)]
    allowed = " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in hashes)
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'self';"
        f" base-uri 'none'; form-action 'self'; script-src {allowed}"
    )


def with_code(text: str) -> Markup:
    """Return text as HTML, with the parts between backticks as code.

    >>> with_code("in `simulation`, 1 < 2")
    Markup('in <code>simulation</code>, 1 &lt; 2')
    """
    escaped = str(Markup.escape(safe_text(text)))
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", escaped))  # noqa: S704


def html_link(text: str, to: str) -> Markup:
    """Return a link as HTML; `to` is a result of `path_link`, or `#id`."""
    return Markup('<a href="{}">{}</a>').format(to, safe_text(text))


def path_link(path: str) -> str:
    """Return a relative path as an address, in which quotes, `#`, `?` and `%` are escaped.

    >>> path_link('../my "run" #1/report.html')
    '../my%20%22run%22%20%231/report.html'
    """
    # A browser would read "a:b/…" as an address with the scheme "a".
    scheme = ":" in path.split("/", 1)[0]
    return ("./" if scheme else "") + quote(path)


def with_ends(value: float | None, ends: Sequence[float] | None) -> Cell:
    """Return a figure as HTML, with its interval in small print below."""
    if ends is None:
        return figure(value)
    return Markup('{} <span class="ends">({:.3f}–{:.3f})</span>').format(figure(value), *ends)


def beside(place: Path, *, sure: Sequence[str] = ()) -> list[Link]:
    """Return links to the other existing pages of a run, and to those in `sure`.

    The page `place` is in `simulation/`. The page of the guarantee may be released, so it is
    outside.
    """
    pages: Mapping[str, str] = {
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
