"""The two pages: a run while it goes on, and the accountant as a form."""

from collections.abc import Mapping

from privrec.show.charts import line_chart, thinned
from privrec.show.page import Link, html_text, note, page
from privrec.show.sections import Looks, validation_html

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
#answer{min-height:5.5rem}#answer[aria-busy]:empty::before{content:"Computing …"}
#answer p:first-child{font-size:1.3rem;font-weight:600;margin:.4rem 0}
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
let asked = 0, timer = 0;
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
  query.delete("given"); query.set("token", token);
  answer.setAttribute("aria-busy", "true");
  try {
    const ask = path => fetch(path + "?" + query, { cache: "no-store" }).then(it => it.json());
    const found = await ask("calculated");
    if (mine !== asked) return;
    complain(found.field || "", found.error || "");
    answer.replaceChildren(...(found.says || []).map(text => {
      const line = document.createElement("p");
      line.textContent = text;
      return line;
    }));
    const drawn = found.error ? { charts: "" } : await ask("curves");
    if (mine !== asked) return;
    charts.innerHTML = drawn.charts;
  } catch (error) {
    if (mine === asked) complain("", "'privrec watch' has ended, or it is busy; try again.");
  }
  if (mine === asked) answer.removeAttribute("aria-busy");
};
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


def calculator_page(links: list[Link]) -> str:
    """Return the form of the accountant."""
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
        '<p class="bad" id="fault" role="alert"></p><div id="answer" role="status"></div>',
        '<div id="charts"></div>',
        "<noscript><p>This page needs its script.</p></noscript>",
    ]
    return page("The cost of training in privacy", parts, links=links, script=_CALCULATOR_SCRIPT)
