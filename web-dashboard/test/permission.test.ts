import { describe, expect, it } from "vitest";
import { choices, decidedText } from "../src/ui/permission-card";
import { permission } from "./sample";

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

  it("says you where it was you", () => {
    expect(decidedText(permission({ decision: { ...decision, by: "person" } }), true)).toBe(
      "allowed once, you",
    );
  });
});

describe("answers an agent offers", () => {
  const ask = (questions: unknown) => choices("AskUserQuestion", { questions });

  it("are the options of its one question", () => {
    expect(ask([{ question: "Which?", options: [{ label: "one" }, "two", { label: "" }, null, 3] }])).toEqual(
      ["one", "two"],
    );
  });

  it("are none where words have to say which is meant", () => {
    const one = { question: "Which?", options: ["a", "b"] };
    for (const questions of [[], [one, one], [{ question: "What?" }], null, "x"]) {
      expect(ask(questions)).toEqual([]);
    }
    expect(choices("Bash", { questions: [one] })).toEqual([]);
    expect(choices("AskUserQuestion", null)).toEqual([]);
  });
});
