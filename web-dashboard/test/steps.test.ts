import { describe, expect, it } from "vitest";
import type { RecordBody, TranscriptRecord } from "../src/api/types";
import { filterSteps, foldSteps, toSteps } from "../src/lib/steps";

let n = 0;
const record = (body: RecordBody): TranscriptRecord => {
  n += 1;
  return { n, uuid: `u${n}`, parent_uuid: null, timestamp: "2026-11-30T12:00:00.000Z", run: 1, body };
};
const usage = { input_tokens: 0, output_tokens: 0, cache_read_tokens: 0, cache_write_tokens: 0 };
const cost = { known_usd: 0, unpriced_calls: 0 };
const call = (id: string, name: string, input: unknown, request = 1): TranscriptRecord =>
  record({
    type: "assistant",
    message: { role: "assistant", content: [{ type: "tool_use", id, name, input }] },
    request,
    model: "m",
    stop_reason: { reason: "tool_use" },
    usage,
    cost,
  });
const end = (id: string, name: string, text: string, isError = false, exit: number | null = null) =>
  record({
    type: "tool_finished",
    tool_use_id: id,
    name,
    result: { type: "tool_result", tool_use_id: id, content: [{ type: "text", text }], is_error: isError },
    duration_ms: 5,
    effect:
      exit === null
        ? { kind: "none" }
        : { kind: "command", command: "make", exit_code: exit, ended_by: null, benign: false },
  });

describe("records become steps", () => {
  it("joins a call and its result, whichever record comes first", () => {
    const steps = toSteps([end("t1", "Read", "text"), call("t1", "Read", { file_path: "a.rs" })]);
    expect(steps).toHaveLength(1);
    expect(steps[0]).toMatchObject({ type: "tool", summary: "a.rs", result: "text", done: true });
  });
  it("shows a running call without a result", () => {
    expect(toSteps([call("t2", "Bash", { command: "make" })])[0]).toMatchObject({
      done: false,
      result: null,
    });
  });
  it("tells an intent only while its answer is not recorded", () => {
    const intent = record({
      type: "intent",
      request: 7,
      blocks: [
        { type: "text", text: "I begin" },
        { type: "tool_use", id: "t3", name: "Bash", input: { command: "make" } },
      ],
    });
    expect(toSteps([intent]).map((step) => step.type)).toEqual(["text", "tool"]);
    const steps = toSteps([
      intent,
      end("t3", "Bash", "ok", false, 0),
      call("t3", "Bash", { command: "make" }, 7),
    ]);
    expect(steps.map((step) => step.type)).toEqual(["tool"]);
  });
  it("keeps the end of a call whose beginning lies on an earlier page", () => {
    expect(toSteps([end("t4", "Bash", "ok", false, 0)])[0]).toMatchObject({ type: "tool", summary: "make" });
  });
  it("does not repeat tool results as messages, and skips unknown records", () => {
    const results = record({
      type: "user",
      origin: { kind: "tool_results" },
      message: { role: "user", content: [{ type: "tool_result", tool_use_id: "x", content: [] }] },
    });
    const unknown = record({ type: "a_new_one" } as never);
    expect(toSteps([results, unknown])).toEqual([]);
  });
});

describe("folding and filters", () => {
  const reads = (count: number) =>
    Array.from({ length: count }, (_, i) => [
      call(`r${count}.${i}`, "Read", { file_path: `f${i}` }),
      end(`r${count}.${i}`, "Read", "x"),
    ]).flat();
  it("folds three alike, not two", () => {
    expect(foldSteps(toSteps(reads(2))).map((step) => step.type)).toEqual(["tool", "tool"]);
    expect(foldSteps(toSteps(reads(3))).map((step) => step.type)).toEqual(["fold"]);
  });
  it("never folds a failure, a running call or a command away", () => {
    const list = [
      ...reads(4).slice(0, 6),
      call("bad", "Read", { file_path: "no" }),
      end("bad", "Read", "missing", true),
      call("b1", "Bash", { command: "a" }),
      end("b1", "Bash", "", false, 0),
      call("b2", "Bash", { command: "b" }),
      end("b2", "Bash", "", false, 0),
      call("b3", "Bash", { command: "c" }),
      end("b3", "Bash", "", false, 0),
    ];
    expect(foldSteps(toSteps(list)).map((step) => step.type)).toEqual([
      "fold",
      "tool",
      "tool",
      "tool",
      "tool",
    ]);
  });
  it("finds errors by result and by exit code", () => {
    const list = [call("e1", "Bash", { command: "make" }), end("e1", "Bash", "no", false, 101), ...reads(1)];
    expect(filterSteps(toSteps(list), "errors")).toHaveLength(1);
    expect(filterSteps(toSteps(list), "commands")).toHaveLength(1);
    expect(filterSteps(toSteps(list), "all")).toHaveLength(2);
  });
});
