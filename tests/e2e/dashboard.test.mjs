// The dashboard as a person uses it: real server, real workers, real git, a real browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { LATER, Place } from "./place.mjs";

async function inPlace(work) {
  const place = new Place();
  let failed = true;
  try {
    await work(place);
    failed = false;
  } finally {
    // The first failure is the one to be told of.
    await place.close().catch((error) => {
      if (!failed) throw error;
    });
  }
}

async function startTask(page, repo, prompt, model) {
  await page.getByTestId("nav-new").click();
  await page.getByTestId("new-repo").fill(repo);
  await page.getByTestId("new-prompt").fill(prompt);
  if (model) await page.getByTestId("new-model").fill(model);
  await page.getByTestId("new-start").click();
  await page.getByTestId("page-session").waitFor();
}

test("from a task to a merged branch", { timeout: 3 * LATER }, () =>
  inPlace(async (place) => {
    const repo = place.sample();
    const page = await place.page();
    const before = place.git(repo, "rev-parse", "main");

    await startTask(page, repo, "refactor auth module", "demo");
    await page.getByTestId("worker-card").nth(2).waitFor();
    await page.getByTestId("verdict").waitFor();
    assert.equal(await page.getByTestId("verdict").getAttribute("data-verdict"), "complete");
    assert.equal(await page.getByTestId("worker-card").count(), 3);

    const card = page.getByTestId("worker-card").first();
    const id = await card.getAttribute("data-worker");
    await card.click();
    await page.getByTestId("page-worker").waitFor();
    await page.getByTestId("transcript").waitFor();
    assert.match(await page.getByTestId("transcript").innerText(), /\S/);

    await page.getByRole("tab", { name: /review/i }).click();
    await page.getByTestId("diff").waitFor();
    const branch = place.git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/swarm").split("\n").find((name) => name.includes(id));
    const files = place.git(repo, "diff", "--name-only", `main...${branch}`).split("\n");
    const listed = await page.getByTestId("file-list").innerText();
    for (const file of files) assert.ok(listed.includes(file.split("/").at(-1)), `${file} is listed`);

    await page.getByTestId("merge").click();
    await page.getByTestId("merge-result").waitFor();
    assert.equal(await page.getByTestId("merge-result").getAttribute("data-result"), "merged");
    assert.notEqual(place.git(repo, "rev-parse", "main"), before);
    place.git(repo, "merge-base", "--is-ancestor", branch, "main");
    assert.equal(place.git(repo, "status", "--porcelain"), "");
    // Home says so too.
    await page.getByTestId("nav-home").click();
    await page.locator(`[data-testid=overview-row][data-worker=${id}][data-group=done]`).waitFor();
  }));

test("a permission is answered in the inbox with a key", { timeout: 3 * LATER }, () =>
  inPlace(async (place) => {
    const agent = { description: "write a file", prompt: "work: alpha.", name: "alpha" };
    await place.model({
      rules: [
        { when: { agent: "please write", turn: 0 }, reply: { parts: [{ tool_use: { name: "Agent", input: agent } }] } },
        { when: { agent: "please write" }, reply: "All is done." },
        {
          when: { agent: "work: alpha", turn: 0 },
          reply: { parts: [{ tool_use: { name: "Write", input: { file_path: "asked.txt", content: "yes\n" } } }] },
        },
        { when: { agent: "work: alpha" }, reply: "It is written." },
      ],
    });
    const repo = place.repository();
    const page = await place.page();
    place.swarm("run", "--detach", "--repo", repo, "--permission-mode", "default", "please write");
    await page.keyboard.press("g");
    await page.keyboard.press("i");
    await page.getByTestId("page-inbox").waitFor();
    const card = page.getByTestId("permission-card");
    await card.waitFor();
    // Nothing is framed by itself, so a key answers nothing.
    await page.keyboard.press("a");
    assert.equal(await page.getByTestId("permission-decided").count(), 0);
    await page.keyboard.press("j");
    // A card arms a moment after it was framed: until then the key is nobody's.
    await assertEventually(async () => {
      await page.keyboard.press("a");
      return (await page.getByTestId("permission-decided").count()) === 1;
    });
    assert.match(await page.getByTestId("permission-decided").innerText(), /allowed once/);
    await page.getByTestId("rail-sessions").getByRole("link").first().click();
    await page.getByTestId("verdict").waitFor();
    assert.equal(await page.getByTestId("verdict").getAttribute("data-verdict"), "complete");
    const [branch] = place.git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/swarm").split("\n");
    assert.equal(place.git(repo, "show", `${branch}:asked.txt`), "yes");
  }));

