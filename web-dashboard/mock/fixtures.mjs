/** Fixtures of the mock server: one busy session and a finished one, in the shapes of the wire. */

export const S1 = "01a22d8c-a610-7b1d-9a44-52f07c1d09e2";
export const S2 = "01a22d11-0b20-7c33-8e10-11aa3f9a4c10";
const T1 = "01a22d8c-a611-7000-8000-000000000001";
const T2 = "01a22d11-0b21-7000-8000-000000000002";
const BASE = "3f2a91c07be14f6c8a1d2e3f405162738495a6b7";

export const iso = (ms) => new Date(ms).toISOString();
const usage = (input, output, read = 0, write = 0) => ({
  input_tokens: input,
  output_tokens: output,
  cache_read_tokens: read,
  cache_write_tokens: write,
});

export function worker(start, over) {
  return {
    id: "agent-a1b",
    name: "Worker",
    status: "running",
    exit_reason: null,
    exit_detail: null,
    doubts: [],
    branch: `swarm/7c1d09e2/${over.id}/${over.name.toLowerCase().replaceAll(" ", "-")}`,
    base: BASE,
    commits: 0,
    files_changed: 0,
    insertions: 0,
    deletions: 0,
    turns: 3,
    usage: usage(12_400, 3_100, 182_000, 21_000),
    cost_usd: 0.42,
    session_id: S1,
    task_id: T1,
    run: 1,
    agent_type: "general-purpose",
    isolation: "worktree",
    expects: "changes",
    model: "anthropic/claude-sonnet-4-5",
    waiting_for: null,
    cause: null,
    request_id: null,
    position: null,
    activity: "",
    context_tokens: 61_000,
    context_window: 180_000,
    worktree: `/home/me/.swarm/worktrees/payments-api-1f2e/${over.id}`,
    worktree_exists: true,
    port_base: 4310,
    sandbox_tier: 1,
    pid: 41_233,
    restarts: 0,
    merged_into: null,
    discarded: false,
    stopped_by_person: false,
    unread: 0,
    snapshots: 2,
    spawned_at: iso(start - 18 * 60_000),
    updated_at: iso(start),
    ended_at: null,
    age_ms: 18 * 60_000,
    ...over,
  };
}

const outcome = (over = {}) => ({
  exit_reason: { reason: "completed" },
  branch: "swarm/7c1d09e2/agent-a1b/investigate-auth-bug",
  base: BASE,
  commits: ["9c1f2ab4d5e6f708192a3b4c5d6e7f8091a2b3c4"],
  files: [
    { path: "src/auth/validate.ts", added: 12, removed: 3 },
    { path: "src/auth/guard.ts", added: 2, removed: 0 },
  ],
  dirty: [],
  commands: [
    { command: "npm ci", exit_code: 0, ended_by: null, benign: false },
    { command: "grep -rn validateToken src", exit_code: 1, ended_by: null, benign: true },
    { command: "npm test -- auth", exit_code: 1, ended_by: null, benign: false },
    { command: "npm test -- auth", exit_code: 0, ended_by: null, benign: false },
  ],
  commands_after_last_edit: 1,
  check: "passed",
  children_killed: [],
  restarts: 0,
  foreign_changes: [],
  doubts: [],
  notes: [],
  ...over,
});

const notification = (start, id, over = {}) => ({
  key: { worker_id: id, run: 1, kind: "end", n: 0 },
  seq: 310,
  status: "completed",
  summary: `Agent "${over.name ?? id}" completed`,
  result:
    "Found a null pointer in `src/auth/validate.ts:42`: the token may lack a user. Guarded it, and the tests of the module pass.",
  result_from_earlier: false,
  outcome: outcome(),
  turns: 14,
  usage: usage(18_000, 4_200, 310_000, 24_000),
  cost: { known_usd: 0.61, unpriced_calls: 0 },
  duration_ms: 412_000,
  enqueued_at: iso(start - 5 * 60_000),
  ...over,
});

export function request(start, over) {
  return {
    id: "req-k2f1",
    worker_id: "agent-k2f",
    run: 1,
    tool_use_id: "toolu_k2f",
    tool: "Bash",
    input: { command: "rm -rf build && make -j8 2>&1 | tail -20", description: "clean build" },
    summary: "rm -rf build && make -j8 2>&1 | tail -20",
    why: "rm -rf is a dangerous form",
    proposed_rule: "Bash(rm -rf build && make *)",
    description: "clean build",
    requested_at: iso(start - 134_000),
    timeout_ms: 600_000,
    ...over,
  };
}

