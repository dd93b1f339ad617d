/** One way to write ages, money, tokens and sizes, for every screen. Pure: the time is passed in. */

import type { BudgetView, Cost, Timestamp, Usage } from "../api/types";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const two = (value: number): string => String(value).padStart(2, "0");

/** `0:40` below ten minutes, `12 m`, `3 h`, `2 d`. */
export function duration(ms: number): string {
  const value = Math.max(0, ms);
  if (value < 10 * MINUTE) {
    const seconds = Math.floor(value / 1000);
    return `${Math.floor(seconds / 60)}:${two(seconds % 60)}`;
  }
  if (value < HOUR) return `${Math.floor(value / MINUTE)} m`;
  if (value < DAY) {
    const minutes = Math.floor((value % HOUR) / MINUTE);
    const hours = Math.floor(value / HOUR);
    return minutes > 0 && hours < 10 ? `${hours} h ${minutes} m` : `${hours} h`;
  }
  return `${Math.floor(value / DAY)} d`;
}

/** How long a step took: `12 ms`, `0.4 s`, `31 s`, then as {@link duration}. */
export function took(ms: number): string {
  if (ms < 100) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < MINUTE) return `${Math.floor(ms / 1000)} s`;
  return duration(ms);
}

/** A point in time as people say it: `0:40`, `12 m`, `3 h`, then `yesterday 23:10`, then the date. */
export function age(at: Timestamp, now: number): string {
  const then = Date.parse(at);
  if (Number.isNaN(then)) return "";
  const past = now - then;
  if (past < DAY) return duration(past);
  const date = new Date(then);
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
  const midnight = new Date(now);
  midnight.setHours(0, 0, 0, 0);
  if (then >= midnight.getTime() - DAY) return `yesterday ${clock}`;
  return `${date.getDate()} ${date.toLocaleString("en", { month: "short" })} ${clock}`;
}

/** `13:02`, in the reader's zone. */
export function clock(at: Timestamp | number, seconds = false): string {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return "";
  const base = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return seconds ? `${base}:${two(date.getSeconds())}` : base;
}

/** The exact time with its zone, for titles and copies. */
export function exact(at: Timestamp): string {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return at;
  return `${date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" })} (${at})`;
}

/** What is left until a deadline: `7:46`, `12:05`, `1 h 4 m`; `0:00` when it passed. */
export function left(deadline: Timestamp, now: number): string {
  const ms = Math.max(0, Date.parse(deadline) - now);
  if (ms < HOUR) {
    const seconds = Math.ceil(ms / 1000);
    return `${Math.floor(seconds / 60)}:${two(seconds % 60)}`;
  }
  return duration(ms);
}

/** Dollars: three decimals below one, else two. Unknown is never written as zero. */
export function usd(value: number | null | undefined): string {
  if (value === null || value === undefined) return "no price";
  if (value === 0) return "$0";
  return value < 1 ? `$${value.toFixed(3)}` : `$${value.toFixed(2)}`;
}

/** A sum that may have parts of unknown price: then it is a lower bound and says so. */
export function cost(value: Cost): string {
  if (value.unpriced_calls === 0) return usd(value.known_usd);
  if (value.known_usd === 0) return "no price";
  return `≥ ${usd(value.known_usd)}`;
}

/** `81 % of $2.00`; every cap there is. */
export function budget({ caps, percent }: BudgetView): string {
  const usdCap = caps.usd === undefined ? [] : [usd(caps.usd)];
  const tokenCap = caps.tokens === undefined ? [] : [`${tokens(caps.tokens)} tokens`];
  return `${percent} % of ${[...usdCap, ...tokenCap].join(", ")}`;
}

/** Most of it is spent: it is marked. */
export function isNearlySpent({ percent }: BudgetView): boolean {
  return percent >= 80;
}

/** `812`, `4.2k`, `148k`, `2.1M`. */
export function tokens(count: number): string {
  if (count < 1000) return String(count);
  if (count < 10_000) return `${(count / 1000).toFixed(1)}k`;
  if (count < 999_500) return `${Math.round(count / 1000)}k`;
  return `${(count / 1_000_000).toFixed(1)}M`;
}

/** The four counts, each with its name: they are never summed unlabelled. */
export function usage(value: Usage): string {
  const parts = [
    `fresh in ${tokens(value.input_tokens)}`,
    `cache read ${tokens(value.cache_read_tokens)}`,
    `cache write ${tokens(value.cache_write_tokens)}`,
    `out ${tokens(value.output_tokens)}`,
  ];
  return parts.join(" · ") + (value.estimated ? " (estimated)" : "");
}

/** `14 KB`. */
export function bytes(count: number): string {
  if (count < 1024) return `${count} B`;
  if (count < 1024 * 1024) return `${Math.round(count / 1024)} KB`;
  return `${(count / (1024 * 1024)).toFixed(1)} MB`;
}

/** `+14 −3`, with a true minus. */
export function delta(added: number | null, removed: number | null): string {
  if (added === null || removed === null) return "binary";
  return `+${added} −${removed}`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`;
}

/** The last part of a path. */
export function basename(path: string): string {
  const parts = path.split("/").filter((part) => part !== "");
  return parts[parts.length - 1] ?? path;
}

export function shortCommit(id: string): string {
  return id.slice(0, 7);
}

/** Tokens of the window in use, `61 %`, or `over by 4k`: never clipped, never above 100 without the word. */
export function context(used: number | null, window: number | null): { text: string; part: number } | null {
  if (used === null || window === null || window <= 0) return null;
  if (used > window) return { text: `over by ${tokens(used - window)}`, part: 1 };
  return { text: `${Math.round((used / window) * 100)} %`, part: used / window };
}
