import { addRow, areFinite, dot, times } from "./arrays.js";
import { rowsOf } from "./catalogue.js";
import { PrivrecError } from "./errors.js";

/**
 * What a person has and is. A feature has weights by position.
 * @typedef {Map<import("./catalogue.js").Feature, Map<number, number>>} Encoded
 * @typedef {{ likes: number[], dislikes: number[], features: Encoded, context: Encoded }} Person
 * @typedef {Map<string, import("./arrays.js").Table>} Params
 * @typedef {import("./arrays.js").Table} Table
 * @typedef {{ item: number, liked: boolean, weight: number }} Entry
 * @typedef {{
 *   scores: Float32Array,
 *   effects: (item: number) => { item: number, liked: boolean, effect: number }[],
 * }} Ranking
 */

const FLOOR = Math.fround(0.01);
/** The second model's weights: those of Python's `opinion.py`. */
const ALPHA = 8;
const DISLIKED = 0.6;
/** The longest vectors of the second model, as in `opinion.py`. */
const MOST_DIMENSIONS = 1024;

/**
 * Return the features of a person and of the moment that have vectors.
 * @param {Params} params
 * @param {import("./catalogue.js").Catalogue} catalogue
 */
export function featuresOf(params, catalogue) {
  return catalogue.features.filter(
    (it) => it.side !== "item" && params.has(`history/${it.side}.${it.name}`),
  );
}

/** Return whether dislikes count. @param {Params} params */
const hasDislikes = (params) => params.has("history/dislike") || params.has("learn/dislike");

/**
 * Throw unless the arrays fit the catalogue (docs/export.md).
 * @param {Params} params
 * @param {import("./catalogue.js").Catalogue} catalogue
 */
export function checkParams(params, catalogue) {
  const n = catalogue.items.length;
  const features = featuresOf(params, catalogue);
  const dislikes = hasDislikes(params);
  /** @type {(name: string) => number} */
  const width = (name) => params.get(name)?.shape[1] ?? 0;
  /** @type {(group: string) => [string, number][]} */
  const blocks = (group) => [
    [`${group}/like`, n],
    .../** @type {[string, number][]} */ (dislikes ? [[`${group}/dislike`, n]] : []),
    ...features.map((it) => /** @type {[string, number]} */ ([`${group}/${it.side}.${it.name}`, rowsOf(it)])),
  ];
  const d = width("history/like");
  /** @type {[string, number[]][]} */
  const shapes = [["items/bias", [n]]];
  for (const [name, rows] of blocks("history")) {
    if (params.has(name) || name === "history/like") shapes.push([name, [rows, d]]);
  }
  if (params.has("items/out") || d !== n) shapes.push(["items/out", [n, d]]);
  if (params.has("hop/items") || params.has("hop/values")) {
    const near = width("hop/items");
    shapes.push(["hop/items", [n, near]], ["hop/values", [n, near]], ["hop/weight", []]);
  }
  if (params.has("device/recency")) shapes.push(["device/recency", []]);
  if ([...params.keys()].some((name) => name.startsWith("learn/"))) {
    const e = width("learn/out");
    for (const [name, rows] of blocks("learn")) shapes.push([name, [rows, e]]);
    shapes.push(["learn/out", [n, e]], ["learn/bias", [n]], ["learn/trust", []]);
  }
  if (params.has("second/vectors") || params.has("second/weight")) {
    shapes.push(["second/vectors", [n, width("second/vectors")]], ["second/weight", []]);
  }
  for (const [name, shape] of shapes) {
    const found = params.get(name);
    if (`${found?.shape}` !== `${shape}` || found?.shape.length !== shape.length) {
      const what = found ? `got (${found.shape.join(", ")})` : "it is missing";
      throw new PrivrecError(
        `the parameters do not fit the catalogue: ${name} must have shape (${shape.join(", ")}); ${what}`,
      );
    }
  }
  if (width("second/vectors") > MOST_DIMENSIONS) {
    throw new PrivrecError(`second/vectors must have <= ${MOST_DIMENSIONS} columns`);
  }
  const near = params.get("hop/items");
  /** @type {(place: number) => boolean} */
  const isItem = (place) => place >= 0 && place < n && place % 1 === 0;
  if (near && (near.scale || !near.data.every(isItem))) {
    throw new PrivrecError(
      "the parameters do not fit the catalogue: hop/items must have positions of items",
    );
  }
}

/**
 * Return a function that scores all items for a person: the formula of docs/export.md.
 * @param {Params} params
 * @param {import("./catalogue.js").Catalogue} catalogue
 * @returns {(person: Person) => Ranking}
 */
