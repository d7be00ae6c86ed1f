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
  tip.textContent = here.map(one => one.dataset.tip).join("\n"); tip.hidden = false;
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
