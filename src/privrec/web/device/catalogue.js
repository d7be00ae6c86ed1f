import { PrivrecError, got, safeText } from "./errors.js";

/**
 * A feature of people, of items or of the moment (docs/export.md).
 * @typedef {{
 *   name: string, side: "user" | "item" | "context", kind: "categorical" | "multi" | "numeric",
 *   values: string[], mean: number, scale: number,
 * }} Feature
 * @typedef {{ codes: number[][], weights: number[][] }} Bag
 * @typedef {{
 *   name: string, items: string[], titles: string[], features: Feature[],
 *   bags: Record<string, Bag>,
 * }} Catalogue
 * @typedef {string | number | boolean | (string | number)[] | null | undefined} Value
 * @typedef {Record<string, Value>} Values
 */

/** @param {string} why */
const fault = (why) => new PrivrecError(`catalogue.json is not a whole catalogue (${why})`);
/** @param {unknown} list */
const areTexts = (list) => Array.isArray(list) && list.every((word) => typeof word === "string");
/** @param {unknown} value */
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const FLOAT_MAX = (2 - 2 ** -23) * 2 ** 127;

/** @param {Feature} feature */
export const rowsOf = (feature) => (feature.kind === "numeric" ? 1 : feature.values.length);

/**
 * Return a catalogue with titles that are safe to show; throw unless it is whole.
 * @param {any} found a JSON document
 * @returns {Catalogue}
 */
export function checkedCatalogue(found) {
  const { items, titles, features, bags } = found ?? {};
  if (!areTexts(items) || !areTexts(titles)) throw fault("items and titles must be lists of texts");
  if (items.length !== titles.length || !items.length) {
    throw fault("items and titles differ in number, or there are none");
  }
  if (!isNumber(found.positive_above)) throw fault("positive_above is not a finite number");
  if (!Array.isArray(features) || !features.every(isFeature)) throw fault("a feature is none");
  const ofItems = features.filter((feature) => feature.side === "item");
  const tables = ofItems.map((feature) => `embed/item.${feature.name}`);
  const given = bags && typeof bags === "object" ? Object.keys(bags) : null;
  if (!given || `${[...given].sort()}` !== `${[...new Set(tables)].sort()}`) {
    throw fault("the items' features are not those of the schema");
  }
  ofItems.forEach((feature, k) => checkBag(bags[tables[k]], feature, items.length));
  const name = safeText(String(found.name));
  return { name, items, titles: titles.map(safeText), features, bags };
}

/** @param {any} it */
function isFeature(it) {
  return (
    it && typeof it.name === "string" && areTexts(it.values) &&
    ["user", "item", "context"].includes(it.side) &&
    ["categorical", "multi", "numeric"].includes(it.kind) &&
    isNumber(it.mean) && isNumber(it.scale) && it.scale !== 0
  );
}

/**
 * @param {any} bag
 * @param {Feature} feature
 * @param {number} count
 */
function checkBag(bag, feature, count) {
  const { codes, weights } = bag ?? {};
  const both = [codes, weights];
  const width = codes?.[0]?.length;
  const most = Math.max(rowsOf(feature), 1);
  /** @type {(row: any) => boolean} */
  const isRow = (row) => Array.isArray(row) && row.length === width && row.every(isNumber);
  if (!both.every((table) => Array.isArray(table) && table.length === count && table.every(isRow))) {
    throw fault(`${got(feature.name)} has not one row for each item`);
  }
  for (let k = 0; k < count; k++) {
    for (let j = 0; j < width; j++) {
      const code = codes[k][j];
      if (!(code >= 0 && code < most && Number.isInteger(code))) {
        throw fault(`${got(feature.name)} has codes outside of its vocabulary`);
      }
      if (Math.abs(weights[k][j]) > FLOAT_MAX) throw fault(`${got(feature.name)} is infinite`);
    }
  }
}

/**
 * Return the position of the item with this id or title; case does not matter for titles.
 * @param {Catalogue} catalogue
 * @param {unknown} name
 * @returns {number}
 */
export function findItem(catalogue, name) {
  if (typeof name !== "string" && typeof name !== "number") {
    throw new PrivrecError(`an item is given by its id or title; got ${got(name)}`);
  }
  const text = String(name);
  const id = catalogue.items.indexOf(text);
  if (id >= 0) return id;
  for (const spelt of [(/** @type {string} */ it) => it, folded]) {
    const wanted = spelt(text);
    const places = [...catalogue.titles.keys()].filter((k) => spelt(catalogue.titles[k]) === wanted);
    if (places.length > 1) {
      const ids = places.slice(0, 5).map((k) => catalogue.items[k]);
      throw new PrivrecError(
        `${places.length} items are called ${got(text)}: give an id, of ${ids.join(", ")}`,
      );
    }
    if (places.length) return places[0];
  }
  throw new PrivrecError(`unknown item ${got(text)}`);
}

/** @param {string} text */
const folded = (text) => text.toUpperCase().toLowerCase();

/** @param {Value} value */
const isMissing = (value) => value == null || value === "" || Number.isNaN(value);

/**
 * Return the values of features of one side that are given; throw for unknown ones.
 * @param {Catalogue} catalogue
 * @param {"user" | "context"} side
 * @param {Values} values
 * @returns {Map<Feature, Map<number, number>>} the weights by position, of each feature
 */
export function encode(catalogue, side, values) {
  const known = catalogue.features.filter((feature) => feature.side === side);
  /** @type {Map<Feature, Map<number, number>>} */
  const encoded = new Map();
  for (const [name, value] of Object.entries(values)) {
    const feature = known.find((it) => it.name === name);
    if (!feature) {
      const names = known.map((it) => it.name).join(", ") || "none";
      throw new PrivrecError(`unknown ${side} feature ${got(name)} (this model has: ${names})`);
    }
    encoded.set(feature, weightsOf(feature, value));
  }
  return encoded;
}

/**
 * @param {Feature} feature
 * @param {Value} value
 * @returns {Map<number, number>}
 */
function weightsOf(feature, value) {
  if (Array.isArray(value) && feature.kind !== "multi") {
    throw new PrivrecError(`${got(feature.name)} takes one value; got a list`);
  }
  const given = (Array.isArray(value) ? value : [value]).filter((one) => !isMissing(one));
  /** @type {Map<number, number>} */
  const weights = new Map();
  for (const one of given) {
    if (feature.kind === "numeric") {
      const isPlain = /^\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*$/i.test(String(one));
      const weight = isPlain ? (Number(one) - feature.mean) / feature.scale : NaN;
      if (!(Math.abs(weight) <= FLOAT_MAX)) {
        throw new PrivrecError(`${got(feature.name)} must be a finite number; got ${got(one)}`);
      }
      return new Map([[0, Math.fround(weight)]]);
    }
    const place = feature.values.indexOf(String(one));
    if (place < 0) throw new PrivrecError(`unknown value ${got(one)} of ${got(feature.name)}`);
    weights.set(place, (weights.get(place) ?? 0) + 1 / given.length);
  }
  return weights;
}
