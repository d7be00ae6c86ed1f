/**
 * privrec-device: a model of PrivRec+ on one person's device. Nothing is sent.
 * @module
 */
import { readArchive } from "./archive.js";
import { readArrays } from "./arrays.js";
import { checkedCatalogue, encode, findItem } from "./catalogue.js";
import { PrivrecError, got } from "./errors.js";
import { checkParams, featuresOf, newScorer } from "./scores.js";

export { PrivrecError };

/** The formats that are read: 32-bit arrays, and compact ones. */
const PLAIN = 1;
const COMPACT = 2;
/** The most bytes of a model that is fetched. Chosen by hand. */
const LARGEST = 2 ** 29;
const STATE = "privrec-person";
/** The most letters of a saved state. Chosen by hand. */
const LONGEST_STATE = 2 ** 24;

/**
 * @typedef {import("./catalogue.js").Values} Values
 * @typedef {string | number} Name an item's id or title
 * @typedef {{ item: string, title: string, score: number, betterThan: number }} Recommendation
 *   `betterThan` is the share of the other items, not rated yet, that score less
 * @typedef {{ item: string, title: string, liked: boolean, effect: number }} Reason
 *   `effect` is how much lower the score would be without this item
 */

/**
 * Return the model in an export, from its bytes or its address.
 * @param {Uint8Array | ArrayBuffer | URL | string} source
 * @returns {Promise<Model>}
 */
export async function openModel(source) {
  const isAddress = typeof source === "string" || source instanceof URL;
  const where = isAddress ? String(source) : "this file";
  try {
    const content = isAddress ? await fetched(source) : source;
    // A view, because `slice` of Node's own kind of bytes does not copy.
    const bytes = ArrayBuffer.isView(content)
      ? new Uint8Array(content.buffer, content.byteOffset, content.byteLength)
      : new Uint8Array(content);
    return await readModel(/** @type {Uint8Array<ArrayBuffer>} */ (bytes));
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new PrivrecError(`${where} is not an exported model that can be read here (${why})`);
  }
}

/**
 * @param {URL | string} address
 * @returns {Promise<ArrayBuffer>}
 */
async function fetched(address) {
  const answer = await fetch(address);
  if (!answer.ok || !answer.body) throw new PrivrecError(`the server answers ${answer.status}`);
  let size = 0;
  const counted = new TransformStream({
    transform(chunk, controller) {
      size += chunk.length;
      if (size > LARGEST) throw new PrivrecError(`it has more than ${LARGEST} bytes`);
      controller.enqueue(chunk);
    },
  });
  return new Response(answer.body.pipeThrough(counted)).arrayBuffer();
}

/** @param {Uint8Array<ArrayBuffer>} bytes */
async function readModel(bytes) {
  const archive = await readArchive(bytes);
  const about = archive.json("model.json");
  const format = about?.format;
  if (format !== PLAIN && format !== COMPACT) {
    throw new PrivrecError(`it has format ${got(format)}; formats 1 and 2 are read`);
  }
  const { settings, privacy } = about;
  for (const part of [settings, privacy]) {
    if (!part || typeof part !== "object" || Array.isArray(part)) {
      throw new PrivrecError("it lacks settings or parameters");
    }
  }
  const catalogue = checkedCatalogue(archive.json("catalogue.json"));
  const params = readArrays(archive.members, format === COMPACT);
  if (!params.has("history/like")) {
    const recipe = got(settings.recipe);
    throw new PrivrecError(`${recipe} is no recipe of PrivRec+, and only those rank here`);
  }
  checkParams(params, catalogue);
  return new Model(catalogue, params, settings, privacy);
}

/** A released model: the catalogue, the run's settings, what it promises, and its parameters. */
export class Model {
  #rank;

  /**
   * @param {import("./catalogue.js").Catalogue} catalogue
   * @param {import("./scores.js").Params} params
   * @param {Record<string, any>} settings
   * @param {Record<string, any>} privacy
   */
  constructor(catalogue, params, settings, privacy) {
    this.catalogue = catalogue;
    this.settings = settings;
    this.privacy = privacy;
    /** The features of a person and of the moment that change lists. */
    this.features = featuresOf(params, catalogue);
    this.#rank = newScorer(params, catalogue);
  }

  /**
   * Return the device of a newcomer, with her items (by id or title) and features on it.
   * @param {{
   *   likes?: Name[], dislikes?: Name[], features?: Values, context?: Values,
   * }} [person]
   * @returns {Device}
   */
  device({ likes = [], dislikes = [], features = {}, context = {} } = {}) {
    for (const list of [likes, dislikes]) {
      if (!Array.isArray(list)) throw new PrivrecError(`items must be a list; got ${got(list)}`);
    }
    const liked = likes.map((name) => findItem(this.catalogue, name));
    const disliked = dislikes.map((name) => findItem(this.catalogue, name));
    const all = [...liked, ...disliked];
    const twice = all.find((item, k) => all.indexOf(item) < k);
    if (twice !== undefined) {
      throw new PrivrecError(`${got(this.catalogue.titles[twice])} was given more than once`);
    }
    return new Device(this, this.#rank, { liked, disliked, features, context });
  }

  /**
   * Return the device of a person whose state was saved, by this package or by privrec in Python.
   *
   * What this model does not know is left out: items, and values of features.
   * @param {string} text
   * @returns {Device}
   */
  restore(text) {
    const { likes, dislikes, features } = readState(text);
    const known = new Set(this.catalogue.items);
    /** @type {Values} */
    const kept = {};
    for (const [name, value] of Object.entries(features)) {
      try {
        encode(this.catalogue, "user", { [name]: value });
        kept[name] = value;
      } catch (error) {
        if (!(error instanceof PrivrecError)) throw error;
      }
    }
    return this.device({
      likes: likes.filter((item) => known.has(item)),
      dislikes: dislikes.filter((item) => known.has(item)),
      features: kept,
    });
  }
}

/**
 * Return a saved state; throw unless it is one.
 * @param {string} text
 * @returns {{ likes: string[], dislikes: string[], features: Values }}
 */
function readState(text) {
  /** @type {(list: unknown) => boolean} */
  const areItems = (list) =>
    Array.isArray(list) && list.every((item) => typeof item === "string");
  /** @type {any} */
  let found = null;
  try {
    if (text.length <= LONGEST_STATE) found = JSON.parse(text);
  } catch {
    // Not JSON: it is refused below.
  }
  const { likes, dislikes, features } = found ?? {};
  const isWhole =
    found?.is === STATE && areItems(likes) && areItems(dislikes) &&
    features && typeof features === "object" && !Array.isArray(features) &&
    new Set([...likes, ...dislikes]).size === likes.length + dislikes.length;
  if (!isWhole) throw new PrivrecError("this is not the saved state of a device");
  if (found.format !== 1) {
    throw new PrivrecError(`this state has format ${got(found.format)}; format 1 is read`);
  }
  return { likes, dislikes, features };
}

/** One person's device. It does not change: `update` returns another one. */
export class Device {
  #model;
  #rank;
  #person;
  /** @type {import("./scores.js").Ranking | undefined} */
  #ranking;

