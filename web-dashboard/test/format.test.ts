import { describe, expect, it } from "vitest";
import * as format from "../src/lib/format";

describe("durations and ages", () => {
  it("counts seconds below ten minutes, then minutes, hours, days", () => {
    expect(format.duration(0)).toBe("0:00");
    expect(format.duration(40_000)).toBe("0:40");
    expect(format.duration(9 * 60_000 + 59_999)).toBe("9:59");
    expect(format.duration(12 * 60_000)).toBe("12 m");
    expect(format.duration(3_600_000)).toBe("1 h");
    expect(format.duration(2 * 3_600_000 + 10 * 60_000)).toBe("2 h 10 m");
    expect(format.duration(3 * 86_400_000)).toBe("3 d");
    expect(format.duration(-5)).toBe("0:00");
  });

  it("names the day once a day has passed", () => {
    const now = new Date(2026, 10, 30, 12, 0).getTime();
    expect(format.age(new Date(2026, 10, 30, 11, 59, 20).toISOString(), now)).toBe("0:40");
    expect(format.age(new Date(2026, 10, 29, 11, 10).toISOString(), now)).toBe("yesterday 11:10");
    expect(format.age(new Date(2026, 10, 12, 3, 5).toISOString(), now)).toBe("12 Nov 03:05");
    expect(format.age("not a time", now)).toBe("");
    // A clock that was set back gives no negative age.
    expect(format.age(new Date(now + 5000).toISOString(), now)).toBe("0:00");
  });

  it("counts deadlines down to zero and no further", () => {
    const now = 1_000_000;
    expect(format.left(new Date(now + 466_000).toISOString(), now)).toBe("7:46");
    expect(format.left(new Date(now + 725_000).toISOString(), now)).toBe("12:05");
    expect(format.left(new Date(now - 1).toISOString(), now)).toBe("0:00");
  });

  it("says how long a step took", () => {
    expect(format.took(12)).toBe("12 ms");
    expect(format.took(140)).toBe("0.1 s");
    expect(format.took(31_000)).toBe("31 s");
    expect(format.took(72_000)).toBe("1:12");
  });
});

describe("money", () => {
  it("has three decimals below one dollar, else two", () => {
    expect(format.usd(0)).toBe("$0");
    expect(format.usd(0.4204)).toBe("$0.420");
    expect(format.usd(4.125)).toBe("$4.13");
  });
  it("never writes an unknown price as zero", () => {
    expect(format.usd(null)).toBe("no price");
    expect(format.cost({ known_usd: 0, unpriced_calls: 2 })).toBe("no price");
    expect(format.cost({ known_usd: 0.22, unpriced_calls: 3 })).toBe("≥ $0.220");
    expect(format.cost({ known_usd: 1.84, unpriced_calls: 0 })).toBe("$1.84");
    const spent = { spent_usd: 0, spent_tokens: 0, open_usd: 0, open_tokens: 0, waiting: 0 };
    const budget = { ...spent, caps: { usd: 2, tokens: 100_000 }, percent: 81 };
    expect(format.budget(budget)).toBe("81 % of $2.00, 100k tokens");
    expect(format.isNearlySpent(budget)).toBe(true);
    expect(format.isNearlySpent({ ...budget, percent: 79 })).toBe(false);
  });
});

describe("tokens and context", () => {
  it("shortens counts", () => {
    expect([812, 4_200, 148_000, 999_499, 999_500, 2_077_449].map(format.tokens)).toEqual([
      "812",
      "4.2k",
      "148k",
      "999k",
      "1.0M",
      "2.1M",
    ]);
  });
  it("keeps the four counts apart", () => {
    const text = format.usage({
      input_tokens: 10,
      output_tokens: 20,
      cache_read_tokens: 3000,
      cache_write_tokens: 40,
      estimated: true,
    });
    expect(text).toBe("fresh in 10 · cache read 3.0k · cache write 40 · out 20 (estimated)");
  });
  it("says `over` instead of more than 100 %", () => {
    expect(format.context(61_000, 100_000)).toEqual({ text: "61 %", part: 0.61 });
    expect(format.context(104_000, 100_000)).toEqual({ text: "over by 4.0k", part: 1 });
    expect(format.context(null, 100_000)).toBeNull();
    expect(format.context(1, 0)).toBeNull();
  });
});

it("writes a true minus, and binary files as such", () => {
  expect(format.delta(14, 3)).toBe("+14 −3");
  expect(format.delta(null, null)).toBe("binary");
});