const LONG = Array.from(
  { length: 22 },
  (_, i) => `echo "step ${i + 1}" && ./scripts/migrate-${i + 1}.sh --apply`,
).join("\n");

export function permissions(start) {
  const view = (request_, over) => ({
    request: request_,
    session_id: S1,
    worker_name: "Fix login loop",
    deadline_at: iso(Date.parse(request_.requested_at) + request_.timeout_ms),
    always_file: "/home/me/payments-api/.swarm/settings.local.json",
    decision: null,
    withdrawn: null,
    sandbox_tier: 1,
    ...over,
  });
  return [
    view(request(start, {})),
    view(
      request(start, {
        id: "req-m3n7",
        worker_id: "agent-m3n",
        tool: "Bash",
        input: { command: `${LONG}\n` },
        summary: LONG.split("\n")[0],
        why: "no rule allows it, and the mode is default",
        proposed_rule: null,
        description: null,
        requested_at: iso(start - 50_000),
      }),
      { worker_name: "Migrate the tables" },
    ),
    view(
      request(start, {
        id: "req-q8r2",
        worker_id: "agent-q8r",
        tool: "Bash",
        input: { command: "curl https://example.org/\u202egpj.exe\u202c -o a\u200bb.sh" },
        summary: "curl …",
        why: "the network is off for commands",
        proposed_rule: "Bash(curl *)",
        description: null,
        requested_at: iso(start - 20_000),
      }),
      { worker_name: "Docs <b>bold</b> & more" },
    ),
    view(
      request(start, {
        id: "req-old1",
        worker_id: "agent-a1b",
        summary: "git push origin main",
        input: { command: "git push origin main" },
        requested_at: iso(start - 3_600_000),
      }),
      {
        worker_name: "Investigate auth bug",
        decision: {
          id: "req-old1",
          decision: "deny",
          scope: "once",
          by: "timeout",
          reason: null,
          stop: false,
          decided_at: iso(start - 3_000_000),
        },
      },
    ),
  ];
}

export function workers(start) {
  return [
    worker(start, {
      id: "agent-k2f",
      name: "Fix login loop",
      status: "waiting",
      waiting_for: "permission",
      request_id: "req-k2f1",
      cause: "Bash rm -rf build && make -j8",
      activity: "Bash rm -rf build && make -j8",
    }),
    worker(start, {
      id: "agent-m3n",
      name: "Migrate the tables",
      status: "waiting",
      waiting_for: "permission",
      request_id: "req-m3n7",
      activity: "Bash echo step 1",
    }),
    worker(start, {
      id: "agent-q8r",
      name: "Docs <b>bold</b> & more",
      status: "waiting",
      waiting_for: "permission",
      request_id: "req-q8r2",
      activity: "Bash curl",
    }),
    worker(start, {
      id: "agent-p9x",
      name: "Port the tests",
      status: "completed",
      exit_reason: "completed",
      doubts: ["unverified_claim", "left_dirty"],
      commits: 4,
      files_changed: 9,
      insertions: 210,
      deletions: 14,
      turns: 31,
      ended_at: iso(start - 5 * 60_000),
      updated_at: iso(start - 5 * 60_000),
    }),
    worker(start, {
      id: "agent-b71",
      name: "Update docs",
      status: "failed",
      exit_reason: "model_error",
      exit_detail: { error: "rate_limit", message: "provider is free again at 14:05" },
      cause: "rate limit: provider is free again at 14:05",
      commits: 1,
      files_changed: 1,
      insertions: 8,
      deletions: 0,
      ended_at: iso(start - 60 * 60_000),
      updated_at: iso(start - 60 * 60_000),
    }),
    worker(start, {
      id: "agent-a1b",
      name: "Investigate auth bug",
      status: "completed",
      exit_reason: "completed",
      commits: 1,
      files_changed: 2,
      insertions: 14,
      deletions: 3,
      turns: 14,
      cost_usd: 0.61,
      ended_at: iso(start - 12 * 60_000),
      updated_at: iso(start - 12 * 60_000),
      pid: null,
    }),
    worker(start, {
      id: "agent-d4e",
      name: "Split module",
      activity: "Bash make e2e",
      context_tokens: 164_000,
      cost_usd: 1.1,
      updated_at: iso(start - 6 * 60_000),
    }),
    worker(start, { id: "agent-c3d", name: "Add rate limit", activity: "Bash cargo test -p api", turns: 14 }),
    worker(start, {
      id: "agent-e5f",
      name: "Tidy the session store",
      activity: "thinking",
      context_tokens: 22_000,
      cost_usd: 0.08,
    }),
    worker(start, {
      id: "agent-z0q",
      name: "Write changelog",
      status: "pending",
      position: 2,
      turns: 0,
      cost_usd: 0,
      worktree_exists: false,
      pid: null,
      sandbox_tier: null,
    }),
    worker(start, {
      id: "agent-r4t",
      name: "Rename helpers",
      status: "completed",
      exit_reason: "completed",
      merged_into: "main",
      commits: 1,
      files_changed: 3,
      insertions: 20,
      deletions: 20,
      ended_at: iso(start - 26 * 3_600_000),
      session_id: S2,
    }),
    worker(start, {
      id: "agent-w2v",
      name: "Look for dead code",
      status: "completed",
      exit_reason: "completed",
      expects: "report",
      branch: null,
      ended_at: iso(start - 25 * 3_600_000),
      session_id: S2,
      cost_usd: null,
    }),
    worker(start, {
      id: "agent-u5s",
      name: "Try another parser",
      status: "aborted",
      exit_reason: "aborted_tools",
      stopped_by_person: true,
      ended_at: iso(start - 25 * 3_600_000),
      session_id: S2,
    }),
    worker(start, {
      id: "agent-x7y",
      name: "Spike: cache",
      status: "completed",
      exit_reason: "completed",
      discarded: true,
      ended_at: iso(start - 25 * 3_600_000),
      session_id: S2,
    }),
  ];
}

