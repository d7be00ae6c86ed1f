"""What `privrec watch` serves: the page of a run and its figures, and the calculator.

The two pages: a run while it goes on, and the accountant as a form.
"""

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privrec.show.calculator import calculate, calculated, curves
from privrec.show.charts import line_chart, thinned
from privrec.show.page import Link, html_text, note, page
from privrec.show.report import Looks, validation_html
from privrec.show.server import HTML, Answer, Site, as_json
from privrec.show.status import Watched, unreadable

_STYLE = """<style>
#resume{white-space:pre-wrap}progress{width:100%;height:.8rem;accent-color:var(--good)}
.now dt{color:var(--soft);font-size:.9rem;margin-top:.8rem}.now dd{margin:0;font-size:1.06em}
.fields{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,17rem),1fr));gap:1rem}
.fields label,.fields legend{display:block;font-weight:600;padding:0}
fieldset{border:0;margin:0;padding:0;min-width:0}
.fields label.one{font-weight:400}
.fields input:not([type=radio]),.fields select{font:inherit;width:100%;padding:.35rem .5rem;
color:var(--text);background:var(--bg);border:1px solid var(--line);border-radius:6px}
.fields input:disabled{opacity:.5}
button{font:inherit;padding:.35rem 1.2rem;border-radius:6px;border:1px solid var(--link);
background:var(--link);color:var(--bg);cursor:pointer}[aria-busy]{opacity:.6}
.bad{color:var(--bad);display:block;font-size:.9rem}
.answer{padding:.2rem 1rem}.answer[aria-busy]:empty::before{content:"Computing …"}
#answer{min-height:5.5rem}.answer p{margin:.4rem 0}
.answer p:first-child{font-size:1.3rem;font-weight:600}
.many{display:flex;flex-wrap:wrap;gap:.6rem 1rem;align-items:center}
button.quiet{background:var(--card);color:var(--text);border-color:var(--line)}
</style>"""

_WATCH_SCRIPT = """
(() => {
const token = new URLSearchParams(location.search).get("token");
const ask = path => fetch(path + "?token=" + encodeURIComponent(token), { cache: "no-store" })
  .then(answer => answer.json());
const charts = document.getElementById("charts"), resume = document.getElementById("resume");
let drawn = -1;
const bar = (id, done, total) => {
  const it = document.getElementById(id);
  it.hidden = !total;
  if (!total) return;
  it.max = total;
  if (total === 1 && !done) it.removeAttribute("value"); else it.value = done;
};
const show = found => {
  document.body.dataset.state = found.state;
  for (const [name, text] of Object.entries(found.says)) {
    const it = document.querySelector('[data-says="' + name + '"]');
    if (it && it.textContent !== text) it.textContent = text;
  }
  document.title = found.says.rounds + " · " + found.says.title;
  resume.hidden = !found.resume;
  resume.textContent = found.resume || "";
  bar("rounds", found.round, found.of);
  const step = found.step || {};
  bar("step", step.done, step.of);
  document.getElementById("inside").hidden = !step.of;
};
const look = async () => {
  let wait = document.hidden ? 5000 : 1000;
  try {
    const found = await ask("status");
    show(found);
    // A chart that is being read stays as it is.
    if (found.drawn !== drawn && !charts.matches(":hover")) {
      charts.innerHTML = (await ask("charts")).charts;
      drawn = found.drawn;
    }
  } catch (error) {
    document.body.dataset.state = "gone";
    document.querySelector('[data-says="state"]').textContent =
      "'privrec watch' has ended. This is what was last known.";
    wait = 5000;
  }
  setTimeout(look, wait);
};
look();
})();
"""