test("several are answered at once, a question in its parts, and a plan as it reads", { timeout: 4 * LATER }, () =>
  inPlace(async (place) => {
    const use = (name, input) => ({ parts: [{ tool_use: { name, input } }] });
    const agent = (name) => ({ tool_use: { name: "Agent", input: { description: `do ${name}`, prompt: `work: ${name}.`, name } } });
    const questions = [
      {
        question: "Which database?",
        header: "Storage",
        options: [{ label: "SQLite", description: "one file", preview: "app.db" }, { label: "Postgres" }],
      },
      { question: "What else is wanted?", multiSelect: true, options: ["logs", "metrics", "traces"] },
    ];
    const plan = "# Two files\n\n1. Write `late.txt`.\n2. **Nothing** else.\n\n<img src=x onerror=alert(1)>\n";
    await place.model({
      rules: [
        { when: { agent: "please ask", turn: 0 }, reply: { parts: [agent("alpha"), agent("beta")] } },
        { when: { agent: "please ask" }, reply: "All is done." },
        { when: { agent: "work: beta", turn: 0 }, reply: use("Write", { file_path: "b.txt", content: "b\n" }) },
        { when: { agent: "work: beta" }, reply: "Beta is done." },
        { when: { agent: "work: alpha", turn: 0 }, reply: use("Write", { file_path: "a.txt", content: "a\n" }) },
        { when: { agent: "work: alpha", turn: 1 }, reply: use("AskUserQuestion", { questions }) },
        { when: { agent: "work: alpha", turn: 2 }, reply: use("EnterPlanMode", {}) },
        { when: { agent: "work: alpha", turn: 3 }, reply: use("ExitPlanMode", { plan, name: "two" }) },
        { when: { agent: "work: alpha" }, reply: "Alpha is done." },
      ],
    });
    const repo = place.repository();
    const page = await place.page();
    place.swarm("run", "--detach", "--repo", repo, "--permission-mode", "default", "please ask");
    await page.keyboard.press("g");
    await page.keyboard.press("i");
    await page.getByTestId("permission-card").nth(1).waitFor();
    await page.getByTestId("batch-all").click();
    assert.match(await page.getByTestId("batch-count").innerText(), /2 of 2/);
    await place.shots(page, "batch");
    await page.getByTestId("batch-allow").click();

    await page.getByTestId("questions").waitFor();
    assert.equal(await page.getByTestId("permission-select").count(), 0, "a question has an answer of its own");
    const send = page.getByTestId("question-answer");
    assert.ok(await send.isDisabled(), "nothing is answered yet");
    await page.getByLabel("SQLite").check();
    assert.match(await page.getByTestId("question-preview").innerText(), /app\.db/);
    assert.ok(await send.isDisabled(), "one is left");
    await page.getByLabel("traces").check();
    await page.getByLabel("logs").check();
    await page.getByTestId("question-words").nth(1).fill("and soon");
    await place.shots(page, "question");
    await assertEventually(async () => {
      // It goes away when it has worked.
      if (await send.count()) await send.click({ timeout: 2_000 }).catch(() => {});
      return (await page.getByTestId("questions").count()) === 0;
    });

    await page.getByTestId("plan").locator("ol").waitFor();
    assert.equal(await page.getByTestId("plan").locator("ol li").count(), 2, "it reads as it is meant");
    assert.equal(await page.getByTestId("plan").locator("img").count(), 0, "and brings nothing along");
    await page.getByTestId("plan").scrollIntoViewIfNeeded();
    await place.shots(page, "plan");
    await assertEventually(async () => {
      const accept = page.locator("[data-row] [data-testid=allow-once]");
      if (await accept.count()) await accept.click({ timeout: 2_000 }).catch(() => {});
      return (await page.locator("[data-row][data-request]").count()) === 0;
    });
    const decided = (await page.getByTestId("permission-decided").allInnerTexts()).join("\n");
    assert.match(decided, /answered, you: “Storage: SQLite\s+What else is wanted\?: logs, traces; and soon”/);
    assert.match(decided, /accepted, you/);
    await page.getByTestId("rail-sessions").getByRole("link").first().click();
    await page.getByTestId("verdict").waitFor();
    const branches = place.git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/swarm").split("\n");
    const files = branches.flatMap((branch) => place.git(repo, "diff", "--name-only", `main...${branch}`).split("\n"));
    for (const file of ["a.txt", "b.txt", ".claude/plans/two.md"]) assert.ok(files.includes(file), `${file} of ${files}`);
  }));

test("the dashboard reads what the server says it sends", { timeout: LATER }, () =>
  inPlace(async (place) => {
    const page = await place.page();
    place.conforms(new URL(page.url()).origin);
  }));

test("a code works once, and a foreign browser gets no further than the login", { timeout: 2 * LATER }, () =>
  inPlace(async (place) => {
    const page = await place.page();
    const address = new URL(page.url()).origin;
    const stranger = await page.context().browser().newContext();
    const other = await stranger.newPage();
    await other.goto(`${address}/#code=2222-2222`);
    await other.getByTestId("page-login").waitFor();
    await other.getByTestId("login-error").waitFor();
    // Reloading keeps the one that is signed in.
    await page.reload();
    await page.getByTestId("nav-home").waitFor();
    assert.equal(await page.getByTestId("page-login").count(), 0);
  }));

async function assertEventually(holds) {
  const end = Date.now() + LATER;
  while (!(await holds())) assert.ok(Date.now() < end, "it did not happen");
}
