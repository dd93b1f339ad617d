/** A transcript as people read it: records become steps, calls and their results one step, alike ones fold. */

import type {
  Block,
  CommandRun,
  Message,
  ResultBlock,
  RunEnd,
  TodoItem,
  TranscriptRecord,
} from "../api/types";

export interface ToolStep {
  type: "tool";
  key: string;
  n: number;
  at: string;
  id: string;
  name: string;
  summary: string;
  input: unknown;
  /** Null while it runs, or when its end is not recorded. */
  result: string | null;
  images: number;
  isError: boolean;
  done: boolean;
  durationMs: number | null;
  command: CommandRun | null;
  lines: { added: number; removed: number } | null;
}

export type Step =
  | ToolStep
  | { type: "fold"; key: string; n: number; name: string; steps: ToolStep[] }
  | { type: "text"; key: string; n: number; at: string; text: string; incomplete: boolean }
  | { type: "thinking"; key: string; n: number; at: string; text: string }
  | { type: "said"; key: string; n: number; at: string; who: string; text: string; folded: boolean }
  | { type: "note"; key: string; n: number; at: string; text: string; tone: "plain" | "fail" | "need" }
  | { type: "run"; key: string; n: number; at: string; text: string }
  | { type: "end"; key: string; n: number; at: string; end: RunEnd }
  | { type: "compact"; key: string; n: number; at: string; text: string; summary: string }
  | { type: "todo"; key: string; n: number; at: string; items: TodoItem[] };

export type Show = "all" | "commands" | "errors" | "edits" | "words";

const KEYS = [
  "command",
  "file_path",
  "notebook_path",
  "pattern",
  "path",
  "description",
  "to",
  "task_id",
  "bash_id",
  "url",
  "query",
  "subject",
  "plan",
  "prompt",
];

export function inputSummary(input: unknown): string {
  if (typeof input !== "object" || input === null) return "";
  for (const key of KEYS) {
    const value = (input as Record<string, unknown>)[key];
    if (typeof value === "string" && value !== "") return value;
  }
  const { questions } = input as { questions?: { question?: unknown }[] };
  const first = Array.isArray(questions) ? questions[0]?.question : undefined;
  return typeof first === "string" ? first : "";
}

function resultText(blocks: ResultBlock[]): { text: string; images: number } {
  const texts: string[] = [];
  let images = 0;
  for (const block of blocks) {
    if (block.type === "text") texts.push(block.text);
    else if (block.type === "tool_reference") texts.push(`found ${block.name}`);
    else images++;
  }
  return { text: texts.join("\n"), images };
}

export function messageText(message: Message): string {
  return message.content.flatMap((block) => (block.type === "text" ? [block.text] : [])).join("\n");
}

const ORIGINS: Record<string, string> = {
  prompt: "Prompt",
  person: "You",
  coordinator: "Coordinator",
  notifications: "Notifications",
  harness: "swarm",
  summary: "Summary",
};

const FOLDED = new Set(["prompt", "harness", "summary"]);

