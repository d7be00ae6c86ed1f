import { PrivrecError, got } from "./errors.js";

/**
 * The budget of a file, beyond the file itself: four times its size and 32 MiB. Chosen by hand: a
 * compact export of long vectors unpacks to four times its size.
 */
const GROWTH = 4;
const ROOM = 32 * 2 ** 20;
/** What a comma or bracket of a JSON document takes in memory, and a brace: in bytes, in V8. */
const MARK = 32;
const BRACE = 128;

/** The members of an archive, and the memory that may still be taken for them. */
export class Archive {
  /** @type {Map<string, Uint8Array<ArrayBuffer>>} */
  members = new Map();

  /** @param {number} size the size of the file in bytes */
  constructor(size) {
    this.left = ROOM + GROWTH * size;
  }

  /**
   * Count memory before it is taken; throw if there is too little left.
   * @param {number} bytes
   */
  take(bytes) {
    this.left -= bytes;
    if (this.left < 0) throw new PrivrecError("it would unpack to far more than an export has");
  }

  /**
   * Return a JSON document.
   * @param {string} name
   * @returns {any}
   */
  json(name) {
    const bytes = this.members.get(name);
    if (!bytes) throw new PrivrecError(`it has no ${name}`);
    let marks = 0;
    for (let k = 0; k < bytes.length; k++) {
      const byte = bytes[k];
      if (byte === 44 || byte === 91) marks += MARK; // , [
      else if (byte === 123) marks += BRACE;
    }
    this.take(3 * bytes.length + marks);
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  }
}

/**
 * Return the members of a zip archive: stored or deflated, each once, with the right checksum.
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {Promise<Archive>}
 */
export async function readArchive(bytes) {
  const archive = new Archive(bytes.length);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const all = [...entries(bytes, view)];
  if (all.reduce((sum, { packed }) => sum + packed, 0) > bytes.length) {
    throw new PrivrecError("its members overlap");
  }
  for (const entry of all) {
    const { name, size } = entry;
    if (archive.members.has(name)) throw new PrivrecError(`it has ${name} more than once`);
    archive.take(size);
    const packed = bytes.subarray(entry.start, entry.start + entry.packed);
    const content = entry.method ? await inflate(packed, size) : packed.slice();
    if (content.length !== size || crc32(content) !== entry.crc) {
      throw new PrivrecError(`${got(name)} is damaged`);
    }
    archive.members.set(name, content);
  }
  return archive;
}

/**
 * Yield what the directory at the end of an archive says of each member.
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @param {DataView} view
 */
function* entries(bytes, view) {
  let end = bytes.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) {
    if (bytes.length - end > 66_000) end = 0;
    end--;
  }
  if (end < 0) throw new PrivrecError("it is no zip archive");
  const count = view.getUint16(end + 10, true);
  let at = view.getUint32(end + 16, true);
  const text = new TextDecoder("utf-8", { fatal: true });
  for (let k = 0; k < count; k++) {
    const local = view.getUint32(at + 42, true);
    const method = view.getUint16(at + 10, true);
    const long = view.getUint16(at + 28, true);
    const name = text.decode(bytes.subarray(at + 46, at + 46 + long));
    if (view.getUint32(at, true) !== 0x02014b50 || view.getUint32(local, true) !== 0x04034b50) {
      throw new PrivrecError("its directory is damaged");
    }
    if ((method !== 0 && method !== 8) || view.getUint16(at + 8, true) & 1) {
      throw new PrivrecError(`${got(name)} is compressed in another way`);
    }
    const size = view.getUint32(at + 24, true);
    const packed = view.getUint32(at + 20, true);
    const after = local + 30 + view.getUint16(local + 26, true);
    if (text.decode(bytes.subarray(local + 30, after)) !== name) {
      throw new PrivrecError(`${got(name)} has another name at its place`);
    }
    const start = after + view.getUint16(local + 28, true);
    if (start + packed > bytes.length || (!method && packed !== size)) {
      throw new PrivrecError(`${got(name)} is cut off`);
    }
    yield { name, method, crc: view.getUint32(at + 16, true), packed, size, start };
    at += 46 + long + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
  }
}

/**
 * Return unpacked bytes; throw unless they are exactly `size`.
 * @param {Uint8Array<ArrayBuffer>} packed
 * @param {number} size
 */
async function inflate(packed, size) {
  const content = new Uint8Array(size);
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const reader = unpacked.getReader();
  let at = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    if (at + value.length > size) {
      reader.cancel().catch(() => {});
      throw new PrivrecError("a member is larger than it says");
    }
    content.set(value, at);
    at += value.length;
  }
  if (at < size) throw new PrivrecError("a member is smaller than it says");
  return content;
}

/** Eight tables of the checksum of zip: eight bytes are taken in one step. */
const TABLES = new Uint32Array(8 * 256);
for (let k = 0; k < 256; k++) {
  let crc = k;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  TABLES[k] = crc;
}
for (let k = 256; k < TABLES.length; k++) {
  const before = TABLES[k - 256];
  TABLES[k] = (before >>> 8) ^ TABLES[before & 255];
}

/**
 * Return the checksum of zip (CRC-32).
 * @param {Uint8Array<ArrayBuffer>} bytes
 */
function crc32(bytes) {
  const t = TABLES;
  let crc = -1;
  let at = 0;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (; at + 8 <= bytes.length; at += 8) {
    const a = crc ^ view.getInt32(at, true);
    const b = view.getInt32(at + 4, true);
    crc =
      t[1792 + (a & 255)] ^ t[1536 + ((a >>> 8) & 255)] ^
      t[1280 + ((a >>> 16) & 255)] ^ t[1024 + (a >>> 24)] ^
      t[768 + (b & 255)] ^ t[512 + ((b >>> 8) & 255)] ^
      t[256 + ((b >>> 16) & 255)] ^ t[b >>> 24];
  }
  for (; at < bytes.length; at++) crc = t[(crc ^ bytes[at]) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}
