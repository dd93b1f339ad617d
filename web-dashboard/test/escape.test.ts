import { describe, expect, it } from "vitest";
import { firstLines, hasHidden, pieces, plainOutput, seenLines, visible } from "../src/lib/escape";

describe("what a person decides on", () => {
  it("shows bidi, control and widthless characters as code points", () => {
    expect(visible("a\u202eb")).toBe("a⟨U+202E⟩b");
    expect(visible("rm\u200b -rf\u0007")).toBe("rm⟨U+200B⟩ -rf⟨U+0007⟩");
    expect(visible("\u001b[2Kok\r")).toBe("⟨U+001B⟩[2Kok⟨U+000D⟩");
    expect(visible("\u2066x\u2069\ufeff\u00ad\u{e0041}")).toBe("⟨U+2066⟩x⟨U+2069⟩⟨U+FEFF⟩⟨U+00AD⟩⟨U+E0041⟩");
    expect(visible("a\u2028b\u00a0c")).toBe("a⟨U+2028⟩b⟨U+00A0⟩c");
  });
  it("leaves line breaks, tabs and letters of any script alone", () => {
    const text = "für\t日本\nעברית é 👍 e\u0301";
    expect(visible(text)).toBe(text);
    expect(hasHidden(text)).toBe(false);
  });
  it("shows half a surrogate pair", () => {
    expect(visible("a\ud800b")).toBe("a⟨U+D800⟩b");
  });
  it("cuts into pieces that join to the same words", () => {
    expect(pieces("a\u202eb")).toEqual([
      { text: "a", hidden: false },
      { text: "⟨U+202E⟩", hidden: true },
      { text: "b", hidden: false },
    ]);
    expect(pieces("")).toEqual([]);
    expect(pieces("plain")).toEqual([{ text: "plain", hidden: false }]);
  });
  it("stays markup-free text", () => {
    expect(visible("<b onclick=x>&amp;</b>")).toBe("<b onclick=x>&amp;</b>");
  });
});

it("one endless line counts as the lines it fills", () => {
  expect(seenLines("x".repeat(2000))).toBe(20);
  expect(seenLines("a\n\nb\n")).toBe(3);
  expect(seenLines("")).toBe(0);
  expect(firstLines("x".repeat(2000), 12)).toHaveLength(1200);
  expect(firstLines("a\nb\nc", 2)).toBe("a\nb");
});

it("drops terminal colours from output and keeps the last of overwritten lines", () => {
  expect(plainOutput("\u001b[32mok\u001b[0m\r\n10 %\r50 %\r100 %\n")).toBe("ok\n100 %\n");
  expect(plainOutput("\u001b]0;title\u0007x")).toBe("x");
});
