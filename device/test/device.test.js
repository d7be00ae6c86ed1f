/** What a device does, apart from its lists: names, changes, reasons, its saved state. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { test } from "node:test";
import { readArchive } from "../../src/privrec/web/device/archive.js";
import { readArrays } from "../../src/privrec/web/device/arrays.js";
import { Device, PrivrecError, openModel } from "../../src/privrec/web/device/index.js";

const golden = join(import.meta.dirname, "golden");
const bytesOf = (name) => readFileSync(join(golden, `${name}.privrec`));
const model = await openModel(bytesOf("closed"));
const refusal = (words) => ({ name: "PrivrecError", message: words });

test("items are found by id and by title, in any case", () => {
  const byTitle = model.device({ likes: ["film «3»", "Film «5»"] });
  assert.deepEqual(byTitle.likes, ["i3", "i5"]);
  assert.deepEqual(byTitle.recommend(4), model.device({ likes: ["i3", "i5"] }).recommend(4));
});

test("wrong input is refused in words", () => {
  const cases = [
    [{ likes: ["nothing"] }, /unknown item "nothing"/],
    [{ likes: ["i1"], dislikes: ["Film «1»"] }, /"Film «1»" was given more than once/],
    [{ likes: "i1" }, /must be a list/],
    [{ likes: [null] }, /by its id or title/],
    [{ features: { colour: "red" } }, /unknown user feature "colour" \(this model has: town/],
    [{ features: { place: "home" } }, /unknown user feature "place"/],
    [{ context: { town: "Ulm" } }, /unknown context feature "town"/],
    [{ features: { town: "Rome" } }, /unknown value "Rome" of "town"/],
    [{ features: { town: ["Ulm"] } }, /"town" takes one value/],
    [{ features: { years: "old" } }, /"years" must be a finite number; got "old"/],
    [{ features: { years: Infinity } }, /"years" must be a finite number/],
    [{ features: { years: 1e300 } }, /"years" must be a finite number/],
  ];
  for (const [person, words] of cases) assert.throws(() => model.device(person), refusal(words));
  for (const top of [0, 1.5, "3", NaN]) {
    assert.throws(() => model.device().recommend(top), refusal(/`top` must be a whole number >= 1/));
  }
});

test("only features that change lists are offered", async () => {
  const { members } = await readArchive(new Uint8Array(bytesOf("all")));
  const all = await openModel(bytesOf("all"));
  for (const { side, name } of all.catalogue.features) {
    const counts = members.has(`params/history/${side}.${name}.npy`);
    assert.equal(all.features.some((it) => it.name === name), counts, name);
  }
  assert.ok(all.features.length > 0);
});

test("missing values of features count nothing", () => {
  const plain = model.device({ likes: ["i1"] }).recommend(5);
  const features = { town: "", years: null, tags: [] };
  assert.deepEqual(model.device({ likes: ["i1"], features }).recommend(5), plain);
});

test("an update is what a new device with all of it would be", () => {
  const first = model.device({ likes: ["i1", "i2"], dislikes: ["i3"], features: { town: "Ulm" } });
  const then = first.update({ likes: ["i3"], dislikes: ["i2"], features: { years: 31 } });
  assert.deepEqual([then.likes, then.dislikes], [["i1", "i3"], ["i2"]]);
  assert.deepEqual(then.features, { town: "Ulm", years: 31 });
  const same = model.device({ likes: ["i1", "i3"], dislikes: ["i2"], features: then.features });
  assert.deepEqual(then.recommend(9), same.recommend(9));
  assert.deepEqual(first.likes, ["i1", "i2"], "the first device has not changed");
  assert.deepEqual(then.update({ forget: ["i1"] }).likes, ["i3"]);
});

test("one's own items are not recommended, and nothing is left at the end", () => {
  const all = model.catalogue.items;
  assert.deepEqual(model.device({ likes: all }).recommend(5), []);
  const [last] = model.device({ likes: all.slice(1) }).recommend(5);
  assert.deepEqual([last.item, last.betterThan], ["i0", 1]);
});

test("equal scores are in the order of the catalogue", async () => {
  const flat = await openModel(bytesOf("flat"));
  const found = flat.device({ likes: ["i1"] }).recommend(3);
  assert.deepEqual(found.map(({ item }) => item), ["i0", "i2", "i3"]);
});

test("what speaks for an item adds up to its score", async () => {
  for (const name of ["closed", "hop", "second", "hop-compact"]) {
    const opened = await openModel(bytesOf(name));
    const { members } = await readArchive(new Uint8Array(bytesOf(name)));
    const bias = readArrays(members, true).get("items/bias").data;
    const me = opened.device({ likes: ["i4", "i7"], dislikes: ["i2"] });
    const rest = me.recommend(99).map(({ item, score }) => {
      const reasons = me.why(item);
      const sum = reasons.reduce((total, { effect }) => total + effect, 0);
      for (let k = 1; k < reasons.length; k++) {
        assert.ok(reasons[k - 1].effect >= reasons[k].effect, "the strongest comes first");
      }
      return score - bias[opened.catalogue.items.indexOf(item)] - sum;
    });
    // Standardising takes the same mean off each item's sum.
    for (const one of rest) assert.ok(Math.abs(one - rest[0]) < 1e-4, `${name}: ${one}, ${rest[0]}`);
    if (name === "closed") assert.ok(Math.abs(rest[0]) < 1e-5);
  }
});

test("what speaks for an item where rounds have learned on top of the sums", async () => {
  const opened = await openModel(bytesOf("learn"));
  const { members } = await readArchive(new Uint8Array(bytesOf("learn")));
  const params = readArrays(members, false);
  const numbers = (name) => params.get(name).data;
  const me = opened.device({ likes: ["i4"] });
  for (const { item, score } of me.recommend(99)) {
    const place = opened.catalogue.items.indexOf(item);
    const bias = numbers("items/bias")[place] + numbers("learn/bias")[place];
    const none = bias + numbers("learn/trust")[0] * Math.log(0.01);
    const [{ effect }] = me.why(item);
    assert.ok(Math.abs(score - none - effect) < 1e-5, `${item}: ${score - none}, ${effect}`);
  }
});

test("a saved state is the same person again", () => {
  const features = { town: "Köln", years: 31.5, tags: ["sun", "sea"] };
  const me = model.device({ likes: ["i5", "i1"], dislikes: ["i9"], features });
  const again = model.restore(me.save());
  assert.ok(again instanceof Device);
  assert.deepEqual(again.recommend(9), me.recommend(9));
  assert.equal(again.save(), me.save());
});

test("of a saved state, what the model does not know is left out", () => {
  const state = JSON.parse(model.device({ likes: ["i1"] }).save());
  state.likes.push("gone");
  state.features = { town: "Rome", colour: "red", years: 20 };
  const me = model.restore(JSON.stringify(state));
  assert.deepEqual([me.likes, me.features], [["i1"], { years: 20 }]);
});

test("what is no saved state is refused", () => {
  const whole = JSON.parse(model.device({ likes: ["i1"] }).save());
  const wrong = [
    "", "{", "null", "[]", "5", '"x"', JSON.stringify({ ...whole, is: "other" }),
    JSON.stringify({ ...whole, likes: [1] }), JSON.stringify({ ...whole, likes: ["i1", "i1"] }),
    JSON.stringify({ ...whole, dislikes: "i1" }), JSON.stringify({ ...whole, features: [] }),
    JSON.stringify({ ...whole, features: null }), "[".repeat(10_000_000),
  ];
  for (const text of wrong) {
    assert.throws(() => model.restore(text), refusal(/not the saved state of a device/));
  }
  const newer = JSON.stringify({ ...whole, format: 2 });
  assert.throws(() => model.restore(newer), refusal(/format 2; format 1 is read/));
});

test("a model is read from an address, and what is none is refused", async () => {
  const answers = { "/m": [200, bytesOf("closed")], "/other": [200, Buffer.from("<p>")] };
  const server = createServer((request, response) => {
    const [status, body] = answers[request.url] ?? [404, ""];
    response.writeHead(status).end(body);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const at = (path) => new URL(path, `http://127.0.0.1:${server.address().port}`);
  try {
    const found = await openModel(at("/m"));
    assert.deepEqual(found.catalogue.items, model.catalogue.items);
    await assert.rejects(openModel(at("/other")), refusal(/it is no zip archive/));
    await assert.rejects(openModel(String(at("/none"))), refusal(/the server answers 404/));
  } finally {
    server.closeAllConnections();
    server.close();
  }
  assert.ok(new PrivrecError("x") instanceof Error);
});