_CALCULATOR_SCRIPT = """
(() => {
const token = new URLSearchParams(location.search).get("token");
const form = document.getElementById("form"), answer = document.getElementById("answer");
const charts = document.getElementById("charts"), fault = document.getElementById("fault");
const list = document.getElementById("list"), many = document.getElementById("many");
const together = document.getElementById("together"), own = document.getElementById("own");
let asked = 0, timer = 0, counted = 0, last = null, kept = [], seeded = false;
const keys = ["users", "cohort", "rounds", "noise_multiplier", "sampling", "mechanism"];
const ask = (path, query) => {
  query.set("token", token);
  return fetch(path + "?" + query, { cache: "no-store" }).then(it => it.json());
};
const tell = (place, found) => {
  place.className = "answer" + (found.says ? " privacy " + found.strength : "");
  place.replaceChildren(...(found.says || []).map(text => {
    const line = document.createElement("p");
    line.textContent = text;
    return line;
  }));
};
const fields = () => {
  for (const name of ["noise_multiplier", "epsilon"])
    form.elements[name].disabled = form.elements.given.value !== name;
};
const complain = (field, text) => {
  for (const it of document.querySelectorAll("[data-error]")) {
    it.textContent = it.dataset.error === field ? text : "";
    const input = form.elements[it.dataset.error];
    if (it.dataset.error === field) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
  fault.textContent = text && !document.querySelector('[data-error="' + field + '"]') ? text : "";
};
const compute = async () => {
  const mine = ++asked, query = new URLSearchParams(new FormData(form));
  query.delete("given");
  last = null;
  answer.setAttribute("aria-busy", "true");
  try {
    const found = await ask("calculated", query);
    if (mine !== asked) return;
    complain(found.field || "", found.error || "");
    tell(answer, found);
    if (found.says) {
      last = Object.fromEntries(keys.map(key => [key, query.get(key)]));
      last.noise_multiplier = found.document.noise_multiplier || last.noise_multiplier;
    }
    const drawn = found.error ? { charts: "" } : await ask("curves", query);
    if (mine !== asked) return;
    charts.innerHTML = drawn.charts;
  } catch (error) {
    if (mine === asked) complain("", "'privrec watch' has ended, or it is busy; try again.");
  }
  if (mine === asked) answer.removeAttribute("aria-busy");
};
const fail = text => { many.textContent = text; };
const add_up = async () => {
  const mine = ++counted, query = new URLSearchParams();
  list.closest("div").hidden = !kept.length;
  list.replaceChildren(...kept.map((one, place) => {
    const row = document.createElement("tr"), gone = document.createElement("button");
    for (const key of keys) row.insertCell().textContent =
      key === "noise_multiplier" ? Number(Number(one[key]).toPrecision(6)) : one[key];
    gone.type = "button"; gone.className = "quiet"; gone.textContent = "Remove";
    gone.addEventListener("click", () => { kept.splice(place, 1); add_up(); });
    row.insertCell().append(gone);
    return row;
  }));
  fail("");
  tell(together, {});
  if (!kept.length) { seeded = false; return; }
  query.set("releases", kept.map(it => keys.map(key => key + "=" + it[key]).join()).join(";"));
  query.set("delta", form.elements.delta.value);
  if (seeded) query.set("seeded", "1");
  together.setAttribute("aria-busy", "true");
  try {
    const found = await ask("calculated", query);
    if (mine !== counted) return;
    fail(found.error || "");
    tell(together, found);
  } catch (error) {
    if (mine === counted) fail("'privrec watch' has ended, or it is busy; try again.");
  }
  if (mine === counted) together.removeAttribute("aria-busy");
};
const load = async found => {
  kept = found.releases;
  seeded = found.seeded;
  await add_up();
  if (found.volunteers && !many.textContent)
    fail("Not counted: " + found.volunteers + " releases of volunteers, who are not covered.");
};
const release = line => {
  const { law, users, cohort } = line.sampling, z = line.noise_multiplier;
  const q = line.quantile_multiplier, bare = line.mechanism === "none";
  if (![users, cohort, z].every(Number.isFinite)) throw new TypeError();
  const noise = q === null ? z : z && q ? 1 / Math.hypot(1 / z, 1 / q) : 0;
  return { users, cohort, rounds: 1, noise_multiplier: noise, sampling: law,
           mechanism: bare ? "gaussian" : line.mechanism };
};
const read = text => {
  const found = new Map();
  let volunteers = 0, of_seed = false;
  text.split("\\n").slice(0, -1).forEach((text, n) => {
    try {
      const line = JSON.parse(text), one = release(line), key = JSON.stringify(one);
      if (line.people === "volunteers") { volunteers += 1; return; }
      of_seed ||= line.noise === "seeded";
      if (found.has(key)) found.get(key).rounds += 1; else found.set(key, one);
    } catch (error) { throw new Error("Line " + (n + 1) + " of the file is no release."); }
  });
  if (!found.size) throw new Error("The file has no release.");
  return { releases: [...found.values()], seeded: of_seed, volunteers };
};
document.getElementById("add").addEventListener("click", () => {
  if (!last) { fail("The release above is not complete."); return; }
  kept.push(last);
  add_up();
});
document.getElementById("clear").addEventListener("click", () => { kept = []; add_up(); });
document.getElementById("ledger").addEventListener("change", async event => {
  const [file] = event.target.files;
  if (!file) return;
  try {
    if (file.size > 5e7) throw new Error("The file is too large.");
    await load(read(await file.text()));
  } catch (error) { fail(error.message); }
  event.target.value = "";
});
if (own) own.addEventListener("click", async () => {
  try { await load(await ask("releases", new URLSearchParams())); }
  catch (error) { fail("'privrec watch' has ended."); }
});
form.elements.delta.addEventListener("change", add_up);
form.addEventListener("submit", event => { event.preventDefault(); compute(); });
form.addEventListener("input", () => {
  fields();
  clearTimeout(timer);
  timer = setTimeout(compute, 400);
});
fields();
compute();
})();
"""