export function sessions(start) {
  const session = (over) => ({
    session_id: S1,
    short: "7c1d09e2",
    title: "refactor auth module, keep the API",
    repo: "/home/me/payments-api",
    state: "active",
    waiting_for: null,
    base: BASE,
    base_name: "main",
    target_branch: "main",
    model: "anthropic/claude-sonnet-4-5",
    permission_mode: "default",
    task_id: T1,
    verdict: null,
    workers: 10,
    workers_running: 6,
    queued: 1,
    asks: 3,
    usage: usage(410_000, 92_000, 6_100_000, 210_000),
    own_usage: usage(40_000, 9_000, 600_000, 20_000),
    cost_usd: 1.84,
    cost: { known_usd: 1.84, unpriced_calls: 0 },
    created_at: iso(start - 40 * 60_000),
    updated_at: iso(start - 7_000),
    seq: 420,
    ...over,
  });
  return [
    session({}),
    session({
      session_id: S2,
      short: "3f9a4c10",
      title: "docs: bring them up to date",
      state: "idle",
      verdict: "degraded",
      task_id: T2,
      workers: 4,
      workers_running: 0,
      queued: 0,
      asks: 0,
      cost_usd: null,
      cost: { known_usd: 0.22, unpriced_calls: 3 },
      created_at: iso(start - 27 * 3_600_000),
      updated_at: iso(start - 25 * 3_600_000),
    }),
  ];
}

const TEXT1 = `Four parts, each on its own branch:

1. **Login loop**: find why \`/login\` redirects to itself
2. **Rate limit**: per token, in \`src/api/limit.rs\`
3. **Tests**: port them to the new runner
4. **Docs**

I start them together; the API stays as it is.`;

const TEXT2 = `Both are back.

| worker | branch | check |
| --- | --- | --- |
| agent-a1b | merges clean | passed |
| agent-p9x | merges clean | *not run* |

\`agent-p9x\` says its tests pass, and none ran after its last edit. I ask it to run them before anything is merged.`;

