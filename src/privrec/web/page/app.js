/** The page: a model on this device, what its owner likes, and the list for her. */
import { readArchive } from "./device/archive.js";
import { openModel } from "./device/index.js";
import { deleteAll, read, write } from "./store.js";

const AT_ONCE = 12;
const MATCHES = 6;
const REASONS = 5;

/** @type {(id: string) => any} */
const $ = (id) => document.getElementById(id);
/** @type {any} */
let messages;
let language = "en";
/** @type {any} */
let about;
/** @type {import("./device/index.js").Model} */
let model;
/** @type {import("./device/index.js").Device} */
let me;
/** @type {Map<string, Blob>} */
let pictures = new Map();
/** @type {string[]} the titles, for the search */
let plainTitles = [];
/** @type {Map<string, number>} the place of each item */
const places = new Map();
let shown = AT_ONCE;
let isStored = true;

/** @type {(key: string, values?: Record<string, unknown>) => string} */
const say = (key, values = {}) =>
  messages[language][key].replace(/\{(\w+)\}/g, (_, name) => String(values[name]));

/**
 * Return an element; text is set as text, so that nothing from data is read as HTML.
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {(Node | string)[]} [children]
 * @returns {any}
 */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) /** @type {any} */ (element)[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat());
  return element;
}

/** @param {string} name */
function sign(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "sign");
  svg.append(use);
  return svg;
}

/** @type {(text: string) => string} */
const plain = (text) => text.normalize("NFD").replace(/\p{Mn}/gu, "").toLowerCase();

/** Return a picture, or a tile with the first letters where there is none. @param {number} place */
function tile(place) {
  const { items, titles } = model.catalogue;
  const blob = pictures.get(items[place]);
  if (blob) {
    const url = URL.createObjectURL(blob);
    const forget = () => URL.revokeObjectURL(url);
    return make("img", { className: "tile", src: url, alt: "", onload: forget, onerror: forget });
  }
  const words = titles[place].match(/\p{L}[\p{L}\p{N}]*/gu) ?? [titles[place].trim() || "?"];
  const telling = words.filter((word, k) => k > 0 || words.length < 3 || word.length > 3);
  const letters = telling.slice(0, 2).map((word) => [...word][0].toUpperCase()).join("");
  const found = make("span", { className: "tile", ariaHidden: "true" }, letters);
  let hash = 0;
  for (const letter of titles[place]) hash = (hash * 31 + (letter.codePointAt(0) ?? 0)) % 360;
  found.style.setProperty("--hue", String(hash));
  return found;
}

/** Return the values of an item's features, as small print. @param {number} place */
function details(place) {
  const words = [];
  for (const feature of model.catalogue.features) {
    if (feature.side !== "item" || feature.kind === "numeric") continue;
    const { codes, weights } = model.catalogue.bags[`embed/item.${feature.name}`];
    codes[place].forEach((code, k) => weights[place][k] && words.push(feature.values[code]));
  }
  return words.slice(0, 4).join(" · ");
}

/** @param {string} item */
const placeOf = (item) => /** @type {number} */ (places.get(item));

/**
 * Return the buttons with which an item is liked, disliked or forgotten.
 * @param {string} item
 */
function buttons(item) {
  const title = model.catalogue.titles[placeOf(item)];
  const liked = me.likes.includes(item);
  const disliked = me.dislikes.includes(item);
  /** @type {(kind: string, pressed: boolean, change: any) => any} */
  const button = (kind, pressed, change) =>
    make(
      "button",
      {
        type: "button", className: `round ${kind}`, ariaPressed: String(pressed), title: say(kind),
        ariaLabel: say(`${kind}It`, { title }),
        onclick: () => update(pressed ? { forget: [item] } : change),
      },
      sign(kind),
    );
  return make("span", { className: "buttons" },
    button("like", liked, { likes: [item] }), button("dislike", disliked, { dislikes: [item] }));
}

/** Return a row with an item's picture, title and buttons. @param {string} item */
function row(item) {
  const place = placeOf(item);
  const words = make("span", { className: "words" },
    make("span", { className: "title" }, model.catalogue.titles[place]),
    make("span", { className: "small" }, details(place)));
  return make("li", { className: "row" }, tile(place), words, buttons(item));
}