def watch_page(run: str, says: dict[str, str], links: list[Link]) -> str:
    """Return the page of a run; `says` is what its places show until the script has asked."""

    def place(name: str) -> str:
        return f'<span data-says="{name}">{html_text(says[name])}</span>'

    def row(name: str, shown: str, more: str = "") -> str:
        return f"<div{more}><dt>{name}</dt><dd>{shown}</dd></div>"

    bar = '<progress id="{0}" aria-label="{0}" hidden></progress>'
    listed = [
        row("Rounds", place("rounds") + bar.format("rounds")),
        row("Now", place("step") + bar.format("step"), ' id="inside" hidden'),
        row("Time left", place("left")),
        row("Privacy spent", place("privacy")),
        row("Validation", place("validation")),
        row("Memory", place("memory")),
    ]
    parts = [
        _STYLE,
        f"<h1>{place('title')}</h1>",
        f'<p class="lead" role="status">{place("state")}</p><pre id="resume" hidden></pre>',
        f'<dl class="now">{"".join(listed)}</dl>',
        '<div id="charts"></div>',
        note(
            f"This page reads the folder {run} and changes nothing in it. It shows figures that are"
            " computed from raw data: no guarantee covers it, and it is not for release."
        ),
        "<noscript><p>This page needs its script.</p></noscript>",
    ]
    return page(f"privrec watch {run}", parts, links=links, script=_WATCH_SCRIPT)


def run_charts(losses: list[tuple[float, float]], looks: Mapping[str, Looks]) -> str:
    """Return the curves of a run so far; `looks` at validation people are by k."""
    curves = {
        f"Hits@{k}": (thinned(looks[k][0]), looks[k][1])
        for k in sorted(looks, key=lambda k: k.rjust(9), reverse=True)
    }
    parts = []
    if chart := validation_html(curves, y_label="hits on validation people"):
        parts.append(f"<h2>Validation</h2>{chart}")
    if chart := line_chart({"loss": thinned(losses)}, x_label="rounds", y_label="loss"):
        parts.append(f"<h2>Loss on the devices</h2>{chart}")
    return "".join(parts)


def _field(name: str, label: str, hint: str, control: str) -> str:
    return (
        f'<div><label for="{name}">{label}</label>{control}'
        f'<span class="note">{hint}</span>'
        f'<span class="bad" role="alert" data-error="{name}"></span></div>'
    )


def _input(name: str, value: str) -> str:
    return (
        f'<input id="{name}" name="{name}" value="{value}" inputmode="decimal" autocomplete="off">'
    )


def _select(name: str, words: tuple[str, ...]) -> str:
    options = "".join(f"<option>{word}</option>" for word in words)
    return f'<select id="{name}" name="{name}">{options}</select>'


_KEYS = ("people", "cohort", "rounds", "noise multiplier", "cohorts", "noise", "")


def _list_html(*, has_run: bool) -> str:
    """Return the part of the page where several releases are added up."""
    own = '<button type="button" class="quiet" id="own">Load this run\'s ledger</button>'
    head = "".join(f'<th scope="col">{name}</th>' for name in _KEYS)
    return (
        "<h2>Several releases together</h2>"
        "<p>Stages and runs on the same people add up. Put releases on the list, or load a"
        " <code>ledger.jsonl</code>. It is read in this page; <code>privrec privacy spent</code>"
        " also checks that no line was changed or is missing.</p>"
        '<p class="many"><button type="button" id="add">Add the release above</button>'
        '<label>A ledger: <input type="file" id="ledger" accept=".jsonl"></label>'
        f"{own if has_run else ''}"
        '<button type="button" class="quiet" id="clear">Empty the list</button></p>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Releases" hidden>'
        f'<table class="wide"><thead><tr>{head}</tr></thead><tbody id="list"></tbody></table></div>'
        '<p class="bad" id="many" role="alert"></p>'
        '<div class="answer" id="together" role="status"></div>'
    )