export function conversation(start, session) {
  if (session === S2) {
    return [
      { item: "person", seq: 4, at: iso(start - 27 * 3_600_000), text: "Bring the docs up to date." },
      { item: "coordinator", seq: 9, at: iso(start - 26.9 * 3_600_000), text: "I split it in four." },
      {
        item: "verdict",
        seq: 90,
        at: iso(start - 25 * 3_600_000),
        verdict: "degraded",
        reasons: ["agent-u5s was stopped by a person"],
      },
    ];
  }
  const call = (seq, worker_id, summary, tool = "Agent") => ({
    item: "call",
    seq,
    at: iso(start - 39 * 60_000),
    tool,
    summary,
    worker_id,
    is_error: false,
  });
  return [
    { item: "person", seq: 3, at: iso(start - 40 * 60_000), text: "refactor auth module, keep the API" },
    { item: "coordinator", seq: 8, at: iso(start - 39 * 60_000), text: TEXT1 },
    call(9, "agent-a1b", "Investigate auth bug"),
    call(10, "agent-k2f", "Fix login loop"),
    call(11, "agent-p9x", "Port the tests"),
    call(12, "agent-c3d", "Add rate limit"),
    {
      item: "woke",
      seq: 320,
      at: iso(start - 5 * 60_000),
      request: 12,
      notifications: [
        notification(start, "agent-a1b", { summary: 'Agent "Investigate auth bug" completed' }),
        notification(start, "agent-p9x", {
          summary: 'Agent "Port the tests" completed',
          result: "All 84 tests pass.",
          outcome: outcome({
            branch: "swarm/7c1d09e2/agent-p9x/port-the-tests",
            check: "none",
            doubts: ["unverified_claim", "left_dirty"],
            dirty: ["tmp/out.log"],
            files: [{ path: "tests/all.rs", added: 210, removed: 14 }],
          }),
        }),
      ],
    },
    { item: "coordinator", seq: 330, at: iso(start - 4 * 60_000), text: TEXT2 },
    call(331, "agent-p9x", "run the tests, then report", "SendMessage"),
    {
      item: "error",
      seq: 340,
      at: iso(start - 3 * 60_000),
      code: "callback_failed",
      message: "the callback was not answered: connection refused",
    },
  ];
}

export function ledger(start) {
  const entry = (id, over, steps) => ({ notification: notification(start, id, over), steps });
  const step = (seq, minutes, name, over = {}) => ({
    seq,
    at: iso(start - minutes * 60_000),
    step: name,
    request: null,
    turn: null,
    reason: null,
    ...over,
  });
  return [
    entry("agent-a1b", { summary: 'Agent "Investigate auth bug" completed' }, [
      step(310, 12, "queued"),
      step(318, 6, "sent", { request: 11 }),
      step(320, 5, "sent", {
        request: 12,
        reason: "request 11 was not committed: the connection to the provider broke",
      }),
      step(329, 4, "committed", { request: 12, turn: 6 }),
    ]),
    entry("agent-b71", { summary: 'Agent "Update docs" failed', status: "failed" }, [step(400, 1, "queued")]),
  ];
}

export function transcript(start) {
  const records = [];
  let n = 0;
  const add = (body, seconds = 5) => {
    n += 1;
    records.push({
      n,
      uuid: `00000000-0000-7000-8000-${String(n).padStart(12, "0")}`,
      parent_uuid: null,
      timestamp: iso(start - 18 * 60_000 + n * seconds * 1000),
      run: 1,
      body,
    });
  };
  let call = 0;
  const tool = (name, input, result, effect = { kind: "none" }, ms = 140, is_error = false, words = "") => {
    call += 1;
    const id = `toolu_${call}`;
    const content = [];
    if (words) content.push({ type: "text", text: words });
    content.push({ type: "tool_use", id, name, input });
    add({
      type: "request_started",
      request: call,
      model: "anthropic/claude-sonnet-4-5",
      estimated_tokens: 20_000,
    });
    add({
      type: "assistant",
      message: { role: "assistant", content },
      request: call,
      model: "anthropic/claude-sonnet-4-5",
      stop_reason: { reason: "tool_use" },
      usage: usage(900, 120, 14_000),
      cost: { known_usd: 0.01, unpriced_calls: 0 },
    });
    const block = {
      type: "tool_result",
      tool_use_id: id,
      content: [{ type: "text", text: result }],
      ...(is_error ? { is_error: true } : {}),
    };
    add({ type: "tool_finished", tool_use_id: id, name, result: block, duration_ms: ms, effect });
    add({ type: "user", message: { role: "user", content: [block] }, origin: { kind: "tool_results" } });
  };
  add({
    type: "run_started",
    run: 1,
    restarts: 0,
    pid: 41_233,
    model: "anthropic/claude-sonnet-4-5",
    sandbox_tier: 1,
    version: "0.1.0",
  });
  add({
    type: "user",
    origin: { kind: "prompt" },
    message: {
      role: "user",
      content: [
        {
          type: "text",
          text: "Surroundings: …\n\nAdd a rate limit per token to the API. Keep the API as it is.",
        },
      ],
    },
  });
  for (const file of ["limit.rs", "token.rs", "router.rs", "state.rs", "error.rs", "mod.rs"]) {
    tool("Read", { file_path: `src/api/${file}` }, `1→use std::time::Instant;\n2→// ${file}\n`);
  }
  tool("Grep", { pattern: "RateLimit", path: "src" }, "src/api/mod.rs:14: // TODO RateLimit");
  tool(
    "Edit",
    {
      file_path: "src/api/limit.rs",
      old_string: "struct Limit;",
      new_string: "struct Limit {\n    window: Duration,\n    count: u64,\n}",
    },
    "edited",
    { kind: "edited", path: "src/api/limit.rs", added: 22, removed: 4 },
    90,
    false,
    "I start with the counter: one window per token.",
  );
  tool(
    "Bash",
    { command: "cargo test -p api", description: "run the tests" },
    `\u001b[32mrunning 14 tests\u001b[0m\n${"test limit::window ... ok\n".repeat(90)}test limit::reset ... FAILED\n\nthread 'limit::reset' panicked: attempt to add with overflow`,
    { kind: "command", command: "cargo test -p api", exit_code: 101, ended_by: null, benign: false },
    31_000,
  );
  add({
    type: "assistant",
    message: {
      role: "assistant",
      content: [
        {
          type: "text",
          text: "The counter overflows when the window resets, so `u32` is too small **and** the reset is wrong.",
        },
      ],
    },
    request: 90,
    model: "anthropic/claude-sonnet-4-5",
    stop_reason: { reason: "end_turn" },
    usage: usage(1, 1),
    cost: { known_usd: 0.01, unpriced_calls: 0 },
  });
  add({
    type: "compact_boundary",
    trigger: "auto",
    steps: ["autocompact"],
    pre_tokens: 148_000,
    post_tokens: 31_000,
    messages_summarised: 96,
    messages: [
      { role: "user", content: [{ type: "text", text: "Summary: the limit lives in src/api/limit.rs…" }] },
    ],
  });
  add({
    type: "user",
    origin: { kind: "person" },
    message: { role: "user", content: [{ type: "text", text: "use u64, and no new dependency" }] },
  });
  add({
    type: "todo",
    items: [
      { content: "counter", status: "completed" },
      { content: "reset", status: "in_progress" },
      { content: "docs", status: "pending" },
    ],
  });
  add({ type: "snapshot", n: 2, commit: "9c1f2ab4d5e6f708192a3b4c5d6e7f8091a2b3c4" });
  tool("Edit", { file_path: "src/api/limit.rs", old_string: "u32", new_string: "u64" }, "edited", {
    kind: "edited",
    path: "src/api/limit.rs",
    added: 3,
    removed: 3,
  });
  return records;
}

