import { PrivrecError } from "./errors.js";

/**
 * A table of numbers. Where `scale` is given, row r has whole numbers, times `scale[r]`.
 * @typedef {{
 *   shape: number[],
 *   data: Float32Array | Int8Array | Uint16Array | Uint32Array,
 *   scale?: Float32Array,
 * }} Table
 */

const HEAD =
  /^\{'descr': '(<f4|\|i1|<u2|<u4)', 'fortran_order': False, 'shape': \(([0-9, ]{0,99})\), \} *\n$/;
const KINDS = { "<f4": Float32Array, "|i1": Int8Array, "<u2": Uint16Array, "<u4": Uint32Array };

/**
 * Return an array in the form in which `np.save` writes it.
 * @param {Uint8Array<ArrayBuffer>} bytes from the beginning of its buffer
 * @param {boolean} compact whether other kinds than 32-bit floats are allowed
 * @returns {Table}
 */
function readArray(bytes, compact) {
  const start = 10 + (bytes[8] | (bytes[9] << 8));
  const text = String.fromCharCode(...bytes.subarray(0, Math.min(start, 400)));
  const head = text.startsWith("\x93NUMPY\x01\x00") && start <= 400 && HEAD.exec(text.slice(10));
  // Numpy puts the numbers at a multiple of 64: they are a view, which takes no memory.
  if (!head || start % 4 || (!compact && head[1] !== "<f4")) {
    throw new PrivrecError("parameters must be 32-bit numbers, as numpy writes them");
  }
  const shape = head[2].split(",").filter((size) => size.trim()).map(Number);
  const size = shape.reduce((product, side) => product * side, 1);
  const Kind = KINDS[/** @type {keyof typeof KINDS} */ (head[1])];
  if (!Number.isSafeInteger(size) || start + size * Kind.BYTES_PER_ELEMENT !== bytes.length) {
    throw new PrivrecError("an array has another size than it says");
  }
  const data = new Kind(bytes.buffer, start, size);
  if (!areFinite(data)) throw new PrivrecError("parameters must be finite numbers");
  return { shape, data };
}

/**
 * Return whether all numbers are finite. A loop, because a call for each takes ten times as long.
 * @param {Table["data"]} data
 */
export function areFinite(data) {
  let sum = 0;
  for (let k = 0; k < data.length; k++) sum += data[k] * 0; // 0 · ∞ is no number.
  return sum === 0;
}

/**
 * Return the arrays of an export by name.
 * @param {Map<string, Uint8Array<ArrayBuffer>>} members
 * @param {boolean} compact
 * @returns {Map<string, Table>}
 */
export function readArrays(members, compact) {
  /** @type {Map<string, Table>} */
  const params = new Map();
  for (const [member, bytes] of members) {
    if (!member.startsWith("params/")) continue;
    const name = member.slice("params/".length).replace(/\.npy$/, "");
    const table = readArray(bytes, compact);
    if (table.data instanceof Int8Array) {
      const scale = members.get(`scales/${name}.npy`);
      const scales = scale && readArray(scale, false);
      if (!scales || table.shape.length !== 2 || `${scales.shape}` !== `${table.shape[0]}`) {
        throw new PrivrecError(`${name} has not one scale for each row`);
      }
      table.scale = /** @type {Float32Array} */ (scales.data);
    }
    params.set(name, table);
  }
  return params;
}

/**
 * Add a row of a table, times a weight, to a vector.
 * @param {Table | undefined} table nothing is added if it is absent
 * @param {number} row
 * @param {number} weight
 * @param {Float64Array} vector
 */
export function addRow(table, row, weight, vector) {
  if (!table) return;
  const { data } = table;
  const factor = table.scale ? weight * table.scale[row] : weight;
  const width = vector.length;
  for (let k = 0, at = row * width; k < width; k++, at++) vector[k] += factor * data[at];
}

/**
 * Return the product of a row of a table and a vector.
 * @param {Table} table
 * @param {number} row
 * @param {Float64Array} vector
 */
export function dot(table, row, vector) {
  const sum = product(table.data, row * vector.length, vector);
  return table.scale ? sum * table.scale[row] : sum;
}

/**
 * Four sums side by side, because each addition waits for the one before.
 * @param {Table["data"]} data
 * @param {number} at
 * @param {Float64Array} vector
 */
function product(data, at, vector) {
  const width = vector.length;
  const most = width - 3;
  let a = 0;
  let b = 0;
  let c = 0;
  let d = 0;
  let k = 0;
  for (; k < most; k += 4, at += 4) {
    a += data[at] * vector[k];
    b += data[at + 1] * vector[k + 1];
    c += data[at + 2] * vector[k + 2];
    d += data[at + 3] * vector[k + 3];
  }
  for (; k < width; k++, at++) a += data[at] * vector[k];
  return a + b + c + d;
}

/**
 * Return the products of all rows of a table and a vector.
 * @param {Table} table
 * @param {Float64Array} vector
 */
export function times(table, vector) {
  const { data, scale } = table;
  const products = new Float64Array(table.shape[0]);
  for (let row = 0, at = 0; row < products.length; row++, at += vector.length) {
    products[row] = product(data, at, vector);
  }
  if (scale) for (let row = 0; row < products.length; row++) products[row] *= scale[row];
  return products;
}