def calculator_page(links: list[Link], *, has_run: bool = False) -> str:
    """Return the form of the accountant; beside a run, its ledger can be loaded."""
    radio = "".join(
        f'<label class="one"><input type="radio" name="given" value="{value}"{checked}> {text}'
        "</label>"
        for value, text, checked in (
            ("noise_multiplier", "the noise, and ε is wanted", " checked"),
            ("epsilon", "ε, and the noise is wanted", ""),
        )
    )
    fields = [
        _field("users", "People", "who train", _input("users", "4800")),
        _field("cohort", "Cohort", "people per round; under poisson on average",
               _input("cohort", "30")),
        _field("rounds", "Rounds", "each is one release", _input("rounds", "1000")),
        f"<fieldset><legend>Given is</legend>{radio}</fieldset>",
        _field("noise_multiplier", "Noise multiplier",
               "noise on the sum, divided by what one person can move it by",
               _input("noise_multiplier", "1")),
        _field("epsilon", "ε", "the budget to keep within", _input("epsilon", "8")),
        _field("delta", "δ", "below one over the number of people", _input("delta", "1e-6")),
        _field("sampling", "Cohorts", "poisson: add or remove one person; fixed: replace one",
               _select("sampling", ("poisson", "fixed"))),
        _field("mechanism", "Noise", "gaussian for an L2 bound, laplace for an L1 bound",
               _select("mechanism", ("gaussian", "laplace"))),
    ]  # fmt: skip
    parts = [
        _STYLE,
        "<h1>What does training cost in privacy?</h1>",
        '<p class="lead">What <code>privrec privacy</code> computes. Nothing is sent anywhere.</p>',
        f'<form id="form" autocomplete="off"><div class="fields">{"".join(fields)}</div>',
        '<p><button type="submit">Compute</button></p></form>',
        '<p class="bad" id="fault" role="alert"></p>',
        '<div class="answer" id="answer" role="status"></div>',
        '<div id="charts"></div>',
        _list_html(has_run=has_run),
        "<noscript><p>This page needs its script.</p></noscript>",
    ]
    return page("The cost of training in privacy", parts, links=links, script=_CALCULATOR_SCRIPT)


REFRESH_SECONDS = 0.5
"""The folder is looked at no more often than this, whoever asks. Chosen by hand."""
QUIET_SECONDS = 5.0
"""The folder is looked at so often if nobody asks: the first answer after a pause is not older."""


class _Refreshed:
    """The answers about a run, made again in a thread: soon after someone has asked, or later."""

    def __init__(self, watched: Watched) -> None:
        self._watched, self._asked = watched, threading.Event()
        self._drawn = -1
        self._charts = b""
        self._refresh()
        threading.Thread(target=self._keep_fresh, daemon=True).start()

    def status(self) -> bytes:
        self._asked.set()
        return self._status

    def charts(self) -> bytes:
        return self._charts

    def releases(self) -> bytes:
        return self._releases

    def _keep_fresh(self) -> None:
        while True:
            self._asked.wait(QUIET_SECONDS)
            self._asked.clear()
            self._refresh()
            time.sleep(REFRESH_SECONDS)

    def _refresh(self) -> None:
        """Look again. Whatever goes wrong, the page says so, and the next look may succeed."""
        try:
            found = self._watched.look()
            if self._watched.drawn != self._drawn:
                charts = run_charts(self._watched.losses, self._watched.looks)
                self._charts = as_json({"charts": charts}).wire
                self._drawn = self._watched.drawn
            status = _as_status(found)
        except Exception as error:
            found = unreadable(self._watched.folder.path, error)
            status = _as_status(found)
        self._releases = as_json(self._watched.releases()).wire
        self.says: dict[str, str] = found["says"]
        self._status = status


def _as_status(found: dict[str, Any]) -> bytes:
    return Answer(json.dumps(found, allow_nan=False).encode() + b"\n").wire


def site_of(run: Path | None) -> Site:
    """Return the pages of a run and the calculator, or the calculator alone."""
    questions = {"/calculate": calculate, "/calculated": calculated, "/curves": curves}
    site = Site(pages={}, questions=questions)
    ask = f"?token={site.token}"
    links = [("Run", f"./{ask}"), ("Calculator", f"calculator{ask}")] if run is not None else []
    form = Answer(calculator_page(links, has_run=run is not None).encode(), HTML).wire
    pages = {"/calculator": lambda: form, "/": lambda: form}
    if run is not None:
        fresh = _Refreshed(Watched(run))
        first = Answer(watch_page(str(run), fresh.says, links).encode(), HTML).wire
        pages |= {"/": lambda: first, "/status": fresh.status, "/charts": fresh.charts}
        pages["/releases"] = fresh.releases
    return Site(pages=pages, questions=site.questions, token=site.token)