/** Writes the counts of a hunk's lines into its header. */
const count = (patch) =>
  patch.replace(
    /@@ -(\d+),\? \+(\d+),\? @@([^\n]*)\n((?:[ +\-\\][^\n]*\n)*)/g,
    (_, from, to, title, body) => {
      const lines = body.split("\n");
      const of = (marks) => lines.filter((line) => line !== "" && marks.includes(line[0])).length;
      return `@@ -${from},${of(" -")} +${to},${of(" +")} @@${title}\n${body}`;
    },
  );

export const PATCH = count(`diff --git a/src/auth/guard.ts b/src/auth/guard.ts
new file mode 100644
index 0000000..8baef1b
--- /dev/null
+++ b/src/auth/guard.ts
@@ -0,0 +1,2 @@
+import { validate } from "./validate";
+export const guard = (t: Token) => validate(t) !== null;
diff --git a/src/auth/validate.ts b/src/auth/validate.ts
index 3f2a91c..9c1f2ab 100644
--- a/src/auth/validate.ts
+++ b/src/auth/validate.ts
@@ -38,? +38,? @@ import { Token } from "./token";
 
 /** The user of a token, or null. */
 export function validate(t: Token) {
-  return t.user.id
+  if (!t.user) return null;
+  // A token without a scope is one of the old kind.
+  if (!t.scope) {
+    return legacy(t);
+  }
+  return t.user.id
 }
 
 export function legacy(t: Token) {
-  const user = t.sub
-  return user
+  const user = t.sub ?? t.user?.id;
+  if (user === undefined) {
+    throw new Error("a token of nobody");
+  }
+  log("legacy token", user);
+  return user;
 }
 
 const access = "user\u202e \u2066// only admins\u2069 \u2066";
@@ -80,? +89,? @@
 export default validate;
-// end
+// the end
\\ No newline at end of file
diff --git a/docs/logo.png b/docs/logo.png
index 1234567..89abcde 100644
Binary files a/docs/logo.png and b/docs/logo.png differ
diff --git a/package-lock.json b/package-lock.json
index 1234567..89abcde 100644
--- a/package-lock.json
+++ b/package-lock.json
@@ -1,? +1,? @@
-{ "a": 1 }
+{ "a": 2 }
`);

export { BASE, outcome, T1, T2 };