function showMatches() {
  const query = plain($("query").value.trim());
  const found = [];
  if (query) {
    for (let place = 0; place < plainTitles.length; place++) {
      const at = plainTitles[place].indexOf(query);
      if (at < 0) continue;
      const start = at === 0 ? 0 : /[\p{L}\p{N}]/u.test(plainTitles[place][at - 1]) ? 2 : 1;
      found.push({ place, start });
    }
    found.sort((a, b) => a.start - b.start || a.place - b.place);
  }
  const { items } = model.catalogue;
  $("matches").replaceChildren(...found.slice(0, MATCHES).map(({ place }) => row(items[place])));
  const none = query && !found.length;
  if (none) {
    const words = say("nothing", { query: $("query").value.trim() });
    $("matches").replaceChildren(make("li", { className: "note" }, words));
  }
  $("said").textContent = query ? say("found", { n: found.length }) : "";
}

function showMine() {
  const groups = [["liked", me.likes], ["disliked", me.dislikes]].filter(([, items]) => items.length);
  $("mine").replaceChildren(
    ...groups.flatMap(([kind, items]) => [
      make("h3", {}, say(/** @type {string} */ (kind))),
      make("ul", { className: `chips ${kind}` },
        [.../** @type {string[]} */ (items)].reverse().map((item) => {
          const title = model.catalogue.titles[placeOf(item)];
          const forget = make("button",
            { type: "button", className: "chip", ariaLabel: say("forgetIt", { title }),
              title: say("forget"), onclick: () => update({ forget: [item] }) },
            make("span", {}, title), sign("remove"));
          return make("li", {}, forget);
        })),
    ]),
  );
}

function showList() {
  const found = me.recommend(Math.min(shown, model.catalogue.items.length));
  const count = me.likes.length + me.dislikes.length;
  $("list-note").textContent = !found.length ? say("empty")
    : count ? say("listYours", { n: count }) : say("listNew");
  $("list").replaceChildren(...found.map(({ item, title, score }, k) => {
    const panel = make("div", { className: "why", id: `why-${k}`, hidden: true });
    const ask = make("button",
      { type: "button", className: "ask", ariaExpanded: "false", ariaLabel: say("whyIt", { title }),
        "aria-controls": panel.id, onclick: () => {
          const open = ask.getAttribute("aria-expanded") !== "true";
          ask.setAttribute("aria-expanded", String(open));
          panel.hidden = !open;
          if (open) panel.replaceChildren(...reasons(item));
        } },
      say("why"));
    const place = placeOf(item);
    const small = details(place);
    return make("li", { className: "found", "data-item": item, "data-score": String(score) },
      make("span", { className: "place", ariaHidden: "true" }, String(k + 1)), tile(place),
      make("div", { className: "words" }, make("h3", { className: "title" }, title),
        make("p", { className: "small" }, small), ask),
      buttons(item), panel);
  }));
  const rest = model.catalogue.items.length - count;
  $("more").hidden = shown >= rest;
}

/** Return what of hers speaks for an item, as bars. @param {string} item */
function reasons(item) {
  const all = me.why(item);
  const strong = [...all].sort((a, b) => Math.abs(b.effect) - Math.abs(a.effect));
  const most = Math.abs(strong[0]?.effect ?? 0);
  const told = strong.filter(({ effect }) => Math.abs(effect) >= 0.05 * most && most > 0);
  if (!told.some(({ effect }) => effect > 0)) return [make("p", {}, say("popular"))];
  const bars = told.slice(0, REASONS).sort((a, b) => b.effect - a.effect).map((reason) => {
    const bar = make("span", { className: reason.effect > 0 ? "share" : "share less" });
    bar.style.setProperty("--share", String(Math.abs(reason.effect) / most));
    const notes = [
      ...(reason.liked ? [] : [say("notLiked")]), ...(reason.effect > 0 ? [] : [say("against")]),
    ];
    const name = notes.length ? `${reason.title} (${notes.join(", ")})` : reason.title;
    const figure = `${reason.effect > 0 ? "+" : "−"}${Math.abs(reason.effect).toPrecision(2)}`;
    return make("li", { "data-reason": reason.item },
      make("span", { className: "name" }, name),
      make("span", { className: "effect" }, figure), bar);
  });
  return [make("p", { className: "small" }, say("because")), make("ul", {}, bars)];
}

