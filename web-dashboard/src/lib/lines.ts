/** A conversation as people read it. */

import type { ConversationItem } from "../api/types";

type Call = Extract<ConversationItem, { item: "call" }>;
export type Line =
  | Exclude<ConversationItem, Call>
  | { item: "calls"; seq: number; at: string; tool: string; calls: Call[] };

/** Calls of one tool in a row become one line. */
export function toLines(items: readonly ConversationItem[]): Line[] {
  const lines: Line[] = [];
  for (const item of items) {
    if (item.item !== "call") {
      lines.push(item);
      continue;
    }
    const last = lines[lines.length - 1];
    if (last?.item === "calls" && last.tool === item.tool) {
      lines[lines.length - 1] = { ...last, calls: [...last.calls, item] };
    } else lines.push({ item: "calls", seq: item.seq, at: item.at, tool: item.tool, calls: [item] });
  }
  return lines;
}
