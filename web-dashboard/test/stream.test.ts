import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { WireEvent } from "../src/api/types";
import { backoff, EventStream, parseEvent, type StreamStatus } from "../src/live/stream";

interface Sent {
  url: string;
  lastEventId: string;
  write: (text: string) => void;
  close: () => void;
}

function server(answers: (number | "hang")[] = []) {
  const sent: Sent[] = [];
  const fetch = (input: RequestInfo | URL, init?: RequestInit): Promise<Response> => {
    const encoder = new TextEncoder();
    let controller: ReadableStreamDefaultController<Uint8Array> | undefined;
    const body = new ReadableStream<Uint8Array>({
      start(made) {
        controller = made;
      },
    });
    init?.signal?.addEventListener("abort", () => {
      try {
        controller?.error(new Error("aborted"));
      } catch {
        // Closed already.
      }
    });
    const headers = new Headers(init?.headers);
    sent.push({
      url: String(input),
      lastEventId: headers.get("last-event-id") ?? "",
      write: (text) => controller?.enqueue(encoder.encode(text)),
      close: () => controller?.close(),
    });
    const status = answers[sent.length - 1] ?? 200;
    if (status === "hang") {
      return new Promise((_, reject) =>
        init?.signal?.addEventListener("abort", () => reject(new Error("aborted"))),
      );
    }
    return Promise.resolve(new Response(status === 200 ? body : "", { status }));
  };
  return { fetch: fetch as typeof globalThis.fetch, sent };
}

function open(answers: (number | "hang")[] = []) {
  const { fetch, sent } = server(answers);
  const events: WireEvent[] = [];
  const statuses: StreamStatus[] = [];
  const behind = vi.fn();
  const beat = vi.fn();
  const stream = new EventStream(
    { events: (list) => events.push(...list), status: (status) => statuses.push(status), behind, beat },
    { fetch, now: () => Date.now(), url: "/api/v1/events" },
  );
  return { stream, sent, events, statuses, behind, beat };
}

const settle = (ms = 50) => vi.advanceTimersByTimeAsync(ms);
const line = (position: number) =>
  `id: ${position}\ndata: ${JSON.stringify({ v: 1, seq: position, at: "", session_id: null, position, kind: "x" })}\n\n`;

describe("the stream of events", () => {
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it("begins at the cursor of the snapshot and resumes at the last id it got", async () => {
    const { stream, sent, events, statuses } = open();
    stream.start("41");
    await settle();
    expect(sent[0]).toMatchObject({ url: "/api/v1/events?from=41", lastEventId: "41" });
    expect(statuses).toEqual(["live"]);
    sent[0]?.write(line(42));
    // A live event has no id: the cursor stays.
    sent[0]?.write('data: {"v":1,"kind":"live","data":{}}\n\n');
    await settle();
    expect(events.map((event) => event.kind)).toEqual(["x", "live"]);
    sent[0]?.close();
    await settle(2000);
    expect(sent[1]).toMatchObject({ url: "/api/v1/events?from=42", lastEventId: "42" });
    expect(statuses).toEqual(["live", "reconnecting", "live"]);
    stream.stop();
  });

  it("says within 35 s that nothing is heard, and connects again", async () => {
    const { stream, sent, statuses } = open();
    stream.start("1");
    await settle();
    for (let i = 0; i < 4; i++) {
      await settle(15_000);
      sent[0]?.write(": beat\n\n");
      await settle();
    }
    expect(statuses).toEqual(["live"]);
    await settle(36_500);
    expect(statuses[1]).toBe("reconnecting");
    await settle(2000);
    expect(sent.length).toBe(2);
    stream.stop();
  });

  it("gives a request that hangs the same time, then tries again", async () => {
    const { stream, sent } = open(["hang"]);
    stream.start("1");
    await settle(36_500);
    await settle(2000);
    expect(sent.length).toBe(2);
    stream.stop();
  });

  it("stops at 401 and says so", async () => {
    const { stream, sent, statuses } = open([401]);
    stream.start("1");
    await settle(60_000);
    expect(statuses).toEqual(["unauthorized"]);
    expect(sent.length).toBe(1);
    expect(stream.state.running).toBe(false);
  });

  it("goes on when live news were lost, and says so", async () => {
    const { stream, sent, events, behind } = open();
    stream.start("1");
    await settle();
    sent[0]?.write("event: behind\ndata: {}\n\n");
    sent[0]?.write(line(2));
    await settle();
    expect(behind).toHaveBeenCalledExactlyOnceWith(false);
    expect(events).toHaveLength(1);
    expect(sent).toHaveLength(1);
    stream.stop();
  });

  it("asks for a new snapshot when its cursor is refused, and starts from there", async () => {
    const { stream, sent, behind } = open([410]);
    stream.start("1");
    await settle();
    expect(behind).toHaveBeenCalledExactlyOnceWith(true);
    expect(stream.state.running).toBe(false);
    stream.start("900");
    await settle();
    expect(sent[1]?.url).toBe("/api/v1/events?from=900");
    stream.stop();
  });

  it("reads the server's clock from beats", async () => {
    const { stream, sent, beat } = open();
    stream.start("1");
    await settle();
    sent[0]?.write('event: beat\ndata: {"now":"2026-11-30T12:00:00.000Z"}\n\n');
    await settle();
    expect(beat.mock.calls.some(([now]) => now === "2026-11-30T12:00:00.000Z")).toBe(true);
    stream.stop();
  });
});

it("skips what is no event", () => {
  expect(parseEvent("not json")).toBeNull();
  expect(parseEvent("[]")).toBeNull();
  expect(parseEvent('{"kind":3}')).toBeNull();
  expect(parseEvent('{"kind":"x"}')?.kind).toBe("x");
});

it("waits longer after each failure, within bounds", () => {
  expect(backoff(0, 0.5)).toBe(400);
  expect(backoff(3, 0.5)).toBe(3200);
  expect(backoff(50, 1)).toBeLessThanOrEqual(13_000);
});
