/** Calls to the server. Errors carry the server's stable code; a 401 is told to whoever listens. */

import type { Problem } from "./types";

export const API = "/api/v1";

export class ApiError extends Error {
  readonly code: string;
  readonly status: number;
  readonly causes: string[];
  readonly hint: string | null;

  constructor(problem: Problem) {
    super(problem.title);
    this.name = "ApiError";
    this.code = problem.code;
    this.status = problem.status;
    this.causes = problem.causes ?? [];
    this.hint = problem.hint ?? null;
  }
}

let onUnauthorized: () => void = () => {};

export function whenUnauthorized(listener: () => void): void {
  onUnauthorized = listener;
}

function isProblem(value: unknown): value is Problem {
  return typeof value === "object" && value !== null && "title" in value && "code" in value;
}

async function failure(response: Response): Promise<ApiError> {
  const body: unknown = await response.json().catch(() => null);
  if (isProblem(body)) return new ApiError({ ...body, status: response.status });
  return new ApiError({
    type: "about:blank",
    status: response.status,
    title: `the server answered ${response.status}${response.statusText ? ` ${response.statusText}` : ""}`,
    code: `http_${response.status}`,
  });
}

interface Options {
  method?: string;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  timeoutMs?: number;
}

export async function call<T>(path: string, options: Options = {}): Promise<T> {
  const { method = "GET", body, headers = {}, signal, timeoutMs = 30_000 } = options;
  const limit = AbortSignal.timeout(timeoutMs);
  let response: Response;
  try {
    response = await fetch(`${API}${path}`, {
      method,
      headers: {
        accept: "application/json",
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...headers,
      },
      body: body === undefined ? null : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    const late = limit.aborted;
    throw new ApiError({
      type: "about:blank",
      status: 0,
      title: late ? "the server did not answer in time" : "the server cannot be reached",
      code: late ? "timeout" : "unreachable",
    });
  }
  if (response.status === 401) {
    const error = await failure(response);
    onUnauthorized();
    throw error;
  }
  if (!response.ok) throw await failure(response);
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

export function post<T>(
  path: string,
  body: unknown,
  options: Omit<Options, "method" | "body"> = {},
): Promise<T> {
  return call<T>(path, { ...options, method: "POST", body });
}

export const seg = encodeURIComponent;

/** The words of an error for people. */
export function errorText(error: unknown): string {
  if (error instanceof Error) return error.message;
  return String(error);
}
