import { describe, expect, it } from "vitest";
import { answerWords, isAnswered, NO_ANSWER, pick, questionsOf } from "../src/lib/questions";

const ask = (questions: unknown) => questionsOf("AskUserQuestion", { questions });

describe("the questions of a call", () => {
  it("have choices with what they mean, however a model writes them", () => {
    const options = ["one", { label: "two", description: "d", preview: "p" }, { label: "" }, null, 3];
    expect(ask([{ question: "Which?", header: "H", multiSelect: true, options }])).toEqual([
      {
        question: "Which?",
        header: "H",
        several: true,
        choices: [
          { label: "one", description: "", preview: "" },
          { label: "two", description: "d", preview: "p" },
        ],
      },
    ]);
    expect(ask([{ question: "What?" }])[0]?.choices).toEqual([]);
  });

  it("are none where a part of them could not be shown", () => {
    for (const questions of [[], [{ question: " " }], [{ question: "a" }, 3], null, "x"]) {
      expect(ask(questions)).toEqual([]);
    }
    expect(questionsOf("Bash", { questions: [{ question: "a" }] })).toEqual([]);
    expect(questionsOf("AskUserQuestion", null)).toEqual([]);
  });
});

describe("an answer", () => {
  const [one, several] = ask([
    { question: "Which?", header: "Store", options: ["a", "b"] },
    { question: "What else?", multiSelect: true, options: ["x", "y", "z"] },
  ]);
  if (!one || !several) throw new Error("both can be shown");

  it("is one choice, or any number in the order they are shown in", () => {
    expect(pick(one, pick(one, NO_ANSWER, "a"), "b").picked).toEqual(["b"]);
    const both = pick(several, pick(several, NO_ANSWER, "z"), "x");
    expect(both.picked).toEqual(["x", "z"]);
    expect(pick(several, both, "z").picked).toEqual(["x"]);
  });

  it("names its question where there are several", () => {
    const first = pick(one, NO_ANSWER, "b");
    const second = { picked: ["x", "z"], words: " and quick " };
    expect(answerWords([one], [first])).toBe("b");
    expect(answerWords([one, several], [first, second])).toBe("Store: b\nWhat else?: x, z; and quick");
    expect(answerWords([one, several], [NO_ANSWER, second])).toBe("What else?: x, z; and quick");
    expect([NO_ANSWER, first, { picked: [], words: " " }].map(isAnswered)).toEqual([false, true, false]);
  });
});