export function newScorer(params, catalogue) {
  const n = catalogue.items.length;
  const dislikes = hasDislikes(params);
  const recency = params.get("device/recency")?.data[0] ?? 0;
  const bias = /** @type {Table} */ (params.get("items/bias")).data;
  const hop = params.has("hop/items") ? neighbours(params, n) : null;
  const second = params.has("second/vectors") ? secondModel(params, n) : null;
  const learned = params.has("learn/out") ? learnedModel(params) : null;

  return (person) => {
    const entries = entriesOf(person, recency, dislikes);
    const sums = sumsOf(params, "history", entries, person);
    const out = params.get("items/out");
    const closed = out ? times(out, sums) : sums;
    /** The effect of an entry on the closed-form score of an item. @type {(e: Entry, j: number) => number} */
    const closedEffect = (entry, j) => {
      const own = new Float64Array(sums.length);
      addEntry(params, "history", entry, own);
      return out ? dot(out, j, own) : own[j];
    };
    const count = entries.reduce((sum, entry) => sum + entry.weight, 0);
    /** @type {Part} */
    let total = { scores: closed, effect: closedEffect };
    if (learned && count) {
      const hidden = sumsOf(params, "learn", entries, person);
      total = learned(total, hidden, count);
    }
    if (hop) total = added(total, hop(entries), weightOf(params, "hop/weight"));
    if (second) total = added(total, second(entries), weightOf(params, "second/weight"));
    const { effect } = total;
    const scores = new Float32Array(n);
    for (let j = 0; j < n; j++) scores[j] = total.scores[j] + bias[j];
    if (!areFinite(scores)) {
      throw new PrivrecError(
        "the model's scores are not numbers: its training diverged, or it is damaged",
      );
    }
    const effects = (/** @type {number} */ j) =>
      entries.map((entry) => {
        return { item: entry.item, liked: entry.liked, effect: effect(entry, j) };
      });
    return { scores, effects };
  };
}

/**
 * Scores of all items, and what an entry of the person's row adds to the score of an item.
 * @typedef {{ scores: Float64Array, effect: (entry: Entry, j: number) => number }} Part
 */

/** @type {(params: Params, name: string) => number} */
const weightOf = (params, name) => /** @type {Table} */ (params.get(name)).data[0];

/**
 * Return the person's items that count, each with its weight: later ones may have more.
 * @param {Person} person
 * @param {number} recency
 * @param {boolean} dislikes
 * @returns {Entry[]}
 */
function entriesOf(person, recency, dislikes) {
  const lines = [
    ...person.likes.map((item) => ({ item, liked: true })),
    ...person.dislikes.map((item) => ({ item, liked: false })),
  ];
  return lines
    .map((line, k) => ({ ...line, weight: 1 + recency * 2 ** (-(lines.length - 1 - k) / 3) }))
    .filter((entry) => entry.liked || dislikes);
}

/** @type {(params: Params, group: string, entry: Entry, sums: Float64Array) => void} */
function addEntry(params, group, { item, liked, weight }, sums) {
  addRow(params.get(`${group}/${liked ? "like" : "dislike"}`), item, weight, sums);
}

/**
 * Return the sum of the vectors of a person's row.
 * @param {Params} params
 * @param {string} group
 * @param {Entry[]} entries
 * @param {Person} person
 */
function sumsOf(params, group, entries, person) {
  const like = /** @type {Table} */ (params.get(`${group}/like`));
  const sums = new Float64Array(like.shape[1]);
  for (const entry of entries) addEntry(params, group, entry, sums);
  const hasLines = person.likes.length + person.dislikes.length > 0;
  for (const given of hasLines ? [person.features, person.context] : [person.features]) {
    for (const [{ side, name }, weights] of given) {
      // A feature counts only if the history model has it (Python: `layout_in`).
      if (!params.has(`history/${side}.${name}`)) continue;
      const table = params.get(`${group}/${side}.${name}`);
      for (const [place, weight] of weights) addRow(table, place, weight, sums);
    }
  }
  return sums;
}

/**
 * Return what the rounds after the sums have learned, as a function on top of closed-form scores.
 * @param {Params} params
 * @returns {(closed: Part, hidden: Float64Array, count: number) => Part}
 */
function learnedModel(params) {
  const out = /** @type {Table} */ (params.get("learn/out"));
  const bias = /** @type {Table} */ (params.get("learn/bias")).data;
  const trust = weightOf(params, "learn/trust");
  return (closed, hidden, count) => {
    const root = Math.sqrt(1 + count);
    const pooled = hidden.map((sum) => Math.tanh(sum / root));
    /** @type {(score: number) => number} */
    const log = (score) => trust * Math.log(Math.max(score, 0) + FLOOR);
    const scores = times(out, pooled).map((score, j) => score + log(closed.scores[j]) + bias[j]);
    return {
      scores,
      effect(entry, j) {
        const without = new Float64Array(hidden.length);
        addEntry(params, "learn", { ...entry, weight: -entry.weight }, without);
        for (let k = 0; k < without.length; k++) {
          without[k] = pooled[k] - Math.tanh((hidden[k] + without[k]) / root);
        }
        const score = closed.scores[j];
        return log(score) - log(score - closed.effect(entry, j)) + dot(out, j, without);
      },
    };
  };
}

/**
 * Return the scores by neighbours, as a function of a person's entries.
 * @param {Params} params
 * @param {number} n
 * @returns {(entries: Entry[]) => Part}
 */
