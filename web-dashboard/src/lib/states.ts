/**
 * The one table of states. The server derives word, glyph and group for rows of the overview; where only a
 * worker is at hand the same table is applied here. Three facts are kept apart: what it does, what a person
 * must do, how its branch stands.
 */

import type { Doubt, SessionView, Verdict, WorkerView } from "../api/types";
import { duration } from "./format";

export const GROUPS = ["needs_you", "failed", "ready", "watch", "working", "queued", "done"] as const;
export type Group = (typeof GROUPS)[number];

export const GROUP_TITLES: Record<Group, string> = {
  needs_you: "Needs you",
  failed: "Failed",
  ready: "Ready to review",
  watch: "Watch",
  working: "Working",
  queued: "Queued",
  done: "Done",
};

export type GlyphName =
  | "need"
  | "doubt"
  | "fail"
  | "ready"
  | "quiet"
  | "wait"
  | "work"
  | "queued"
  | "merged"
  | "reported"
  | "nothing"
  | "stopped"
  | "discarded"
  | "idle"
  | "unknown";
export type Hue = "need" | "fail" | "ready" | "work" | "text2";

export interface StateWord {
  group: Group;
  word: string;
  glyph: GlyphName;
  hue: Hue;
}

const GLYPHS: Record<string, GlyphName> = {
  "▲": "need",
  "◆": "doubt",
  "✕": "fail",
  "✗": "fail",
  "✓": "ready",
  "◌": "quiet",
  "⧗": "wait",
  "◐": "work",
  "○": "queued",
  "✓✓": "merged",
  "–": "nothing",
  "⊘": "stopped",
  "⌫": "discarded",
};

const GROUP_GLYPH: Record<Group, GlyphName> = {
  needs_you: "need",
  failed: "fail",
  ready: "ready",
  watch: "quiet",
  working: "work",
  queued: "queued",
  done: "merged",
};

const GROUP_HUE: Record<Group, Hue> = {
  needs_you: "need",
  failed: "fail",
  ready: "ready",
  watch: "text2",
  working: "work",
  queued: "text2",
  done: "text2",
};

export function isGroup(text: string): text is Group {
  return (GROUPS as readonly string[]).includes(text);
}

/** The server's row in the words of this page; an unknown group stands at the end, never lost. */
export function fromRow(row: { group: string; word: string; glyph: string }): StateWord {
  const group = isGroup(row.group) ? row.group : "done";
  let glyph = GLYPHS[row.glyph] ?? GROUP_GLYPH[group];
  if (group === "done" && glyph === "ready") glyph = "reported";
  return { group, word: row.word, glyph, hue: GROUP_HUE[group] };
}

export const DOUBTS: Record<Doubt, string> = {
  no_change: "changes were expected and there are none",
  check_failed: "the project's check failed",
  last_command_failed: "its last command failed",
  unverified_claim: "says tests or build pass, none ran after the last edit",
  left_dirty: "left files uncommitted",
  children_killed: "left processes running, which were killed",
};

export function doubtSentence(doubt: string): string {
  return (DOUBTS as Record<string, string>)[doubt] ?? doubt.replaceAll("_", " ");
}

const EXIT: Record<string, string> = {
  completed: "the model stopped without a tool call",
  aborted_streaming: "interrupted while the model streamed",
  aborted_tools: "interrupted while tools ran",
  prompt_too_long: "the prompt stayed too long after compaction",
  blocking_limit: "the context is over the hard line; nothing was sent",
  max_output_tokens_escalate: "the output was cut four times in a row",
  stop_hook_prevented: "a Stop hook refused the end too often",
  hook_stopped: "a hook stopped it",
  max_turns: "reached its bound of turns",
  model_error: "the model could not be reached",
  image_error: "an image was refused",
  refused: "the model declined",
  budget_exceeded: "its budget is used up",
  loop_detected: "it repeated itself",
  denied_and_stopped: "a person denied a permission and stopped it",
  storage_error: "its record could not be written",
  setup_failed: "the project's set-up command failed",
  killed: "it was killed",
  lost: "its process is gone and left no word",
};

function field(detail: unknown, key: string): string | null {
  if (typeof detail !== "object" || detail === null) return null;
  const value = (detail as Record<string, unknown>)[key];
  return typeof value === "string" && value !== "" ? value : typeof value === "number" ? String(value) : null;
}