/** Show fields for the features of a person, and of the moment. */
function showFeatures() {
  const given = model.features;
  $("about-you").hidden = !given.length;
  $("features").replaceChildren(...given.map((feature) => {
    const isOwn = feature.side === "user";
    const { name, kind, values } = feature;
    /** @type {(value: any) => void} */
    const change = (value) => update(isOwn ? { features: { [name]: value } } : { context: { [name]: value } });
    const now = (isOwn ? me.features : me.context)[name];
    const label = isOwn ? name : say("now", { name });
    if (kind === "multi") {
      const list = Array.isArray(now) ? now.map(String) : [];
      return make("fieldset", {}, make("legend", {}, label), values.map((value) => {
        const box = make("input", { type: "checkbox", checked: list.includes(value) });
        box.onchange = () => {
          const rest = ((isOwn ? me.features : me.context)[name] ?? []);
          const others = /** @type {string[]} */ (rest).filter((it) => it !== value);
          change(box.checked ? [...others, value] : others);
        };
        return make("label", {}, box, value);
      }));
    }
    if (kind === "numeric") {
      const field = make("input", { type: "number", step: "any", value: now ?? "" });
      field.onchange = () => change(field.value === "" ? null : Number(field.value));
      return make("label", {}, make("span", {}, label), field);
    }
    const field = make("select", {}, make("option", { value: "" }, say("none")),
      values.map((value) => make("option", { value }, value)));
    field.value = now ?? "";
    field.onchange = () => change(field.value || null);
    return make("label", {}, make("span", {}, label), field);
  }));
}

function showPromise() {
  const { strength, text, full, epsilon, delta, place, scale, not_covered: uncovered } = about.promise;
  const title = say(`${strength}-title`);
  const figure = make("span", { className: "epsilon" }, `ε\u00a0=\u00a0${epsilon}`);
  $("strength").replaceChildren(title, ...(epsilon === null ? [] : [figure]));
  $("strength").title = delta === null ? "" : `δ = ${delta}`;
  $("strength").dataset.strength = strength;
  $("scale").hidden = place === null;
  $("scale").style.setProperty("--place", String(place));
  $("statement").textContent = text;
  $("full").textContent = full;
  $("uncovered").replaceChildren(...uncovered.map((/** @type {string} */ line) => make("li", {}, line)));
  $("scale-note").textContent = scale;
}

/** Count each request that the browser lists; an address that is no fixed file counts as sent. */
function watchRequests() {
  const own = new Set(about.files.map((/** @type {string} */ file) => new URL(file, location.href).href));
  const seen = { fixed: 0, others: 0, bytes: 0 };
  const show = () => {
    $("sent").textContent = say("bytes", { n: seen.bytes });
    $("requests").textContent = say(seen.others ? "requestsMore" : "requests",
      { n: seen.fixed, more: seen.others });
  };
  new PerformanceObserver((list) => {
    for (const { name } of list.getEntries()) {
      if (name.startsWith("blob:")) continue; // A picture that is here already.
      if (own.has(name)) seen.fixed++;
      else {
        seen.others++;
        seen.bytes += new TextEncoder().encode(name).length;
      }
    }
    show();
  }).observe({ type: "resource", buffered: true });
  return show;
}
/** @type {() => void} */
let showRequests = () => {};

function showAll() {
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll("[data-text]")) {
    element.textContent = say(/** @type {HTMLElement} */ (element).dataset.text ?? "");
  }
  $("query").placeholder = say("searchHint");
  $("language").value = language;
  const size = (about.bytes / 1e6).toLocaleString(language, { maximumFractionDigits: 1 });
  const items = model.catalogue.items.length.toLocaleString(language);
  $("facts").textContent = say("facts", { items, size }) + (isStored ? "" : ` ${say("notStored")}`);
  showFeatures();
  showPromise();
  showRequests();
  showPerson();
}

function showPerson() {
  showMatches();
  showMine();
  showList();
}

