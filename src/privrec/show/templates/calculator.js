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
  let of_seed = false;
  text.split("\n").slice(0, -1).forEach((text, n) => {
    try {
      const line = JSON.parse(text), one = release(line), key = JSON.stringify(one);
      if (line.people !== "everybody") throw new TypeError();
      of_seed ||= line.noise === "seeded";
      if (found.has(key)) found.get(key).rounds += 1; else found.set(key, one);
    } catch (error) { throw new Error("Line " + (n + 1) + " of the file is no release."); }
  });
  if (!found.size) throw new Error("The file has no release.");
  return { releases: [...found.values()], seeded: of_seed };
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
