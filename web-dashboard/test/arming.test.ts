import { describe, expect, it } from "vitest";
import * as arming from "../src/lib/arming";

const press: arming.Press = { repeat: false, other: false, inText: false };

describe("keys answer a permission request only when they can be meant for it", () => {
  const framed = arming.frame(arming.DISARMED, "req-1", 1000);

  it("arms 0.4 s after the card was framed", () => {
    expect(arming.mayAnswer(framed, "req-1", press, 1000)).toBe(false);
    expect(arming.mayAnswer(framed, "req-1", press, 1399)).toBe(false);
    expect(arming.mayAnswer(framed, "req-1", press, 1400)).toBe(true);
  });
  it("acts on the framed card alone, by its id", () => {
    expect(arming.mayAnswer(framed, "req-2", press, 9000)).toBe(false);
    expect(arming.mayAnswer(arming.DISARMED, "req-1", press, 9000)).toBe(false);
  });
  it("ignores a key that is held down, one with a modifier, and one typed into a field", () => {
    expect(arming.mayAnswer(framed, "req-1", { ...press, repeat: true }, 9000)).toBe(false);
    expect(arming.mayAnswer(framed, "req-1", { ...press, other: true }, 9000)).toBe(false);
    expect(arming.mayAnswer(framed, "req-1", { ...press, inText: true }, 9000)).toBe(false);
  });
  it("two quick presses answer one request: the next card must arm anew", () => {
    const after = arming.frame(arming.answered(framed, "req-1"), "req-2", 2000);
    expect(arming.mayAnswer(after, "req-1", press, 9000)).toBe(false);
    expect(arming.mayAnswer(after, "req-2", press, 2050)).toBe(false);
    expect(arming.mayAnswer(after, "req-2", press, 2400)).toBe(true);
  });
  it("framing the framed card again does not start the time anew", () => {
    expect(arming.frame(framed, "req-1", 1300)).toBe(framed);
  });
  it("coming back to the page starts the time anew", () => {
    expect(arming.mayAnswer(arming.rearm(framed, 5000), "req-1", press, 5399)).toBe(false);
    expect(arming.rearm(arming.DISARMED, 5000)).toBe(arming.DISARMED);
  });
  it("an answer that did not arrive can be given again", () => {
    const failed = arming.unanswered(arming.answered(framed, "req-1"), "req-1", 3000);
    expect(arming.mayAnswer(failed, "req-1", press, 3200)).toBe(false);
    expect(arming.mayAnswer(failed, "req-1", press, 3400)).toBe(true);
  });
});
