// Compares the dashboard's types with what a running server says of its API: npm run conforms -- http://127.0.0.1:PORT

import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const address = process.argv[2];
if (!address) {
  console.error("usage: npm run conforms -- http://127.0.0.1:PORT");
  process.exit(2);
}
const cwd = fileURLToPath(new URL("..", import.meta.url));
const document = await fetch(new URL("/openapi.json", address)).then((answer) => answer.text());
const run = (program, args, input) =>
  spawnSync(`node_modules/.bin/${program}`, args, { cwd, input, stdio: ["pipe", "inherit", "inherit"] })
    .status ?? 1;
const made = run("openapi-typescript", ["--output", "conform/openapi.d.ts"], document);
process.exit(made !== 0 ? made : run("tsc", ["--noEmit", "--project", "conform"]));
