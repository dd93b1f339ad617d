/** Sizes of the build, gzipped, against the budget of the first screen. Exits 1 when one is passed. */
import { readdirSync, readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const BUDGET = { "first screen, JS": 200 * 1024, "first screen, CSS": 15 * 1024, review: 90 * 1024 };
const dir = new URL("../dist/assets/", import.meta.url);
const sums = { "first screen, JS": 0, "first screen, CSS": 0, review: 0 };
for (const name of readdirSync(dir).sort()) {
  const size = gzipSync(readFileSync(new URL(name, dir)), { level: 9 }).length;
  process.stdout.write(`${String(size).padStart(8)}  ${name}\n`);
  if (name.endsWith(".css")) sums["first screen, CSS"] += size;
  else if (name.startsWith("review")) sums.review += size;
  else sums["first screen, JS"] += size;
}
for (const [part, size] of Object.entries(sums)) {
  const over = size > BUDGET[part];
  process.stdout.write(
    `${part}: ${(size / 1024).toFixed(1)} KB of ${BUDGET[part] / 1024} KB${over ? "  TOO BIG" : ""}\n`,
  );
  if (over) process.exitCode = 1;
}
