// A home, a server and a browser for one test; all of it is gone afterwards.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const bin = process.env.SWARM_TEST_BIN_DIR;
const root = fileURLToPath(new URL("../..", import.meta.url));
const CHROMIUM = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** For what starts processes and runs several turns, on a machine that may be busy. */
export const LATER = 90_000;

export class Place {
  constructor() {
    this.directory = realpathSync(mkdtempSync(join(tmpdir(), "swarm-e2e-")));
    this.environment = {
      PATH: [bin, process.env.PATH].join(delimiter),
      HOME: this.directory,
      SWARM_HOME: join(this.directory, "s"),
      LANG: "C.UTF-8",
    };
    this.complaints = [];
  }

  /** Runs a command of swarm to its end; its stdout. */
  swarm(...words) {
    const options = { cwd: this.directory, env: this.environment, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] };
    return execFileSync(join(bin, "swarm"), words, options);
  }

  /** Compares the dashboard's types with the API's document. */
  conforms(address) {
    const words = ["--prefix", join(root, "web-dashboard"), "run", "conforms", "--", address];
    execFileSync("npm", words, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  }

  git(repo, ...words) {
    const env = { ...this.environment, GIT_CONFIG_NOSYSTEM: "1" };
    return execFileSync("git", words, { cwd: repo, env, encoding: "utf8" }).trim();
  }

  /** The sample repository of the demo. */
  sample() {
    const repo = join(this.directory, "shop");
    execFileSync(join(root, "deploy", "sample.sh"), [repo], { env: this.environment });
    return repo;
  }

  /** A repository with one commit. */
  repository() {
    const repo = join(this.directory, "project");
    this.git(this.directory, "init", "-q", "-b", "main", repo);
    this.git(repo, "config", "user.name", "A. Person");
    this.git(repo, "config", "user.email", "person@example.org");
    writeFileSync(join(repo, "README.md"), "# A project\n");
    this.git(repo, "add", ".");
    this.git(repo, "commit", "-q", "-m", "first");
    return repo;
  }

  /** The scripted provider; later servers of this place use it. */
  async model(script) {
    const file = join(this.directory, "script.json");
    writeFileSync(file, JSON.stringify(script));
    this.provider = spawn(join(bin, "model-server"), ["--script", file, "--until-eof"], { stdio: ["pipe", "pipe", "inherit"] });
    const [line] = await firstLine(this.provider.stdout);
    this.environment.ANTHROPIC_BASE_URL = JSON.parse(line).url;
    this.environment.ANTHROPIC_API_KEY = "test-key";
    this.environment.SWARM_MODEL = "anthropic/test-model";
  }

  /** A page that is signed in by a fresh code; what the browser complains about fails the test at its end. */
  /** Pictures of the page for people, where SWARM_E2E_SHOTS names a directory. */
  async shots(page, name) {
    const directory = process.env.SWARM_E2E_SHOTS;
    if (!directory) return;
    const wide = page.viewportSize();
    for (const scheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme: scheme });
      for (const viewport of [wide, { width: 390, height: 844 }]) {
        await page.setViewportSize(viewport);
        await page.screenshot({ path: join(directory, `${name}-${scheme}-${viewport.width}.png`) });
      }
    }
    await page.setViewportSize(wide);
    await page.emulateMedia({ colorScheme: null });
  }

  async page() {
    // `swarm dashboard` starts the server too.
    const [link] = this.swarm("dashboard", "--no-open").match(/http:\/\/127\.0\.0\.1:\d+\/#code=[A-Z0-9-]+/) ?? [];
    assert.ok(link, "swarm dashboard prints a link with a code");
    const executablePath = CHROMIUM.find((path) => existsSync(path));
    assert.ok(executablePath, "chromium is installed");
    this.browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
    const context = await this.browser.newContext({ viewport: { width: 1440, height: 900 } });
    context.setDefaultTimeout(LATER);
    const page = await context.newPage();
    page.on("console", (message) => {
      if (message.type() === "error" || message.type() === "warning") this.complaints.push(message.text());
    });
    page.on("pageerror", (error) => this.complaints.push(String(error)));
    page.on("requestfailed", (request) => {
      // What is under way when a page is left ends so.
      const why = request.failure()?.errorText;
      if (why !== "net::ERR_ABORTED") this.complaints.push(`${request.url()}: ${why}`);
    });
    page.on("request", (request) => {
      const url = new URL(request.url());
      if (url.origin !== new URL(link).origin) this.complaints.push(`a request elsewhere: ${url}`);
    });
    await page.goto(link);
    await page.getByTestId("nav-home").waitFor();
    assert.ok(!page.url().includes("code="), "the code is taken out of the address");
    return page;
  }

  /** Server, workers, browser and files. */
  async close() {
    await this.browser?.close();
    try {
      this.swarm("serve", "--stop", "--workers");
    } finally {
      this.provider?.stdin.end();
      const log = join(this.environment.SWARM_HOME, "server.log");
      this.log = existsSync(log) ? readFileSync(log, "utf8") : "";
      rmSync(this.directory, { recursive: true, force: true });
    }
    assert.deepEqual(this.complaints, [], "the browser complained");
    assert.ok(!this.log.includes("#code="), "no code stands in a log");
  }
}

function firstLine(stream) {
  return new Promise((resolve, reject) => {
    const lines = createInterface({ input: stream });
    lines.once("line", (line) => resolve([line]));
    lines.once("close", () => reject(new Error("the program ended without a word")));
  });
}