function neighbours(params, n) {
  const places = /** @type {Table} */ (params.get("hop/items")).data;
  const values = /** @type {Table} */ (params.get("hop/values"));
  const near = values.shape[1];
  /** @type {(entry: Entry, add: (item: number, value: number) => void) => void} */
  const each = ({ item, weight }, add) => {
    const factor = values.scale ? weight * values.scale[item] : weight;
    for (let k = item * near; k < (item + 1) * near; k++) add(places[k], factor * values.data[k]);
  };
  return (entries) => {
    const scores = new Float64Array(n);
    for (const entry of entries) {
      if (entry.liked) each(entry, (item, value) => (scores[item] += value));
    }
    return {
      scores,
      effect(entry, j) {
        let sum = 0;
        if (entry.liked) each(entry, (item, value) => (sum += item === j ? value : 0));
        return sum;
      },
    };
  };
}

/**
 * Return the second model, as a function of a person's entries: her vector solves
 * (VᵀV + αΣ v vᵀ + ρI) u = (1 + α) Σ t v, with sums over her items.
 * @param {Params} params
 * @param {number} n
 * @returns {(entries: Entry[]) => Part}
 */
function secondModel(params, n) {
  const vectors = /** @type {Table} */ (params.get("second/vectors"));
  const size = vectors.shape[1];
  const all = new Float64Array(size * size);
  for (let item = 0; item < n; item++) addSquare(all, rowOf(vectors, item), 1);
  const dislikes = params.has("history/dislike");
  return (entries) => {
    const own = entries.filter((entry) => entry.liked || dislikes);
    const ridge = 1.4 * Math.sqrt(ALPHA * own.length + 0.05 * n);
    const squares = all.slice();
    const sum = new Float64Array(size);
    /** @type {(entry: Entry) => number} */
    const target = (entry) => (1 + ALPHA) * (entry.liked ? 1 : DISLIKED);
    for (const entry of own) {
      addSquare(squares, rowOf(vectors, entry.item), ALPHA);
      addRow(vectors, entry.item, target(entry), sum);
    }
    for (let k = 0; k < size; k++) squares[k * size + k] += ridge;
    const factor = cholesky(squares, size);
    return {
      scores: times(vectors, solved(factor, sum)),
      effect(entry, j) {
        if (!entry.liked && !dislikes) return 0;
        return target(entry) * dot(vectors, entry.item, solved(factor, rowOf(vectors, j)));
      },
    };
  };
}

/** @type {(table: Table, row: number) => Float64Array} */
function rowOf(table, row) {
  const vector = new Float64Array(table.shape[1]);
  addRow(table, row, 1, vector);
  return vector;
}

/** Add weight · v vᵀ to the lower triangle. @type {(matrix: Float64Array, v: Float64Array, weight: number) => void} */
function addSquare(matrix, v, weight) {
  const size = v.length;
  for (let i = 0; i < size; i++) {
    const factor = weight * v[i];
    for (let j = 0, at = i * size; j <= i; j++, at++) matrix[at] += factor * v[j];
  }
}

/** Return L with L·Lᵀ = the matrix, whose lower triangle is given. @type {(matrix: Float64Array, size: number) => Float64Array} */
function cholesky(matrix, size) {
  for (let i = 0; i < size; i++) {
    for (let j = 0; j <= i; j++) {
      let sum = matrix[i * size + j];
      for (let k = 0; k < j; k++) sum -= matrix[i * size + k] * matrix[j * size + k];
      matrix[i * size + j] = i === j ? Math.sqrt(sum) : sum / matrix[j * size + j];
    }
  }
  return matrix;
}

/** Return the solution x of L·Lᵀ x = v. @type {(factor: Float64Array, v: Float64Array) => Float64Array} */
function solved(factor, v) {
  const x = v.slice();
  const size = x.length;
  for (let i = 0; i < size; i++) {
    for (let k = 0; k < i; k++) x[i] -= factor[i * size + k] * x[k];
    x[i] /= factor[i * size + i];
  }
  for (let i = size - 1; i >= 0; i--) {
    for (let k = i + 1; k < size; k++) x[i] -= factor[k * size + i] * x[k];
    x[i] /= factor[i * size + i];
  }
  return x;
}

/** Return the mean, and 1 / standard deviation, or 0 if all are equal. @param {Float64Array} scores */
function moments(scores) {
  const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
  const squares = scores.reduce((sum, score) => sum + (score - mean) ** 2, 0);
  const spread = Math.sqrt(squares / scores.length);
  return { mean, factor: spread <= 1e-12 * Math.abs(mean) ? 0 : 1 / spread };
}

/**
 * Return the sum of two parts, both standardised, and the second times a weight.
 * @param {Part} first
 * @param {Part} second
 * @param {number} weight
 * @returns {Part}
 */
function added(first, second, weight) {
  const a = moments(first.scores);
  const b = moments(second.scores);
  const { scores } = second;
  return {
    scores: first.scores.map(
      (score, j) => (score - a.mean) * a.factor + weight * (scores[j] - b.mean) * b.factor,
    ),
    effect: (entry, j) =>
      first.effect(entry, j) * a.factor + weight * b.factor * second.effect(entry, j),
  };
}
