"""One look for all pages: a document that needs no network and runs no script but ours.

The look of all pages: one style sheet and one script. Neither has anything from data.
"""

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from privrec.data.text import safe_text

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--card:#f5f7f9;--text:#1d2126;--soft:#545c66;
--line:#d5dbe1;--grid:#e6eaee;--link:#0b57a4;--good:#0b57a4;--good-bg:#e9f2fb;--bad:#a3202a;
--bad-bg:#fdf0f0;--warn:#7a4b00;--warn-bg:#fdf5e3;--strong:#1d6b2f;--strong-bg:#e8f5ea;
--s0:#0060b0;--s1:#b84a00;--s2:#007a5e;--s3:#a3157f;--s4:#22262c;--s5:#5b1a00}
@media screen and (prefers-color-scheme:dark){:root{--bg:#14171b;--card:#1d2228;--text:#e6e8eb;
--soft:#a3abb5;--line:#3a424b;--grid:#2a3037;--link:#79b8ff;--good:#79b8ff;--good-bg:#182b3f;
--bad:#ff8a8a;--bad-bg:#3a1d20;--warn:#f2c14e;--warn-bg:#332a14;--strong:#7fd694;--strong-bg:#16301d;
--s0:#66b3ff;--s1:#ff9d4d;--s2:#1fb58f;--s3:#f07fd0;--s4:#f2f3f5;--s5:#fff27a}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif;margin:0;background:var(--bg);
color:var(--text);overflow-wrap:anywhere}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1.25rem 4rem}
h1{font-size:1.75rem}h2{font-size:1.3rem;margin:2.4rem 0 .6rem}h3{font-size:1.08rem;
margin:1.6rem 0 .4rem}h1,h2,h3{line-height:1.25}
a{color:var(--link)}
nav{display:flex;flex-wrap:wrap;gap:.5rem;margin:0 0 1.2rem}
nav a{border:1px solid var(--line);border-radius:999px;padding:.2rem .8rem;font-size:.9rem;
text-decoration:none;background:var(--card)}nav a:hover{text-decoration:underline}
:focus-visible{outline:2px solid var(--link);outline-offset:2px}
code,pre{font:.9em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{background:var(--card);padding:.1em .3em;border-radius:4px}
pre{background:var(--card);padding:.8rem 1rem;overflow-x:auto;border-radius:8px}pre code{padding:0}
.scroll{overflow-x:auto;margin:1rem 0;max-width:100%;
background:linear-gradient(to left,var(--bg) 40%,transparent) right/3rem 100% no-repeat local,
linear-gradient(to left,var(--line),transparent) right/1.2rem 100% no-repeat scroll}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;overflow-wrap:normal}
th,td{padding:.4rem .8rem;text-align:right;border-bottom:1px solid var(--line);
vertical-align:top;unicode-bidi:isolate}
th{color:var(--soft);font-weight:600;min-width:4.5rem;font-size:.88em;vertical-align:bottom}
td{white-space:nowrap}
th:first-child,td:first-child,.text th,.text td,.words th:last-child,.words td:last-child{
text-align:left}
td:first-child{min-width:min(12rem,36vw)}.words td:last-child{min-width:14rem}
.text td{min-width:7rem}.short td:first-child{min-width:0;white-space:nowrap}
.ends{display:block;font-size:.8em;font-weight:400;color:var(--soft)}
td:first-child,.text td,.words td:last-child{white-space:normal;overflow-wrap:anywhere}
.wide{font-size:.86em}.wide th{white-space:nowrap}.wide th,.wide td{padding:.4rem .5rem}
.wide.words td:last-child{min-width:11rem}
@media screen and (min-width:1080px){.scroll:has(.wide){width:max-content;min-width:100%;
max-width:calc(min(100vw,90rem) - 3rem);position:relative;left:50%;transform:translateX(-50%)}}
tr.ours{font-weight:600;background:var(--good-bg)}tr.paper{color:var(--soft)}
.one{white-space:nowrap}.note{color:var(--soft);font-size:.92em}
.lead{font-size:1.06em;max-width:46rem}
.privacy,.warning{border-left:4px solid var(--bad);background:var(--bad-bg);padding:.5rem 1rem;
border-radius:0 8px 8px 0;margin:1rem 0}
.privacy.moderate{border-color:var(--good);background:var(--good-bg)}
.privacy.strong{border-color:var(--strong);background:var(--strong-bg)}
.privacy.weak,.warning{border-color:var(--warn);background:var(--warn-bg)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,17rem),1fr));gap:1rem}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:.8rem 1rem;
min-width:0}.card h3{margin:.1rem 0 .4rem}.card ol{margin:.3rem 0 .6rem;
padding-left:1.7rem}.card p{margin:.3rem 0}
.hit{font-weight:600;color:var(--good)}
details{margin:1rem 0}summary{cursor:pointer;padding:.2rem 0}
figure{margin:1rem 0;max-width:48rem}
svg.chart{display:block;width:100%;height:auto;aspect-ratio:640/300;font-family:inherit;
touch-action:pan-y}
svg.scale{display:block;width:100%;height:auto;font-family:inherit}
.scale text{fill:var(--text);font-size:14px;text-anchor:middle}.scale .here{font-weight:600}
.scale path{fill:var(--text)}.scale rect{stroke:var(--bg)}.scale .strong{fill:var(--strong-bg)}
.scale .moderate{fill:var(--good-bg)}.scale .weak{fill:var(--warn-bg)}
.scale .on{stroke-width:2}.scale .strong.on{stroke:var(--strong)}
.scale .moderate.on{stroke:var(--good)}.scale .weak.on{stroke:var(--warn)}
.chart text{fill:var(--text);font-size:12px}.chart .grid{stroke:var(--grid)}
.chart .axis{stroke:var(--soft)}.chart .level{stroke:var(--c);stroke-width:1.5}
.chart .band{fill:var(--c);opacity:.12}
.chart .dashed{--c:var(--soft)}.chart .bold{--c:var(--text)}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}
.s5{--c:var(--s5)}
.chart polyline{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
.chart .bar{stroke:var(--c);stroke-width:1.5;fill:none}
.chart .dot{fill:var(--c);stroke:var(--bg);stroke-width:.8}
.chart .quiet{fill:transparent;stroke:none}
.chart .on{fill:var(--c);stroke:var(--text);stroke-width:1.5}
.chart text.name{fill:var(--c)}
figcaption{font-size:.86rem;color:var(--soft)}
.up{display:none}.key{display:none;flex-wrap:wrap;gap:.15rem 1rem;margin:.3rem 0 0;padding:0;
list-style:none}.key.all{display:flex}.key li{display:flex;gap:.4rem;align-items:center;
color:var(--text);min-width:0}
.key svg{flex:none;width:22px;height:12px;display:block}.key path{fill:var(--c);stroke:none}
.key line{stroke:var(--c);stroke-width:2}.key .dashed{--c:var(--soft)}.key .bold{--c:var(--text)}
#tip{position:fixed;z-index:9;pointer-events:none;max-width:min(20rem,calc(100vw - 16px));
background:var(--text);color:var(--bg);border-radius:6px;padding:.25rem .6rem;font-size:.85rem;
line-height:1.35;white-space:pre-line}
@media(max-width:600px){main{padding:1rem .9rem 3rem}h1{font-size:1.4rem}h2{font-size:1.15rem}
th,td{padding:.35rem .55rem}svg.chart{aspect-ratio:540/300}.chart text{font-size:16.5px}
.scale text{font-size:22px}.chart .under,.chart .tick{transform:translateY(2.5px)}
.chart .name,.chart .side,
.chart .less{display:none}
.up{display:block}.key{display:flex}}
@media print{nav,#tip{display:none}body{font-size:11pt}main{max-width:none;padding:0}
.scroll{overflow:visible}.wide{font-size:8pt}h2,h3{break-after:avoid}
figure,tr,.card{break-inside:avoid}details:not([open])>*{display:block}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
"""Colours: text has a contrast of at least 4.5 on its background, light and dark. The six colours
of curves differ by 12 or more (CIE76) for people with normal and with each kind of colour-blind
vision, in simulation; each curve also has a shape of its own. `tests/test_page.py` computes both.

On a phone a chart is cut behind its axes (the picture's aspect ratio with `slice`), and the names
of its curves are a list below it: text would be too small otherwise."""

SCRIPT = """
(() => {
const tip = document.createElement("div");
tip.id = "tip"; tip.setAttribute("role", "status"); tip.hidden = true;
document.body.append(tip);
let on = null, was = 0;
const hide = () => { if (on) on.classList.remove("on"); on = null; tip.hidden = true; };
const middle = dot => {
  const at = dot.getBoundingClientRect();
  return [at.left + at.width / 2, at.top + at.height / 2];
};
const far = (dot, x, y) => Math.hypot(middle(dot)[0] - x, middle(dot)[1] - y);
const show = dot => {
  if (dot === on) return;
  hide(); on = dot; dot.classList.add("on");
  // Points of several curves may be in one place.
  const here = dots(dot.closest("svg")).filter(one => far(one, ...middle(dot)) < 2);
  tip.textContent = here.map(one => one.dataset.tip).join("\\n"); tip.hidden = false;
  const at = dot.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const left = at.left + at.width / 2 - own.width / 2;
  const most = document.documentElement.clientWidth - own.width - 4;
  const above = at.top - own.height - 8;
  tip.style.left = Math.max(4, Math.min(left, most)) + "px";
  tip.style.top = (above < 4 ? at.bottom + 8 : above) + "px";
  was = at.left + at.top;
};
const chart = event => event.target.closest ? event.target.closest("svg.chart") : null;
const dots = svg => {
  svg.querySelectorAll(".dot title").forEach(title => title.remove());
  return [...svg.querySelectorAll(".dot")];
};
const near = event => {
  const svg = chart(event);
  if (!svg) { if (event.type === "pointerdown") hide(); return; }
  let best = null, least = 48;
  for (const dot of dots(svg)) {
    const away = far(dot, event.clientX, event.clientY);
    if (away < least) { least = away; best = dot; }
  }
  if (best) show(best); else hide();
};
document.addEventListener("pointermove", near);
document.addEventListener("pointerdown", near);
document.addEventListener("pointerout", event => {
  if (event.pointerType === "mouse" && chart(event) && !event.relatedTarget) hide();
});
document.addEventListener("pointerover", event => {
  if (event.pointerType === "mouse" && on && !chart(event)) hide();
});
document.addEventListener("focusout", hide);
document.addEventListener("scroll", () => {
  if (!on) return;
  const at = on.getBoundingClientRect();
  if (at.left + at.top !== was) hide();
}, true);
document.addEventListener("keydown", event => {
  const svg = chart(event);
  if (event.key === "Escape") hide();
  if (!svg) return;
  const all = dots(svg), now = all.indexOf(on);
  const to = { ArrowRight: now + 1, ArrowLeft: now < 0 ? all.length - 1 : now - 1,
               Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined || !all.length) return;
  event.preventDefault();
  show(all[Math.max(0, Math.min(to, all.length - 1))]);
});
})();
"""
"""Shows the values of a chart: under the pointer, at a touch, and with the arrow keys."""


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
