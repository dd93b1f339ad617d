const vm = require("vm");
const util = require("util");
const { createRequire } = require("module");
globalThis.require = createRequire(process.cwd() + "/");
process.stderr.write = process.stdout.write.bind(process.stdout);
const lines = require("readline").createInterface({ input: process.stdin });
let queue = Promise.resolve();
lines.on("line", (line) => {
  const { code, mark } = JSON.parse(line);
  queue = queue.then(async () => {
    let status = "ok";
    try {
      const value = await vm.runInThisContext(code, { filename: "<repl>" });
      if (value !== undefined) console.log(util.inspect(value));
    } catch (error) {
      console.log(error instanceof Error ? error.stack : util.inspect(error));
      status = "error";
    }
    await new Promise((done) => process.stdout.write("\n\x1e" + mark + " " + status + "\n", done));
  });
});
process.on("uncaughtException", (error) => console.log(error));