/** An exit reason in words, with its data: never a bare code. */
export function exitSentence(reason: string | null, detail: unknown): string {
  if (reason === null) return "";
  const sentence = EXIT[reason] ?? reason.replaceAll("_", " ");
  switch (reason) {
    case "max_turns": {
      const limit = field(detail, "limit");
      return limit ? `reached its ${limit} turns` : sentence;
    }
    case "killed": {
      const signal = field(detail, "signal");
      return signal ? `killed (signal ${signal})` : sentence;
    }
    case "model_error": {
      const error = field(detail, "error");
      const message = field(detail, "message");
      return [error?.replaceAll("_", " "), message].filter(Boolean).join(": ") || sentence;
    }
    case "budget_exceeded": {
      const budget = field(detail, "budget");
      return budget ? `budget used up: ${budget}` : sentence;
    }
    default: {
      const message = field(detail, "message");
      return message ? `${sentence}: ${message}` : sentence;
    }
  }
}

/** Waiting longer than this without news is shown as quiet. Advice, never a fault. */
export const QUIET_MS = 5 * 60_000;

function state(
  group: Group,
  word: string,
  glyph: GlyphName = GROUP_GLYPH[group],
  hue: Hue = GROUP_HUE[group],
): StateWord {
  return { group, word, glyph, hue };
}

/** The table applied to a worker. `now` is the server's clock. */
export function workerState(worker: WorkerView, now: number): StateWord {
  switch (worker.status) {
    case "pending":
      return state("queued", "Queued");
    case "starting":
      return state("working", "Setting up");
    case "finishing":
      return state("working", "Finishing");
    case "waiting":
      switch (worker.waiting_for) {
        case "permission":
          return state("needs_you", "Permission");
        case "model":
          return state("watch", "Waits for model");
        case "server":
          return state("watch", "Reconnecting");
        default:
          return state("working", "Waits for own jobs");
      }
    case "running": {
      const quiet = now - Date.parse(worker.updated_at);
      if (quiet > QUIET_MS) return state("watch", `Quiet ${quietFor(quiet)}`);
      return state("working", "Working");
    }
    case "failed":
      return state("failed", "Failed");
    case "aborted":
      return state("done", worker.stopped_by_person ? "Stopped by you" : "Stopped by coordinator", "stopped");
    case "completed":
      return completed(worker);
  }
}

/** Minutes: seconds would make silence look busy. */
function quietFor(ms: number): string {
  return ms < 60 * 60_000 ? `${Math.floor(ms / 60_000)} m` : duration(ms);
}

function completed(worker: WorkerView): StateWord {
  if (worker.discarded) return state("done", "Discarded", "discarded");
  if (worker.merged_into !== null) return state("done", `Merged into ${worker.merged_into}`, "merged");
  const doubts = worker.doubts.length;
  if (doubts > 0) return state("needs_you", doubts === 1 ? "1 doubt" : `${doubts} doubts`, "doubt");
  if (worker.branch !== null) return state("ready", "Ready to review");
  if (worker.expects === "report") return state("done", "Reported", "reported");
  return state("done", "Nothing to change", "nothing");
}

/** The fact that matters beside the word, when the server gave none. */
export function workerFact(worker: WorkerView): string {
  switch (worker.status) {
    case "pending":
      // The line is for places, unless the machine itself has no room.
      if (worker.cause && worker.cause !== "waits for a place") return worker.cause;
      return worker.position === null ? "" : `place ${worker.position}`;
    case "failed":
      return worker.cause ?? exitSentence(worker.exit_reason, worker.exit_detail);
    case "waiting":
      return worker.cause ?? worker.activity;
    case "completed":
      return worker.doubts.length > 0 ? worker.doubts.map(doubtSentence).join(" · ") : "";
    default:
      return worker.activity || worker.cause || "";
  }
}

export const VERDICTS: Record<Verdict, { word: string; glyph: GlyphName; hue: Hue }> = {
  complete: { word: "Complete", glyph: "ready", hue: "ready" },
  degraded: { word: "Degraded", glyph: "doubt", hue: "need" },
  failed: { word: "Failed", glyph: "fail", hue: "fail" },
};

/** A session in the rail and on its own page. */
export function sessionState(session: SessionView): { word: string; glyph: GlyphName; hue: Hue } {
  if (session.damaged !== undefined) return { word: "Damaged", glyph: "fail", hue: "fail" };
  if (session.state === "waiting" && session.waiting_for === "key") {
    return { word: "Needs a key", glyph: "need", hue: "need" };
  }
  if (session.asks > 0) return { word: "Permission", glyph: "need", hue: "need" };
  if (session.state === "waiting" && session.waiting_for === "question") {
    return { word: "Asks you", glyph: "need", hue: "need" };
  }
  if (session.state === "active") return { word: "Coordinator at work", glyph: "work", hue: "work" };
  if (session.state === "waiting") return { word: "Workers at work", glyph: "work", hue: "work" };
  if (session.verdict !== null) return VERDICTS[session.verdict];
  return session.state === "ended"
    ? { word: "Ended", glyph: "nothing", hue: "text2" }
    : { word: "Nothing runs", glyph: "idle", hue: "text2" };
}
