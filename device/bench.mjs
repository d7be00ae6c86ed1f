/**
 * Prints what a device takes with the export on the command line: milliseconds of the processor,
 * which other work on the machine changes little, and bytes of memory.
 */
import { readFileSync } from "node:fs";
import { openModel } from "../src/privrec/web/device/index.js";

/** The most memory that this process has had, in bytes: from Linux, else what it has now. */
function peak() {
  try {
    return 1024 * Number(/VmHWM:\s*(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))?.[1]);
  } catch {
    return process.memoryUsage.rss();
  }
}

function spent() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

const bytes = readFileSync(process.argv[2]);
const before = peak();
const start = spent();
const model = await openModel(bytes);
let me = model.device({ likes: [model.catalogue.items[0]] });
me.recommend(20);
const first = spent() - start;
const likes = [];
for (const item of model.catalogue.items.slice(1, 21)) {
  const from = spent();
  me = me.update({ likes: [item] });
  me.recommend(20);
  likes.push(spent() - from);
}
const like = likes.sort((a, b) => a - b)[likes.length >> 1];
const memory = peak() - before + bytes.length;
console.log(JSON.stringify({ first, like, memory }));