/** Draw again, and leave the focus where it was: at the same button of the same item, or its list. */
function redraw() {
  const before = /** @type {HTMLElement} */ (document.activeElement);
  const label = before?.ariaLabel;
  const home = before?.closest("#matches, #mine, #list")?.id;
  showPerson();
  if (!home || document.contains(before)) return;
  const again = [...$(home).querySelectorAll("button")].find((it) => it.ariaLabel === label);
  (again ?? (home === "list" ? $("list") : $("query"))).focus({ preventScroll: true });
}

/** @param {any} change */
function update(change) {
  me = me.update(change);
  keep("person", me.save());
  $("begin").hidden = true;
  $("done").textContent = "";
  redraw();
}

/** @type {(key: string, value: string) => Promise<void>} */
async function keep(key, value) {
  try {
    await write(key, value);
    document.body.dataset.kept = key === "person" ? value : document.body.dataset.kept;
  } catch {
    isStored = false;
  }
}

function listen() {
  $("query").oninput = showMatches;
  $("more").onclick = () => {
    const next = shown;
    shown += AT_ONCE;
    showList();
    $("list").children[next]?.querySelector("button")?.focus();
  };
  $("language").onchange = () => {
    language = $("language").value;
    keep("language", language);
    showAll();
  };
  $("keep").onclick = () => {
    const url = URL.createObjectURL(new Blob([me.save()], { type: "application/json" }));
    make("a", { href: url, download: "my-list.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    $("done").textContent = say("kept");
  };
  $("take").onchange = async () => {
    const [file] = $("take").files;
    if (!file) return;
    try {
      me = model.restore(await file.text());
      await keep("person", me.save());
      showAll();
      $("done").textContent = say("taken");
    } catch (error) {
      $("done").textContent = /** @type {Error} */ (error).message;
    }
    $("take").value = "";
  };
  $("delete").onclick = () => $("sure").showModal();
  $("no").onclick = () => $("sure").close();
  $("yes").onclick = async () => {
    $("sure").close();
    await deleteAll();
    me = model.device();
    delete document.body.dataset.kept;
    shown = AT_ONCE;
    $("query").value = "";
    showAll();
    $("done").textContent = say("deleted");
  };
}

/** Return what was kept, or nothing where the browser lets nothing be kept. @param {string} key */
async function kept(key) {
  try {
    return await read(key);
  } catch {
    isStored = false;
    return undefined;
  }
}

/** Return the pictures of all items. They are one file, so that nobody learns which are shown. */
async function readPictures() {
  const { members } = await readArchive(new Uint8Array(await (await fetch("pictures.zip")).arrayBuffer()));
  const kinds = about.pictures;
  return new Map([...members].map(([name, bytes]) => {
    const [item, type] = kinds[name];
    return [item, new Blob([bytes], { type })];
  }));
}

async function start() {
  const json = async (/** @type {string} */ name) => (await fetch(name)).json();
  [messages, about] = await Promise.all([json("messages.json"), json("about.json")]);
  const wanted = (await kept("language")) ?? navigator.languages.map((it) => it.slice(0, 2)).find((it) => it in messages);
  language = wanted in messages ? wanted : "en";
  $("begin").textContent = say("loading");
  document.title = $("name").textContent = about.name;
  model = await openModel(new URL("model.privrec", location.href));
  if (about.pictures) pictures = await readPictures();
  model.catalogue.items.forEach((item, place) => places.set(item, place));
  plainTitles = model.catalogue.titles.map(plain);
  me = model.device();
  const state = await kept("person");
  let isLost = false;
  try {
    if (state) {
      me = model.restore(state);
      document.body.dataset.kept = state;
    }
  } catch {
    isLost = true;
  }
  listen();
  showRequests = watchRequests();
  showAll();
  $("begin").textContent = isLost ? say("lost") : "";
  $("begin").hidden = !isLost;
  $("app").hidden = false;
  document.body.dataset.state = "ready";
  if ("serviceWorker" in navigator) {
    await navigator.serviceWorker.register("worker.js").catch(() => {});
  }
}

start().catch((error) => {
  $("begin").textContent = error.message;
  $("begin").className = "problem";
});
