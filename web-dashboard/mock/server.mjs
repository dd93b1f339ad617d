/**
 * A server for looking at the dashboard without one: `node mock/server.mjs [port]` serves `dist/` and a made-up
 * API in the shapes of the wire, with a stream that moves. For development only; nothing of it is shipped.
 *
 *   ?            open http://127.0.0.1:4173/#code=demo (any code but `bad` works; sign-in is needed once)
 *   MOCK_EMPTY=1 no session yet     MOCK_STILL=1 nothing moves     MOCK_OPEN=1 no sign-in
 *   MOCK_ROWS=100 that many workers at work
 */

import { createReadStream, existsSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import * as fixtures from "./fixtures.mjs";

const { S1, S2, iso } = fixtures;
const port = Number(process.argv[2] ?? 4173);
const dist = join(fileURLToPath(new URL(".", import.meta.url)), "..", "dist");
const env = (name) => process.env[name] ?? "";
const start = Date.now();

const state = {
  position: 1000,
  seq: 420,
  log: [],
  clients: new Set(),
  workers: env("MOCK_EMPTY") ? [] : fixtures.workers(start),
  sessions: env("MOCK_EMPTY") ? [] : fixtures.sessions(start),
  permissions: env("MOCK_EMPTY") ? [] : fixtures.permissions(start),
  records: fixtures.transcript(start),
  talk: { [S1]: fixtures.conversation(start, S1), [S2]: fixtures.conversation(start, S2) },
  ledger: fixtures.ledger(start),
  today: 4.12,
  unread: [],
  tasks: new Map(),
};
for (let i = 0; i < Number(env("MOCK_ROWS") || 0); i++) {
  state.workers.push(
    fixtures.worker(start, {
      id: `agent-${(4096 + i).toString(36)}x`,
      name: `Part ${i + 1}`,
      activity: `Bash make part-${i + 1}`,
    }),
  );
}

// --- Rows ------------------------------------------------------------------------------------------------

const word = (worker) => {
  const n = worker.doubts.length;
  if (worker.discarded) return ["done", "Discarded", "⌫", ""];
  if (worker.merged_into) return ["done", `Merged into ${worker.merged_into}`, "✓✓", ""];
  switch (worker.status) {
    case "pending":
      return ["queued", "Queued", "○", `place ${worker.position}`];
    case "waiting":
      return ["needs_you", "Permission", "▲", worker.activity];
    case "failed":
      return ["failed", "Failed", "✕", worker.cause];
    case "aborted":
      return ["done", worker.stopped_by_person ? "Stopped by you" : "Stopped by coordinator", "⊘", ""];
    case "completed":
      if (n > 0)
        return ["needs_you", `${n} doubts`, "◆", "says tests or build pass, none ran after the last edit"];
      if (worker.commits === 0) return ["done", "Reported", "✓", ""];
      return [
        "ready",
        "Ready to review",
        "✓",
        `${worker.files_changed} files +${worker.insertions} −${worker.deletions} · check passed`,
      ];
    default:
      if (Date.now() - Date.parse(worker.updated_at) > 300_000)
        return ["watch", "Quiet 6 m", "◌", worker.activity];
      return ["working", "Working", "◐", worker.activity];
  }
};
const ORDER = ["needs_you", "failed", "ready", "watch", "working", "queued", "done"];

function overview() {
  const rows = state.workers.map((worker) => {
    const [group, text, glyph, fact] = word(worker);
    const ask = state.permissions.find(
      (view) => view.request.worker_id === worker.id && !view.decision && !view.withdrawn,
    );
    return {
      group,
      word: text,
      glyph,
      fact,
      worker,
      session_id: worker.session_id,
      title: state.sessions.find((session) => session.session_id === worker.session_id)?.title ?? "",
      deadline_at: ask?.deadline_at ?? null,
      link: ask
        ? `/inbox/${ask.request.id}`
        : group === "ready"
          ? `/w/${worker.id}/review`
          : `/w/${worker.id}`,
    };
  });
  if (state.sessions.length > 0) {
    rows.push({
      group: "needs_you",
      word: "Asks you",
      glyph: "▲",
      fact: "“Keep the old endpoint?”",
      worker: null,
      session_id: S1,
      title: state.sessions[0].title,
      deadline_at: null,
      link: `/s/${S1}`,
    });
  }
  rows.sort(
    (a, b) =>
      ORDER.indexOf(a.group) - ORDER.indexOf(b.group) ||
      (a.deadline_at ?? "9").localeCompare(b.deadline_at ?? "9"),
  );
  return {
    rows,
    sessions: state.sessions,
    asks: state.permissions.filter((view) => !view.decision && !view.withdrawn).length,
    today: { known_usd: env("MOCK_EMPTY") ? 0 : state.today, unpriced_calls: 0 },
    position: state.position,
    now: iso(Date.now()),
  };
}

// --- Events ----------------------------------------------------------------------------------------------

function journal(event) {
  state.position += 1;
  state.seq += 1;
  const line = {
    v: 1,
    seq: state.seq,
    at: iso(Date.now()),
    session_id: S1,
    position: state.position,
    ...event,
  };
  state.log.push(line);
  for (const client of state.clients) client.write(`id: ${line.position}\ndata: ${JSON.stringify(line)}\n\n`);
}
function live(worker_id, data) {
  const line = {
    v: 1,
    seq: null,
    at: iso(Date.now()),
    session_id: S1,
    kind: "live",
    worker_id,
    after: state.seq,
    data,
  };
  for (const client of state.clients) client.write(`data: ${JSON.stringify(line)}\n\n`);
}
function changed(worker, reason) {
  worker.updated_at = iso(Date.now());
  journal({
    kind: "worker.state",
    worker_id: worker.id,
    from: worker.status,
    status: worker.status,
    reason,
    worker,
  });
}
setInterval(() => {
  for (const client of state.clients)
    client.write(`event: beat\ndata: ${JSON.stringify({ now: iso(Date.now()) })}\n\n`);
}, 15_000).unref();

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const REPLY =
  "Both merge cleanly. Next I ask **agent-c3d** to finish the limit, and start one worker for the changelog; it needs `docs/` alone, so it collides with nobody.";

async function coordinatorSpeaks() {
  journal({ kind: "coordinator.request", request: 13, model: "m", entries: [], messages: [], blocks: [] });
  await wait(900);
  for (const part of REPLY.match(/.{1,6}/gs)) {
    live(null, { live: "text_delta", text: part, thinking: false });
    await wait(60);
  }
  state.talk[S1].push({ item: "coordinator", seq: state.seq + 1, at: iso(Date.now()), text: REPLY });
  journal({ kind: "coordinator.turn", request: 13, turn: 7 });
}

async function workerWorks() {
  const worker = state.workers.find((candidate) => candidate.id === "agent-c3d");
  if (!worker) return;
  const id = `toolu_live_${state.seq}`;
  live(worker.id, { live: "tool_started", tool_use_id: id, tool: "Bash", summary: "cargo test -p api" });
  live(worker.id, {
    live: "activity",
    text: "Bash cargo test -p api",
    context_tokens: 62_000,
    context_window: 180_000,
  });
  const lines = [];
  for (let i = 0; i < 12; i++) {
    lines.push(`test limit::case_${i} ... ok`);
    live(worker.id, { live: "tool_progress", tool_use_id: id, tail: lines.slice(-5).join("\n") });
    await wait(400);
  }
  live(worker.id, { live: "tool_ended", tool_use_id: id, is_error: false });
  record({
    type: "assistant",
    message: {
      role: "assistant",
      content: [{ type: "tool_use", id, name: "Bash", input: { command: "cargo test -p api" } }],
    },
    request: 200 + state.seq,
    model: "m",
    stop_reason: { reason: "tool_use" },
    usage: worker.usage,
    cost: { known_usd: 0.01, unpriced_calls: 0 },
  });
  record({
    type: "tool_finished",
    tool_use_id: id,
    name: "Bash",
    result: { type: "tool_result", tool_use_id: id, content: [{ type: "text", text: lines.join("\n") }] },
    duration_ms: 4800,
    effect: { kind: "command", command: "cargo test -p api", exit_code: 0, ended_by: null, benign: false },
  });
  worker.turns += 1;
  changed(worker, "a turn");
  for (const part of "All cases pass now. I look at the documentation next, then I am done.".match(
    /.{1,5}/gs,
  )) {
    live(worker.id, { live: "text_delta", text: part, thinking: false });
    await wait(70);
  }
}

function record(body) {
  const n = state.records[state.records.length - 1].n + 1;
  state.records.push({ n, uuid: `u${n}`, parent_uuid: null, timestamp: iso(Date.now()), run: 1, body });
  journal({
    kind: "worker.record",
    worker_id: "agent-c3d",
    record: { n, uuid: `u${n}`, timestamp: iso(Date.now()), run: 1, record: body.type, bytes: 100, head: "" },
  });
}

if (!env("MOCK_STILL") && !env("MOCK_EMPTY")) {
  const loop = async (work, pause) => {
    for (;;) {
      await wait(pause);
      await work();
    }
  };
  loop(coordinatorSpeaks, 9000);
  loop(workerWorks, 2500);
  setInterval(() => {
    const busy = state.workers.filter((worker) => worker.status === "running");
    const worker = busy[Math.floor(Math.random() * busy.length)];
    if (worker) {
      worker.cost_usd = (worker.cost_usd ?? 0) + 0.01;
      state.today += 0.01;
      changed(worker, "news");
    }
  }, 3000).unref();
}

// --- The API ---------------------------------------------------------------------------------------------

const json = (response, status, body, headers = {}) => {
  response.writeHead(status, {
    "content-type": status >= 400 ? "application/problem+json" : "application/json",
    ...headers,
  });
  response.end(body === undefined ? "" : JSON.stringify(body));
};
const problem = (response, status, code, title, extra = {}) =>
  json(response, status, { type: "about:blank", status, title, code, ...extra });

const body = (request) =>
  new Promise((resolve) => {
    let text = "";
    request.on("data", (chunk) => {
      text += chunk;
    });
    request.on("end", () => resolve(text === "" ? {} : JSON.parse(text)));
  });

function stream(request, response, url) {
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
  response.write(": hello\n\n");
  const from = Number(request.headers["last-event-id"] ?? url.searchParams.get("from") ?? state.position);
  for (const line of state.log) {
    if (line.position > from) response.write(`id: ${line.position}\ndata: ${JSON.stringify(line)}\n\n`);
  }
  state.clients.add(response);
  request.on("close", () => state.clients.delete(response));
}

function session(id) {
  const found = state.sessions.find((candidate) => candidate.session_id === id || candidate.short === id);
  if (!found) return null;
  return {
    session: { ...found, updated_at: iso(Date.now() - 3000) },
    tasks: [],
    workers: state.workers.filter((worker) => worker.session_id === found.session_id),
    notifications: found.session_id === S1 ? state.ledger : [],
    permissions: state.permissions.filter(
      (view) => view.session_id === found.session_id && !view.decision && !view.withdrawn,
    ),
    conversation: state.talk[found.session_id] ?? [],
    seq: state.seq,
  };
}

function workerDetail(id) {
  const worker = state.workers.find((candidate) => candidate.id === id);
  if (!worker) return null;
  const ended = ["completed", "failed", "aborted"].includes(worker.status);
  return {
    worker,
    prompt: `You work on: ${worker.name}.\nKeep the API as it is. Run the tests before you report.`,
    result: ended
      ? "Found a null pointer in src/auth/validate.ts:42. The guard is in, the module's tests pass."
      : null,
    outcome: ended
      ? fixtures.outcome({
          doubts: worker.doubts,
          check: worker.doubts.length > 0 ? "none" : "passed",
          exit_reason:
            worker.status === "failed"
              ? { reason: "model_error", error: "rate_limit", message: "free again at 14:05" }
              : { reason: worker.exit_reason },
        })
      : null,
    ledger: ended ? state.ledger.filter((entry) => entry.notification.key.worker_id === id) : [],
    permission: state.permissions.find((view) => view.request.worker_id === id && !view.decision) ?? null,
    todo:
      id === "agent-c3d"
        ? [
            { content: "counter", status: "completed" },
            { content: "reset", status: "in_progress", activeForm: "fixing the reset" },
            { content: "docs", status: "pending" },
          ]
        : [],
    unread: id === "agent-c3d" ? state.unread : [],
    seq: state.seq,
  };
}

const MERGES = ["clean", "conflict", "target_dirty", "target_moved", "check_failed", "already_merged"];
let merges = 0;
function merge(worker, order) {
  const into = order.into ?? "main";
  const kind = order.dry_run ? MERGES[merges++ % MERGES.length] : "merged";
  switch (kind) {
    case "clean":
      return { result: "clean", into, from: "9c1f2ab4d5e6f708" };
    case "conflict":
      return {
        result: "conflict",
        into,
        at: "9c1f2ab4d5e6f708",
        files: [{ path: "src/auth/validate.ts", lines: ["40-44", "61-61"] }],
      };
    case "target_dirty":
      return {
        result: "target_dirty",
        into,
        checkout: "/home/me/payments-api",
        files: [" M src/auth/validate.ts"],
      };
    case "target_moved":
      return { result: "target_moved", into, expected: "9c1f2ab4d5e6f708", actual: "aa1f2ab4d5e6f708" };
    case "check_failed":
      return { result: "check_failed", output: "running 84 tests\ntest auth::guard ... FAILED\n" };
    case "already_merged":
      return { result: "already_merged", into };
    default:
      worker.merged_into = into;
      changed(worker, "merged");
      return {
        result: "merged",
        into,
        from: "9c1f2ab4d5e6f708",
        to: "bb1f2ab4d5e6f708",
        files: worker.files_changed,
        insertions: worker.insertions,
        deletions: worker.deletions,
      };
  }
}

async function api(request, response, url) {
  const path = url.pathname.slice("/api/v1".length);
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  const post = request.method === "POST";
  if (path === "/login" && post) {
    const { code } = await body(request);
    if (code === "bad")
      return problem(response, 401, "bad_code", "this code was used already, or is older than five minutes");
    return json(response, 204, undefined, { "set-cookie": "swarm=mock; HttpOnly; SameSite=Strict; Path=/" });
  }
  if (!env("MOCK_OPEN") && !(request.headers.cookie ?? "").includes("swarm=mock")) {
    return problem(response, 401, "unauthorized", "not signed in");
  }
  if (path === "/mock") return json(response, 200, { streams: state.clients.size });
  if (path === "/events") return stream(request, response, url);
  if (path === "/overview") return json(response, 200, overview());
  if (path === "/permissions") return json(response, 200, state.permissions);
  if (parts[0] === "permissions" && post) {
    const view = state.permissions.find((candidate) => candidate.request.id === parts[1]);
    if (!view) return problem(response, 404, "no_such_request", "there is no such request");
    const order = await body(request);
    await wait(150);
    if (view.decision) return json(response, 200, { won: false, decision: view.decision, wrote_rule: null });
    view.decision = {
      id: view.request.id,
      decision: order.decision,
      scope: order.scope ?? "once",
      by: "person",
      reason: order.reason ?? null,
      stop: order.stop ?? false,
      decided_at: iso(Date.now()),
    };
    const wrote_rule =
      order.scope === "always" ? `${view.request.proposed_rule} in ${view.always_file}` : undefined;
    const worker = state.workers.find((candidate) => candidate.id === view.request.worker_id);
    journal({
      kind: "permission.decided",
      worker_id: view.request.worker_id,
      decision: view.decision,
      ...(wrote_rule ? { wrote_rule } : {}),
    });
    if (worker) {
      worker.status = order.stop ? "aborted" : "running";
      worker.stopped_by_person = order.stop === true;
      worker.waiting_for = null;
      changed(worker, "decided");
    }
    return json(response, 200, { won: true, decision: view.decision, wrote_rule: wrote_rule ?? null });
  }
  if (parts[0] === "sessions" && parts.length === 2) {
    const found = session(parts[1]);
    return found
      ? json(response, 200, found)
      : problem(response, 404, "no_such_session", `there is no session ${parts[1]}`);
  }
  if (parts[0] === "sessions" && parts[2] === "messages" && post) {
    const { text } = await body(request);
    (state.talk[parts[1]] ?? []).push({ item: "person", seq: state.seq + 1, at: iso(Date.now()), text });
    journal({ kind: "message.queued", message_id: "m", task_id: fixtures.T1, text });
    return json(response, 202, {
      message_id: "m",
      task_id: fixtures.T1,
      status: "queued",
      note: "Queued: the coordinator reads it at its next turn.",
    });
  }
  if (parts[0] === "sessions" && parts[2] === "interrupt" && post) {
    return json(response, 200, { stopping: ["agent-c3d", "agent-e5f"], already: false });
  }
  if (parts[0] === "workers") {
    const detail = workerDetail(parts[1]);
    if (!detail)
      return problem(response, 404, "no_such_worker", `there is no worker ${parts[1]}`, {
        hint: "swarm ps lists them",
      });
    const { worker } = detail;
    switch (parts[2]) {
      case undefined:
        return json(response, 200, detail);
      case "transcript": {
        const after = Number(url.searchParams.get("after") ?? 0);
        const limit = Number(url.searchParams.get("limit") ?? 200);
        const all = worker.status === "pending" ? [] : state.records;
        return json(response, 200, {
          records: all.filter((line) => line.n > after).slice(0, limit),
          last: all.length,
          damaged_lines: 0,
        });
      }
      case "diff":
        return json(response, 200, {
          base: worker.base,
          head: "9c1f2ab4d5e6f708",
          branch: worker.branch ?? "",
          commits: worker.commits,
          files: [],
          uncommitted: worker.status === "running" ? ["src/api/limit.rs"] : [],
          patch: worker.files_changed > 0 ? fixtures.PATCH : "",
        });
      case "messages": {
        const { text } = await body(request);
        state.unread.push({ seq: state.seq, text, from_person: true });
        journal({
          kind: "worker.command",
          worker_id: worker.id,
          command: { command: "message", message_id: null, from_person: true, text },
        });
        return json(response, 202, {
          message_id: null,
          task_id: null,
          status: "queued",
          note: "Queued: it is read at its next turn.",
        });
      }
      case "stop":
        worker.status = "aborted";
        worker.stopped_by_person = true;
        worker.ended_at = iso(Date.now());
        changed(worker, "stopped");
        return json(response, 200, { stopping: [worker.id], already: false });
      case "merge":
        return json(response, 200, merge(worker, await body(request)));
      case "discard":
        worker.discarded = true;
        changed(worker, "discarded");
        return json(response, 200, {
          worker_id: worker.id,
          kept_ref: `refs/swarm/bin/${worker.id}`,
          days: 30,
        });
      case "restore":
        worker.discarded = false;
        changed(worker, "restored");
        return json(response, 200, { message: `The branch of ${worker.id} is back.`, kept_as: null });
    }
  }
  if (path === "/tasks" && post) {
    const task = await body(request);
    const key = request.headers["idempotency-key"] ?? "";
    if (state.tasks.has(key)) return json(response, 202, state.tasks.get(key));
    if (!task.repo?.startsWith("/"))
      return problem(response, 422, "not_a_repository", `${task.repo} is not inside a git repository`, {
        hint: "git init makes one",
      });
    if (task.base === "nope") return problem(response, 422, "bad_base", "nope names no commit");
    if (!task.model)
      return problem(response, 422, "no_model", "no model is configured", {
        hint: "set model in config.toml, or try the model demo",
      });
    const accepted = {
      task_id: fixtures.T1,
      session_id: S1,
      after: state.seq,
      notices: ["2 changed files in your checkout are not part of the base"],
    };
    state.tasks.set(key, accepted);
    return json(response, 202, accepted);
  }
  return problem(response, 404, "not_found", `there is no ${request.method} ${path}`);
}

// --- Files -----------------------------------------------------------------------------------------------

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
};
const CSP =
  "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

function files(response, url) {
  let file = normalize(join(dist, decodeURIComponent(url.pathname)));
  if (!file.startsWith(dist) || !existsSync(file) || statSync(file).isDirectory()) {
    if (url.pathname.startsWith("/assets/")) {
      response.writeHead(404).end();
      return;
    }
    file = join(dist, "index.html");
  }
  response.writeHead(200, {
    "content-type": TYPES[extname(file)] ?? "application/octet-stream",
    "content-security-policy": CSP,
    "cache-control": file.endsWith(".html") ? "no-store" : "max-age=31536000, immutable",
  });
  createReadStream(file).pipe(response);
}

createServer((request, response) => {
  const url = new URL(request.url ?? "/", "http://localhost");
  if (url.pathname.startsWith("/api/v1/")) {
    api(request, response, url).catch((error) => problem(response, 500, "mock", String(error)));
  } else files(response, url);
}).listen(port, "127.0.0.1", () => {
  process.stdout.write(`http://127.0.0.1:${port}/#code=demo\n`);
});
