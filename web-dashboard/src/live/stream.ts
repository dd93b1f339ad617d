/**
 * The stream of events: one connection, resumed by cursor, watched for silence. Runs in a SharedWorker, or
 * in the page where there is none. Times and fetch are passed in, so that tests own them.
 */

import { createParser } from "eventsource-parser";
import type { WireEvent } from "../api/types";

/** Two beats of 15 s missed, and a little. */
export const SILENCE_MS = 35_000;

export type StreamStatus = "connecting" | "live" | "reconnecting" | "unauthorized";

export interface StreamHandlers {
  events(events: WireEvent[]): void;
  status(status: StreamStatus, heardAt: number, why: string): void;
  /**
   * Something was lost: live news alone (the stream goes on and misses no event), or, with `restart`, the
   * cursor is of no use any more: take a new snapshot, then start from it.
   */
  behind(restart: boolean): void;
  beat(serverNow: string | null, heardAt: number): void;
}

interface Surroundings {
  fetch: typeof fetch;
  now(): number;
  url: string;
}

export function backoff(attempt: number, random: number): number {
  return Math.min(10_000, 400 * 2 ** Math.min(attempt, 5)) * (0.7 + 0.6 * random);
}

export class EventStream {
  private cursor: string | null = null;
  private abort: AbortController | null = null;
  private heardAt = 0;
  private askedAt = 0;
  private attempt = 0;
  private running = false;
  private current: StreamStatus = "connecting";
  private generation = 0;
  private batch: WireEvent[] = [];
  private flushing = false;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private watchdog: ReturnType<typeof setInterval> | null = null;

  constructor(
    private readonly handlers: StreamHandlers,
    private readonly around: Surroundings,
  ) {}

  get state(): { status: StreamStatus; heardAt: number; running: boolean } {
    return { status: this.current, heardAt: this.heardAt, running: this.running };
  }

  /** Begins at a snapshot's cursor; a stream that runs already goes on where it is. */
  start(from: string): void {
    if (this.running) return;
    this.running = true;
    this.cursor = from;
    this.attempt = 0;
    this.watchdog ??= setInterval(() => this.watch(), 1000);
    this.open();
  }

  stop(): void {
    this.running = false;
    this.generation++;
    this.abort?.abort();
    if (this.timer !== null) clearTimeout(this.timer);
    if (this.watchdog !== null) clearInterval(this.watchdog);
    this.timer = null;
    this.watchdog = null;
  }

  /** On wake: when the last word is older than a beat, connect again now rather than wait for the watchdog. */
  probe(): void {
    if (!this.running) return;
    if (this.timer !== null) {
      clearTimeout(this.timer);
      this.open();
    } else if (this.around.now() - this.heardAt > 20_000) {
      this.abort?.abort();
    }
  }

  private watch(): void {
    // A new request gets the whole time for its answer.
    const since = Math.max(this.heardAt, this.askedAt);
    if (this.running && this.timer === null && this.around.now() - since > SILENCE_MS) {
      this.tell("reconnecting", "nothing was heard for 35 s");
      this.abort?.abort();
    }
  }

  private tell(status: StreamStatus, why: string): void {
    this.current = status;
    this.handlers.status(status, this.heardAt, why);
  }

  private async open(): Promise<void> {
    this.timer = null;
    const generation = ++this.generation;
    const mine = () => this.running && generation === this.generation;
    const abort = new AbortController();
    this.abort = abort;
    this.askedAt = this.around.now();
    let why = "the server ended the stream";
    try {
      const response = await this.around.fetch(
        `${this.around.url}?from=${encodeURIComponent(this.cursor ?? "0")}`,
        {
          headers: { accept: "text/event-stream", "last-event-id": this.cursor ?? "0" },
          credentials: "same-origin",
          cache: "no-store",
          signal: abort.signal,
        },
      );
      if (!mine()) return;
      if (response.status === 401) {
        this.stop();
        this.tell("unauthorized", "");
        return;
      }
      if (response.status === 410 || response.status === 416 || response.status === 400) {
        this.startAnew();
        return;
      }
      if (!response.ok || response.body === null) throw new Error(`the server answered ${response.status}`);
      this.heard();
      this.tell("live", "");
      this.attempt = 0;
      await this.read(response.body, mine);
    } catch (error) {
      why = abort.signal.aborted
        ? "nothing was heard"
        : error instanceof Error
          ? error.message
          : String(error);
    }
    this.flush();
    if (!mine()) return;
    this.tell("reconnecting", why);
    this.timer = setTimeout(() => void this.open(), backoff(this.attempt++, Math.random()));
  }

  private heard(): void {
    this.heardAt = this.around.now();
  }

  private async read(body: ReadableStream<Uint8Array>, mine: () => boolean): Promise<void> {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    let told = 0;
    const parser = createParser({
      onEvent: (message) => {
        if (message.event === "beat") {
          this.handlers.beat(beatTime(message.data), this.heardAt);
          return;
        }
        if (message.event === "behind") {
          this.flush();
          this.handlers.behind(false);
          return;
        }
        const event = parseEvent(message.data);
        if (message.id !== undefined && message.id !== "") this.cursor = message.id;
        if (event !== null) this.push(event);
      },
      onComment: () => this.handlers.beat(null, this.heardAt),
    });
    try {
      while (mine()) {
        const { done, value } = await reader.read();
        if (done || !mine()) break;
        this.heard();
        if (this.heardAt - told > 1000) {
          told = this.heardAt;
          this.handlers.beat(null, this.heardAt);
        }
        parser.feed(decoder.decode(value, { stream: true }));
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  private startAnew(): void {
    this.stop();
    this.tell("reconnecting", "catching up");
    this.handlers.behind(true);
  }

  private push(event: WireEvent): void {
    this.batch.push(event);
    if (this.flushing) return;
    this.flushing = true;
    setTimeout(() => this.flush(), 16);
  }

  private flush(): void {
    this.flushing = false;
    if (this.batch.length === 0) return;
    const events = this.batch;
    this.batch = [];
    this.handlers.events(events);
  }
}

function beatTime(data: string): string | null {
  try {
    const value: unknown = JSON.parse(data);
    if (typeof value === "object" && value !== null && "now" in value && typeof value.now === "string") {
      return value.now;
    }
  } catch {
    // A beat without a body is a beat.
  }
  return null;
}

export function parseEvent(data: string): WireEvent | null {
  try {
    const value: unknown = JSON.parse(data);
    if (typeof value !== "object" || value === null) return null;
    const event = value as WireEvent;
    return typeof event.kind === "string" ? event : null;
  } catch {
    return null;
  }
}
