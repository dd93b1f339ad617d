/** Which field of the new-task form an error of the server belongs to. */

export type TaskField = "prompt" | "repo" | "base" | "model" | "workers" | "form";

const FIELDS: Record<string, TaskField> = {
  empty_prompt: "prompt",
  blank_prompt: "prompt",
  prompt_too_long: "prompt",
  no_repo: "repo",
  repo_missing: "repo",
  not_a_repository: "repo",
  no_commit: "repo",
  bare_repository: "repo",
  bad_base: "base",
  unknown_base: "base",
  no_model: "model",
  unknown_model: "model",
  bad_model: "model",
  no_key: "model",
  key_refused: "model",
  unknown_provider: "model",
  no_place: "repo",
  unsupported_repository: "repo",
  bad_max_workers: "workers",
};

export function fieldOf(code: string): TaskField {
  return FIELDS[code] ?? "form";
}