/** Records in order to steps in order. Pure, and whole each time: callers keep the pages small. */
export function toSteps(records: TranscriptRecord[]): Step[] {
  const results = new Map<string, Block & { type: "tool_result" }>();
  const finished = new Map<string, Extract<TranscriptRecord["body"], { type: "tool_finished" }>>();
  const answered = new Set<string>();
  const called = new Set<string>();
  for (const { body, run } of records) {
    if (body.type === "tool_finished") finished.set(body.tool_use_id, body);
    else if (body.type === "assistant") {
      answered.add(`${run}/${body.request}`);
      for (const block of body.message.content) if (block.type === "tool_use") called.add(block.id);
    } else if (body.type === "user") {
      for (const block of body.message.content) {
        if (block.type === "tool_result") results.set(block.tool_use_id, block);
      }
    }
  }

  const steps: Step[] = [];
  const seen = new Set<string>();
  const tool = (record: TranscriptRecord, id: string, name: string, input: unknown): ToolStep => {
    const end = finished.get(id);
    const result = end?.result.type === "tool_result" ? end.result : results.get(id);
    const told = result === undefined ? null : resultText(result.content);
    const effect = end?.effect;
    return {
      type: "tool",
      key: `t${id}`,
      n: record.n,
      at: record.timestamp,
      id,
      name,
      summary:
        inputSummary(input) ||
        (effect?.kind === "command" ? effect.command : effect?.kind === "edited" ? effect.path : ""),
      input,
      result: told === null ? null : told.text,
      images: told?.images ?? 0,
      isError: result?.is_error === true,
      done: end !== undefined || result !== undefined,
      durationMs: end?.duration_ms ?? null,
      command: effect?.kind === "command" ? effect : null,
      lines: effect?.kind === "edited" ? { added: effect.added, removed: effect.removed } : null,
    };
  };
  const blocks = (record: TranscriptRecord, list: Block[], incomplete: boolean): void => {
    list.forEach((block, index) => {
      const base = { key: `${record.n}.${index}`, n: record.n, at: record.timestamp };
      if (block.type === "text" && block.text.trim() !== "") {
        steps.push({ type: "text", ...base, text: block.text, incomplete });
      } else if (block.type === "thinking" && block.thinking.trim() !== "") {
        steps.push({ type: "thinking", ...base, text: block.thinking });
      } else if (block.type === "tool_use" && !seen.has(block.id)) {
        seen.add(block.id);
        steps.push(tool(record, block.id, block.name, block.input));
      }
    });
  };

  for (const record of records) {
    const { body } = record;
    const base = { key: `r${record.n}`, n: record.n, at: record.timestamp };
    switch (body.type) {
      case "run_started":
        steps.push({
          type: "run",
          ...base,
          text: `run ${body.run} began${body.restarts > 0 ? `, started again ${body.restarts} ×` : ""} · ${body.model} · sandbox tier ${body.sandbox_tier}`,
        });
        break;
      case "user": {
        const kind = body.origin.kind;
        const text = messageText(body.message);
        if (kind === "tool_results" || text.trim() === "") break;
        steps.push({ type: "said", ...base, who: ORIGINS[kind] ?? kind, text, folded: FOLDED.has(kind) });
        break;
      }
      case "intent":
        if (!answered.has(`${record.run}/${body.request}`)) blocks(record, body.blocks, true);
        break;
      case "assistant":
        blocks(record, body.message.content, body.incomplete === true);
        if (body.stop_reason.reason === "refusal") {
          steps.push({
            type: "note",
            ...base,
            text: `the model declined: ${body.stop_reason.explanation ?? ""}`,
            tone: "fail",
          });
        } else if (body.stop_reason.reason === "max_tokens") {
          steps.push({ type: "note", ...base, text: "the output was cut", tone: "need" });
        }
        break;
      case "tool_finished":
        // A call whose message lies on an earlier page.
        if (!called.has(body.tool_use_id) && !seen.has(body.tool_use_id)) {
          seen.add(body.tool_use_id);
          steps.push(tool(record, body.tool_use_id, body.name, null));
        }
        break;
      case "helper_call":
        steps.push({ type: "note", ...base, text: `helper: ${body.purpose} (${body.model})`, tone: "plain" });
        break;
      case "permission_requested":
        steps.push({
          type: "note",
          ...base,
          text: `asked for permission: ${body.request.tool} ${body.request.summary}`,
          tone: "need",
        });
        break;
      case "permission_withdrawn":
        steps.push({ type: "note", ...base, text: `no longer asks: ${body.reason}`, tone: "plain" });
        break;
      case "snapshot":
        steps.push({
          type: "note",
          ...base,
          text: `snapshot ${body.n} · ${body.commit.slice(0, 7)}`,
          tone: "plain",
        });
        break;
      case "compact_boundary":
        steps.push({
          type: "compact",
          ...base,
          text: `compacted (${body.trigger}; ${body.steps.join(", ")}): ${Math.round(body.pre_tokens / 1000)}k → ${Math.round(body.post_tokens / 1000)}k tokens, ${body.messages_summarised} messages summarised`,
          summary: body.messages
            .map(messageText)
            .filter((text) => text !== "")
            .join("\n\n"),
        });
        break;
      case "todo":
        steps.push({ type: "todo", ...base, items: body.items });
        break;
      case "plan_mode": {
        const text = body.is_on
          ? "it plans: nothing is changed"
          : `the plan was accepted: ${body.path ?? ""}`;
        steps.push({ type: "note", ...base, text, tone: "plain" });
        break;
      }
      case "task_item": {
        const { id, status, subject, blocked_by } = body.item;
        const waits = blocked_by?.length
          ? ` (after ${blocked_by.map((other) => `#${other}`).join(", ")})`
          : "";
        steps.push({
          type: "note",
          ...base,
          text: `task #${id} [${status}] ${subject}${waits}`,
          tone: "plain",
        });
        break;
      }
      case "tombstone":
        steps.push({ type: "note", ...base, text: body.note, tone: "need" });
        break;
      case "run_ended":
        steps.push({ type: "end", ...base, end: body });
        break;
      default:
        break;
    }
  }
  return steps;
}

const WORDS = new Set(["text", "said", "run", "end"]);

export function filterSteps(steps: Step[], show: Show): Step[] {
  switch (show) {
    case "all":
      return steps;
    case "commands":
      return steps.filter((step) => step.type === "tool" && (step.command !== null || step.name === "Bash"));
    case "errors":
      return steps.filter(
        (step) =>
          (step.type === "tool" && failed(step)) ||
          (step.type === "note" && step.tone === "fail") ||
          (step.type === "end" && step.end.exit_reason.reason !== "completed"),
      );
    case "edits":
      return steps.filter(
        (step) => step.type === "tool" && (step.lines !== null || /^(Edit|Write|MultiEdit)$/.test(step.name)),
      );
    case "words":
      return steps.filter((step) => WORDS.has(step.type));
  }
}

export function failed(step: ToolStep): boolean {
  if (step.isError) return true;
  return (
    step.command !== null &&
    step.command.exit_code !== 0 &&
    !(step.command.benign && step.command.exit_code !== null)
  );
}

/** As many alike steps in a row become one fold. */
export const FOLD_AT = 3;

const alike = (a: ToolStep, b: ToolStep): boolean => a.name === b.name && a.name !== "Bash";
const foldable = (step: Step): step is ToolStep => step.type === "tool" && step.done && !failed(step);

export function foldSteps(steps: Step[]): Step[] {
  const result: Step[] = [];
  for (let i = 0; i < steps.length; ) {
    const first = steps[i] as Step;
    const run: ToolStep[] = [];
    if (foldable(first)) {
      for (let j = i; j < steps.length; j++) {
        const next = steps[j] as Step;
        if (!foldable(next) || !alike(first, next)) break;
        run.push(next);
      }
    }
    if (run.length >= FOLD_AT) {
      const head = run[0] as ToolStep;
      result.push({ type: "fold", key: `f${head.key}`, n: head.n, name: head.name, steps: run });
      i += run.length;
    } else {
      result.push(first);
      i++;
    }
  }
  return result;
}
