/**
 * Makes `lib/` for `npm pack`: the sources as they are, and their types.
 *
 * The sources are in the Python package, which ships them too: npm takes no files from outside of
 * its folder.
 */
import { spawnSync } from "node:child_process";
import { cpSync, rmSync } from "node:fs";

process.chdir(import.meta.dirname);
rmSync("lib", { recursive: true, force: true });
cpSync("../src/privrec/web/device", "lib", { recursive: true });
cpSync("../LICENSE", "LICENSE");
const ran = spawnSync("node_modules/.bin/tsc", ["-p", "."], { stdio: "inherit" });
if (ran.status !== 0) {
  console.error("the types were not made: npm install --no-save --no-package-lock typescript");
  process.exit(1);
}
