/**
 * The lists of JavaScript are those of Python. Each `NAME.privrec` has a `NAME.json` beside it: what
 * Python's device answers. $GOLDEN is a folder with more of them.
 */
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { openModel } from "../../src/privrec/web/device/index.js";

const folders = [join(import.meta.dirname, "golden"), process.env.GOLDEN].filter(Boolean);

/** Both compute the same sums in another order and precision. */
function assertNear(found, wanted, top, about) {
  assert.ok(Math.abs(found - wanted) <= 1e-5 * Math.max(Math.abs(wanted), top), about);
}

for (const folder of folders) {
  const files = readdirSync(folder).filter((name) => name.endsWith(".privrec"));
  assert.ok(files.length, `${folder} has no export`);
  for (const file of files) {
    test(`Python's lists: ${file}`, async () => {
      const model = await openModel(readFileSync(join(folder, file)));
      const asked = JSON.parse(readFileSync(join(folder, file.replace(".privrec", ".json"))));
      for (const { answer, ...question } of asked) {
        const found = model.device(question).recommend(1000);
        const about = `${file}: ${JSON.stringify(question)}`;
        assert.equal(found.length, answer.length, about);
        const top = Math.max(...answer.map(([, score]) => Math.abs(score)));
        const known = new Map(answer.map(([item, score, better]) => [item, { score, better }]));
        found.forEach(({ item, score, betterThan }, k) => {
          // Two items may be nearer than what 32 bits tell apart, so places are compared by score.
          assertNear(score, answer[k][1], top, `${about} at ${k}: ${score} ${answer[k]}`);
          assertNear(score, known.get(item).score, top, `${about} ${item}`);
          assert.ok(Math.abs(betterThan - known.get(item).better) <= 2 / answer.length, about);
          known.delete(item);
        });
        assert.equal(known.size, 0);
      }
    });
  }
}
