(() => {
const token = new URLSearchParams(location.search).get("token");
const charts = document.getElementById("charts"), nodes = document.getElementById("nodes");
const resume = document.getElementById("resume");
let drawn = "", listed = "";
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
    const answer = await fetch("status?token=" + encodeURIComponent(token), { cache: "no-store" });
    const found = await answer.json();
    show(found);
    if (found.nodes !== listed) nodes.innerHTML = listed = found.nodes;
    // A chart that is being read stays as it is.
    if (found.charts !== drawn && !charts.matches(":hover"))
      charts.innerHTML = drawn = found.charts;
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
