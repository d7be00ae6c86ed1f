/**
 * Damaged and foreign files: each opens or is refused in words. $MUTATIONS is how many are tried.
 */
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { readArchive } from "../../src/privrec/web/device/archive.js";
import { PrivrecError, openModel } from "../../src/privrec/web/device/index.js";
import { zip } from "./zip.js";

const golden = join(import.meta.dirname, "golden");
const files = readdirSync(golden).filter((name) => name.endsWith(".privrec"));
const bytesOf = (file) => new Uint8Array(readFileSync(join(golden, file)));
const membersOf = async (file) => [...(await readArchive(bytesOf(file))).members];
const text = (value) => new TextEncoder().encode(value);
const times = Number(process.env.MUTATIONS ?? 200);

/** Random whole numbers below a limit, the same each time (mulberry32). */
function drawFrom(seed) {
  let state = seed;
  return (limit) => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) % limit;
  };
}

/** Return whether it opens and ranks; throw unless it does, or is refused in words. */
async function isOpened(bytes, about) {
  try {
    const model = await openModel(bytes);
    model.device({ likes: [model.catalogue.items[0]] }).recommend(5);
    return true;
  } catch (error) {
    assert.ok(error instanceof PrivrecError, `${about}: ${error.stack}`);
    assert.ok(error.message.length > 20 && error.message.length < 2000, about);
    return false;
  }
}

/** Return bytes that differ in a few places, or in their length. */
function mutated(bytes, draw) {
  const way = draw(5);
  if (way === 0) return bytes.slice(0, draw(bytes.length));
  if (way === 1) {
    const [from, to] = [draw(bytes.length), draw(bytes.length)];
    return new Uint8Array([...bytes.subarray(0, from), ...bytes.subarray(to)]);
  }
  const changed = bytes.slice();
  for (let k = 0; k <= draw(way === 2 ? 1 : 9); k++) {
    changed[draw(changed.length)] = way === 3 ? [0, 255, 44, 91, 48, 34][draw(6)] : draw(256);
  }
  return changed;
}

test("a file that was changed anywhere opens or is refused", { timeout: 3_600_000 }, async () => {
  const draw = drawFrom(1);
  let opened = 0;
  for (let k = 0; k < times / 2; k++) {
    opened += await isOpened(mutated(bytesOf(files[k % files.length]), draw), `bytes ${k}`);
  }
  assert.ok(opened < times / 4);
});

test("a member that was changed, with its right checksum", { timeout: 3_600_000 }, async () => {
  const draw = drawFrom(2);
  let opened = 0;
  for (let k = 0; k < times / 2; k++) {
    const members = await membersOf(files[k % files.length]);
    const place = draw(members.length);
    const [name, content] = members[place];
    if (draw(8) === 0) members.splice(place, 1);
    else members[place] = [draw(9) ? name : `${name}x`, mutated(content, draw)];
    opened += await isOpened(zip(members), `member ${k}: ${name}`);
  }
  assert.ok(opened > times / 100, "some changes are harmless");
  assert.ok(opened < times / 2);
});

async function changed(name, change) {
  const members = new Map(await membersOf("closed.privrec"));
  members.set(name, change(members.get(name)));
  return zip([...members]);
}

const inJson = (change) => (bytes) => {
  const document = JSON.parse(new TextDecoder().decode(bytes));
  change(document);
  return text(JSON.stringify(document));
};
const headed = (header, size = 120) => {
  const head = `\x93NUMPY\x01\x00${String.fromCharCode(header.length & 255, header.length >> 8)}`;
  return () => new Uint8Array([...Buffer.from(head + header, "latin1"), ...new Uint8Array(size)]);
};
const shaped = (kind, shape, size, more = 0) => {
  const head = `{'descr': '${kind}', 'fortran_order': False, 'shape': ${shape}, }`;
  return headed(`${head.padEnd(181 + more)}\n`, size);
};
const floats = (value) => (bytes) => {
  const numbers = bytes.slice();
  new DataView(numbers.buffer).setFloat32(numbers.length - 4, value, true);
  return numbers;
};
const BIAS = "params/items/bias.npy";

