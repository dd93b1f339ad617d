import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { ConversationItem } from "../src/api/types";
import { toLines } from "../src/lib/lines";
import { fieldOf } from "../src/lib/problems";
import { Loader } from "../src/store/loader";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

it("calls of one tool in a row are one line", () => {
  const call = (seq: number, tool: string): ConversationItem => ({
    item: "call",
    seq,
    at: "",
    tool,
    summary: "",
    worker_id: null,
    is_error: false,
  });
  const lines = toLines([
    { item: "person", seq: 1, at: "", text: "hi" },
    call(2, "Agent"),
    call(3, "Agent"),
    call(4, "SendMessage"),
    { item: "coordinator", seq: 5, at: "", text: "done" },
    call(6, "Agent"),
  ]);
  expect(
    lines.map((line) => (line.item === "calls" ? `${line.tool} ×${line.calls.length}` : line.item)),
  ).toEqual(["person", "Agent ×2", "SendMessage ×1", "coordinator", "Agent ×1"]);
});

it("errors of a new task stand at their field", () => {
  expect(fieldOf("not_a_repository")).toBe("repo");
  expect(fieldOf("bad_base")).toBe("base");
  expect(fieldOf("no_model")).toBe("model");
  expect(fieldOf("whatever")).toBe("form");
});

it("a loader never runs twice at once, keeps its period, and forgets no wish", async () => {
  let running = 0;
  let most = 0;
  let runs = 0;
  const loader = new Loader(
    500,
    async () => {
      running++;
      runs++;
      most = Math.max(most, running);
      await new Promise((resolve) => setTimeout(resolve, 100));
      running--;
    },
    () => Date.now(),
  );
  for (let i = 0; i < 20; i++) {
    loader.want();
    await vi.advanceTimersByTimeAsync(50);
  }
  await vi.advanceTimersByTimeAsync(2000);
  expect(most).toBe(1);
  expect(runs).toBe(3);
});