  /**
   * @param {Model} model
   * @param {(person: import("./scores.js").Person) => import("./scores.js").Ranking} rank
   * @param {{ liked: number[], disliked: number[], features: Values, context: Values }} person
   */
  constructor(model, rank, person) {
    const { catalogue } = model;
    this.#model = model;
    this.#rank = rank;
    this.#person = {
      likes: person.liked,
      dislikes: person.disliked,
      features: encode(catalogue, "user", person.features),
      context: encode(catalogue, "context", person.context),
    };
    /** The ids of the items liked, in their order. @type {readonly string[]} */
    this.likes = person.liked.map((item) => catalogue.items[item]);
    /** The ids of the items disliked. @type {readonly string[]} */
    this.dislikes = person.disliked.map((item) => catalogue.items[item]);
    /** @type {Readonly<Values>} */
    this.features = { ...person.features };
    /** @type {Readonly<Values>} */
    this.context = { ...person.context };
  }

  #ranked() {
    return (this.#ranking ??= this.#rank(this.#person));
  }

  /**
   * Return the best items that she has not rated, best first.
   * @param {number} [top]
   * @returns {Recommendation[]}
   */
  recommend(top = 10) {
    if (!Number.isInteger(top) || top < 1) {
      throw new PrivrecError(`\`top\` must be a whole number >= 1; got ${got(top)}`);
    }
    const scores = this.#ranked().scores.slice();
    for (const item of [...this.#person.likes, ...this.#person.dislikes]) scores[item] = -Infinity;
    const sorted = scores.slice().sort();
    const first = sorted.lastIndexOf(-Infinity) + 1;
    const least = sorted[Math.max(first, sorted.length - top)];
    const best = [];
    for (let k = 0; k < scores.length; k++) {
      if (scores[k] >= least && scores[k] > -Infinity) best.push(k);
    }
    best.sort((a, b) => scores[b] - scores[a] || a - b);
    const others = sorted.length - first - 1;
    const { items, titles } = this.#model.catalogue;
    return best.slice(0, top).map((k) => ({
      item: items[k],
      title: titles[k],
      score: scores[k],
      betterThan: others ? (lowerBound(sorted, scores[k]) - first) / others : 1,
    }));
  }

  /**
   * Return which of her items speak for an item, and how much; the strongest first.
   * @param {Name} name
   * @returns {Reason[]}
   */
  why(name) {
    const { catalogue } = this.#model;
    return this.#ranked()
      .effects(findItem(catalogue, name))
      .map(({ item, liked, effect }) => {
        return { item: catalogue.items[item], title: catalogue.titles[item], liked, effect };
      })
      .sort((a, b) => b.effect - a.effect);
  }

  /**
   * Return her device after a change. An item is liked, disliked or forgotten: the last counts.
   * @param {{
   *   likes?: Name[], dislikes?: Name[], forget?: Name[], features?: Values, context?: Values,
   * }} change a feature that is null is forgotten
   * @returns {Device}
   */
  update({ likes = [], dislikes = [], forget = [], features = {}, context = {} }) {
    const model = this.#model;
    const named = (/** @type {Name[]} */ names) =>
      names.map((name) => model.catalogue.items[findItem(model.catalogue, name)]);
    const [liked, disliked] = [named(likes), named(dislikes)];
    const changed = new Set([...liked, ...disliked, ...named(forget)]);
    return model.device({
      likes: [...this.likes.filter((item) => !changed.has(item)), ...liked],
      dislikes: [...this.dislikes.filter((item) => !changed.has(item)), ...disliked],
      features: { ...this.features, ...features },
      context: { ...this.context, ...context },
    });
  }

  /**
   * Return what she has and is as a text, to be kept or moved: her items and features, without the
   * context of the moment.
   * @returns {string}
   */
  save() {
    const given = Object.entries(this.features).filter(([, value]) => value != null);
    const { likes, dislikes } = this;
    return JSON.stringify({
      is: STATE, format: 1, likes, dislikes, features: Object.fromEntries(given),
    });
  }
}

/**
 * Return how many sorted numbers are below a number.
 * @param {Float32Array} sorted
 * @param {number} number
 */
function lowerBound(sorted, number) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < number) low = middle + 1;
    else high = middle;
  }
  return low;
}
