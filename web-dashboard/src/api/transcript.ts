/** Records of an agent's transcript, as the API gives them. */
import type {
  CommandRun,
  Cost,
  ExitReason,
  PermissionRequest,
  PermissionRequestId,
  Timestamp,
  Usage,
} from "./types";

export interface TaskItem {
  id: number;
  subject: string;
  description?: string;
  active_form?: string;
  blocked_by?: number[];
  status: "pending" | "in_progress" | "completed" | "deleted";
}

export interface TodoItem {
  content: string;
  status: string;
  activeForm?: string;
}

export type ResultBlock =
  | { type: "text"; text: string }
  | { type: "image"; media_type: string; data: string }
  | { type: "tool_reference"; name: string; definition: string };

export type Block =
  | { type: "text"; text: string }
  | { type: "thinking"; thinking: string; signature: string }
  | { type: "redacted_thinking"; data: string }
  | { type: "tool_use"; id: string; name: string; input: unknown; provider_data?: unknown }
  | { type: "tool_result"; tool_use_id: string; content: ResultBlock[]; is_error?: boolean }
  | { type: "image"; media_type: string; data: string }
  | { type: "opaque"; provider: string; data: unknown };

export interface Message {
  role: "user" | "assistant";
  content: Block[];
}

export type ToolEffect =
  | { kind: "none" }
  | { kind: "edited"; path: string; added: number; removed: number }
  | ({ kind: "command" } & CommandRun)
  | { kind: "other"; data: unknown };

export interface StopReason {
  reason: string;
  explanation?: string;
  word?: string;
}

export type RecordBody =
  | {
      type: "run_started";
      run: number;
      restarts: number;
      pid: number;
      model: string;
      sandbox_tier: number;
      version: string;
    }
  | { type: "user"; message: Message; origin: { kind: string; message_id?: string | null } }
  | { type: "request_started"; request: number; model: string; estimated_tokens: number }
  | { type: "intent"; request: number; blocks: Block[] }
  | {
      type: "tool_finished";
      tool_use_id: string;
      name: string;
      result: Block;
      duration_ms: number;
      effect: ToolEffect;
    }
  | {
      type: "assistant";
      message: Message;
      request: number;
      model: string;
      stop_reason: StopReason;
      usage: Usage;
      cost: Cost;
      incomplete?: boolean;
    }
  | { type: "helper_call"; purpose: string; model: string; usage: Usage; cost: Cost }
  | { type: "command_accepted"; command: number; what: string }
  | { type: "permission_requested"; request: PermissionRequest }
  | { type: "permission_withdrawn"; id: PermissionRequestId; reason: string }
  | { type: "snapshot"; n: number; commit: string }
  | {
      type: "compact_boundary";
      trigger: string;
      steps: string[];
      pre_tokens: number;
      post_tokens: number;
      messages_summarised: number;
      messages: Message[];
    }
  | { type: "content_replacement"; tool_use_id: string; path: string; bytes: number }
  | { type: "todo"; items: TodoItem[] }
  | { type: "task_item"; item: TaskItem }
  | { type: "plan_mode"; is_on: boolean; path?: string }
  | { type: "tombstone"; note: string }
  | ({ type: "run_ended" } & RunEnd);

export interface RunEnd {
  exit_reason: ExitReason;
  result: string;
  result_from_earlier: boolean;
  turns: number;
  usage: Usage;
  cost: Cost;
  duration_ms: number;
  commands: CommandRun[];
  commands_after_last_edit: number;
  edited: boolean;
  skipped_files: string[];
  commit_error: string | null;
  children_killed: string[];
}

/** One line of a transcript. A body of a type this build does not know is skipped. */
export interface TranscriptRecord {
  n: number;
  uuid: string;
  parent_uuid: string | null;
  timestamp: Timestamp;
  run: number;
  body: RecordBody;
}

export interface TranscriptPage {
  records: TranscriptRecord[];
  last: number;
  damaged_lines: number;
}

export interface RecordHead {
  n: number;
  uuid: string;
  timestamp: Timestamp;
  run: number;
  record: string;
  bytes: number;
  head: string;
}