const WRONG = {
  "no number": [BIAS, floats(NaN), /finite numbers/],
  "an infinite number": [BIAS, floats(-Infinity), /finite numbers/],
  "an empty array": [BIAS, () => new Uint8Array(0), /32-bit numbers/],
  "pickled": [BIAS, headed("{'descr': '|O', 'fortran_order': False, 'shape': (30,), }\n"), /32-bit/],
  "64 bits": [BIAS, shaped("<f8", "(15,)"), /32-bit numbers/],
  "8 bits in a plain export": [BIAS, shaped("|i1", "(120,)"), /32-bit numbers/],
  "a header that does not end": [BIAS, headed("{'descr': ("), /32-bit numbers/],
  "a long header": [BIAS, headed(" ".repeat(60_000)), /32-bit numbers/],
  "less than nothing": [BIAS, shaped("<f4", "(-30,)"), /32-bit numbers/],
  "many digits": [BIAS, shaped("<f4", `(${"9".repeat(90)},)`), /another size/],
  "numbers at an odd place": [BIAS, shaped("<f4", "(30,)", 120, 1), /as numpy writes them/],
  "another length": [BIAS, shaped("<f4", "(31,)"), /another size/],
  "another shape": [BIAS, shaped("<f4", "(30, 1)"), /must have shape \(30\); got \(30, 1\)/],
  "no dimension": [BIAS, shaped("<f4", "()", 4), /must have shape \(30\); got \(\)/],
  "another format": ["model.json", inJson((it) => (it.format = 9)), /format 9/],
  "no settings": ["model.json", inJson((it) => (it.settings = [])), /lacks settings/],
  "no JSON": ["model.json", () => text("{"), /JSON/],
  "a number": ["catalogue.json", () => text("5"), /lists of texts/],
  "nothing": ["catalogue.json", () => text("null"), /lists of texts/],
  "no items": ["catalogue.json", inJson((it) => (it.items = it.titles = [])), /there are none/],
  "too few titles": ["catalogue.json", inJson((it) => it.titles.pop()), /differ in number/],
  "a scale of 0": ["catalogue.json", inJson((it) => (it.features[1].scale = 0)), /a feature/],
  "another side": ["catalogue.json", inJson((it) => (it.features[1].side = "phone")), /a feature/],
  "no bags": ["catalogue.json", inJson((it) => (it.bags = {})), /features are not those/],
  "a code too many": [
    "catalogue.json",
    inJson((it) => (it.bags["embed/item.genre"].codes[3] = [2])),
    /outside of its vocabulary/,
  ],
  "endless weights": [
    "catalogue.json",
    inJson((it) => (it.bags["embed/item.genre"].weights[3] = [1e300])),
    /infinite/,
  ],
  "empty lists": ["catalogue.json", () => text(`[${"[],".repeat(7e6)}[]]`), /far more than an/],
  "deep lists": ["catalogue.json", () => text("[".repeat(1e6)), /JSON|far more/],
};

for (const [kind, [name, change, words]] of Object.entries(WRONG)) {
  test(`refused: ${kind}`, async () => {
    const wrong = await changed(name, change);
    await assert.rejects(openModel(wrong), { name: "PrivrecError", message: words });
  });
}

test("a number that differs in one bit has another checksum", async () => {
  const members = await membersOf("closed.privrec");
  const bytes = zip(members);
  const content = members.find(([name]) => name === BIAS)[1];
  const at = Buffer.from(bytes).indexOf(Buffer.from(content)) + content.length - 4;
  assert.ok(await openModel(bytes));
  bytes[at] ^= 1;
  await assert.rejects(openModel(bytes), { message: /"params\/items\/bias.npy" is damaged/ });
});

test("the vectors of the second model have a limit", async () => {
  const members = await membersOf("closed.privrec");
  const weight = ["params/second/weight.npy", shaped("<f4", "()", 4)()];
  const vectors = (width) => ["params/second/vectors.npy", shaped("<f4", `(30, ${width})`, 120 * width)()];
  assert.ok(await openModel(zip([...members, weight, vectors(1024)])));
  const wide = zip([...members, weight, vectors(1025)]);
  await assert.rejects(openModel(wide), { message: /second\/vectors must have <= 1024 columns/ });
});

/** Return an archive whose directory was changed: a view of each entry, from its first byte. */
function directed(members, change) {
  const bytes = zip(members);
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  let at = view.getUint32(bytes.length - 6, true);
  members.forEach(([name], k) => {
    change(new DataView(bytes.buffer, bytes.byteOffset + at), k);
    at += 46 + Buffer.from(name).length;
  });
  return bytes;
}

test("many members of one stream are refused before they are unpacked", async () => {
  const members = [...Array(9).keys()].map((k) => [`m${k}`, new Uint8Array(1000)]);
  const same = directed(members, (entry) => entry.setUint32(42, 0, true));
  await assert.rejects(openModel(same), { message: /"m1" has another name at its place/ });
  const overlapping = directed(members, (entry, k) => {
    entry.setUint16(10, 8, true);
    entry.setUint32(20, 1000 * (9 - k), true);
    entry.setUint32(24, 0, true);
  });
  await assert.rejects(openModel(overlapping), { message: /its members overlap/ });
});

test("a member is there once", async () => {
  const members = await membersOf("closed.privrec");
  const twice = zip([...members, members[0]]);
  await assert.rejects(openModel(twice), { message: /it has model.json more than once/ });
});

test("a model of another recipe is refused by its name", async () => {
  const members = (await membersOf("closed.privrec")).filter(([name]) => !name.includes("history"));
  await assert.rejects(openModel(zip(members)), { message: /"privrec-plus" is no recipe of/ });
});

test("scores that are no numbers are refused", async () => {
  const huge = await changed("params/history/like.npy", floats(3e38));
  const model = await openModel(huge);
  const last = model.catalogue.items.at(-1);
  assert.throws(() => model.device({ likes: [last] }).recommend(3), { message: /not numbers/ });
});

test("text with control characters is made safe to show", async () => {
  const title = "a\u202eb\u0007\r\nc";
  const model = await openModel(
    await changed("catalogue.json", inJson((it) => (it.titles[0] = title))),
  );
  assert.equal(model.catalogue.titles[0], "a�b� c");
});
