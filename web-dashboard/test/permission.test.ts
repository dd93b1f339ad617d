import { describe, expect, it } from "vitest";
import { decidedText, isPlain, planOf } from "../src/ui/permission-card";
import { permission, request } from "./sample";

describe("who decided", () => {
  const decision = {
    id: "req-abc",
    decision: "allow" as const,
    scope: "once" as const,
    reason: null,
    decided_at: "2026-11-30T17:44:43.031Z",
  };

  it("names the channel or the model that did", () => {
    const view = permission({ decision: { ...decision, by: "remote", source: "slack" } });
    expect(decidedText(view, false)).toBe("allowed once, a person at a remote channel (slack)");
    const sure = { ...decision, by: "classifier" as const, source: "anthropic/small", reason: "it lists" };
    expect(decidedText(permission({ decision: sure }), false)).toBe(
      "allowed once, the classifier (anthropic/small): “it lists”",
    );
  });

  it("has words of its own for questions and plans", () => {
    const of = (tool: string, over: object) =>
      decidedText(
        permission({ request: request({ tool }), decision: { ...decision, by: "person", ...over } }),
        true,
      );
    expect(of("AskUserQuestion", { reason: "SQLite" })).toBe("answered, you: “SQLite”");
    expect(of("AskUserQuestion", {})).toBe("left to the agent, you");
    expect(of("ExitPlanMode", {})).toBe("accepted, you");
    expect(of("ExitPlanMode", { decision: "deny", reason: "No.", stop: true })).toBe(
      "sent back, and the worker stopped, you: “No.”",
    );
  });

  it("says you where it was you", () => {
    expect(decidedText(permission({ decision: { ...decision, by: "person" } }), true)).toBe(
      "allowed once, you",
    );
  });
});

describe("what has an answer of its own", () => {
  it("is a plan and a question, and nothing else", () => {
    expect(planOf("ExitPlanMode", { plan: "# One" })).toBe("# One");
    for (const input of [{ plan: " " }, { plan: 3 }, null, "x"])
      expect(planOf("ExitPlanMode", input)).toBeNull();
    expect(planOf("Write", { plan: "# One" })).toBeNull();
    const of = (tool: string) => isPlain(permission({ request: request({ tool }) }));
    expect(["Bash", "Write", "AskUserQuestion", "ExitPlanMode"].map(of)).toEqual([true, true, false, false]);
  });
});
