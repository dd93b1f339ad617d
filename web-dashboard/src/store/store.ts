/**
 * One store for the page. Changes are applied at once and painted by channel: text once a frame, rows four
 * times a second, money once; a hidden tab paints nothing and catches up when it is seen.
 */

import { useSyncExternalStore } from "react";
import { call, errorText, seg, whenUnauthorized } from "../api/client";
import type { Overview, PermissionView, SessionDetail, WireEvent, WorkerDetail } from "../api/types";
import { type Connection, connect } from "../live/connect";
import type { FromStream } from "../live/messages";
import { Loader } from "./loader";
import {
  afterGap,
  applyEvents,
  type Channel,
  INITIAL,
  openPermissions,
  type Stale,
  type State,
  withOverview,
  withPermissions,
  withSessionDetail,
  withWorkerDetail,
} from "./state";

const PERIOD: Record<Channel, number> = { now: 0, text: 16, rows: 250, money: 1000 };

class Store {
  private state: State = INITIAL;
  private readonly listeners: Record<Channel, Set<() => void>> = {
    now: new Set(),
    text: new Set(),
    rows: new Set(),
    money: new Set(),
  };
  private readonly always = new Set<() => void>();
  private readonly due = new Map<Channel, ReturnType<typeof setTimeout> | number>();
  private readonly painted: Record<Channel, number> = { now: 0, text: 0, rows: 0, money: 0 };
  private readonly missed = new Set<Channel>();

  get = (): State => this.state;

  set(change: (state: State) => State, channels: Iterable<Channel>): void {
    const next = change(this.state);
    if (next === this.state) return;
    this.state = next;
    for (const channel of channels) this.schedule(channel);
    for (const listener of this.always) listener();
  }

  subscribe(channel: Channel, listener: () => void): () => void {
    this.listeners[channel].add(listener);
    return () => this.listeners[channel].delete(listener);
  }

  /** Every change, also while hidden: for the title alone. */
  subscribeAlways(listener: () => void): () => void {
    this.always.add(listener);
    return () => this.always.delete(listener);
  }

  private schedule(channel: Channel): void {
    if (document.hidden) {
      this.missed.add(channel);
      return;
    }
    if (channel === "now") {
      this.paint(channel);
      return;
    }
    if (this.due.has(channel)) return;
    if (channel === "text") {
      this.due.set(
        channel,
        requestAnimationFrame(() => this.paint(channel)),
      );
      return;
    }
    const wait = Math.max(0, this.painted[channel] + PERIOD[channel] - performance.now());
    this.due.set(
      channel,
      setTimeout(() => this.paint(channel), wait),
    );
  }

  private paint(channel: Channel): void {
    this.due.delete(channel);
    this.painted[channel] = performance.now();
    for (const listener of this.listeners[channel]) listener();
    // What a person caused, or a new snapshot, is shown everywhere at once.
    if (channel === "now") {
      for (const other of ["text", "rows", "money"] as const) {
        for (const listener of this.listeners[other]) listener();
      }
    }
  }

  catchUp(): void {
    for (const channel of this.missed) this.paint(channel);
    this.missed.clear();
  }
}

export const store = new Store();

/** Reads a part of the state; painted with the channel's rhythm. The selector must return a stable value. */
export function useStore<T>(select: (state: State) => T, channel: Channel = "rows"): T {
  return useSyncExternalStore(SUBSCRIBE[channel], () => select(store.get()));
}

const SUBSCRIBE: Record<Channel, (listener: () => void) => () => void> = {
  now: (listener) => store.subscribe("now", listener),
  text: (listener) => store.subscribe("text", listener),
  rows: (listener) => store.subscribe("rows", listener),
  money: (listener) => store.subscribe("money", listener),
};

export const serverNow = (): number => Date.now() + store.get().clockOffset;

// --- Loading ---------------------------------------------------------------------------------------------

const wanted = new Map<string, number>();
let connection: Connection | null = null;

const overview = new Loader(500, async () => {
  try {
    const data = await call<Overview>("/overview");
    const first = store.get().overview.data === null;
    store.set((state) => withOverview(state, data, Date.now()), ["now"]);
    // Only after the cursor: what is read later cannot miss an event the cursor skips.
    if (first) permissions.want();
    if (early.length > 0) receive({ say: "events", events: [] });
    connection?.send({ do: "start", from: String(data.position) });
  } catch (error) {
    store.set((state) => ({ ...state, overview: { ...state.overview, error: asError(error) } }), ["now"]);
    // No snapshot yet: nothing else would try again.
    if (store.get().overview.data === null && !isUnauthorized()) setTimeout(() => overview.want(), 3000);
  }
});

const permissions = new Loader(500, async () => {
  const asked = new Set(openPermissions(store.get()).map((view) => view.request.id));
  try {
    const list = await call<PermissionView[]>("/permissions");
    store.set((state) => withPermissions(state, list, asked), ["now"]);
  } catch (error) {
    store.set(
      (state) => ({ ...state, permissions: { ...state.permissions, error: asError(error) } }),
      ["now"],
    );
  }
});

const details = new Map<string, Loader>();

function detailLoader(key: Stale): Loader {
  const known = details.get(key);
  if (known) return known;
  const loader = new Loader(500, () => loadDetail(key));
  details.set(key, loader);
  return loader;
}

async function loadDetail(key: Stale): Promise<void> {
  const [what, id] = key.split(" ") as ["session" | "worker", string];
  try {
    if (what === "session") {
      const data = await call<SessionDetail>(`/sessions/${seg(id)}`);
      store.set((state) => withSessionDetail(state, data), ["rows", "text"]);
      aliases.set(id, data.session.session_id);
    } else {
      const data = await call<WorkerDetail>(`/workers/${seg(id)}`);
      store.set((state) => withWorkerDetail(state, data), ["rows"]);
    }
  } catch (error) {
    const failed = asError(error);
    store.set(
      (state) => {
        if (what === "session") {
          const known = state.sessionDetails[id] ?? { data: null, error: null };
          return { ...state, sessionDetails: { ...state.sessionDetails, [id]: { ...known, error: failed } } };
        }
        const known = state.workerDetails[id] ?? { data: null, error: null };
        return { ...state, workerDetails: { ...state.workerDetails, [id]: { ...known, error: failed } } };
      },
      ["now"],
    );
  }
}

/** What an address calls a session (its last 8 digits, say) to the whole id. */
const aliases = new Map<string, string>();
export const sessionIdOf = (name: string): string => aliases.get(name) ?? name;

/** While a page shows this, it is read again whenever an event makes it stale. Returns how to let go. */
export function want(key: `session ${string}` | `worker ${string}`): () => void {
  wanted.set(key, (wanted.get(key) ?? 0) + 1);
  detailLoader(key).want();
  return () => {
    const count = (wanted.get(key) ?? 1) - 1;
    if (count > 0) wanted.set(key, count);
    else wanted.delete(key);
  };
}

export function reload(key: Stale): void {
  if (key === "overview") overview.want();
  else if (key === "permissions") permissions.want();
  else if (wanted.has(key)) detailLoader(key).want();
}

function reloadAll(): void {
  overview.want();
  permissions.want();
  for (const key of wanted.keys()) detailLoader(key as Stale).want();
}

function refresh(stale: Set<Stale>): void {
  for (const key of stale) {
    reload(key);
    // A page may have been opened under a shorter name of the same session.
    if (key.startsWith("session ")) {
      for (const [name, id] of aliases) if (`session ${id}` === key && name !== id) reload(`session ${name}`);
    }
  }
}

// --- The stream ------------------------------------------------------------------------------------------

/** Until the first snapshot is here, events wait. */
let early: WireEvent[] = [];

function receive(message: FromStream): void {
  switch (message.say) {
    case "events": {
      if (store.get().overview.data === null) {
        early.push(...message.events);
        return;
      }
      const waiting = early;
      early = [];
      const change = applyEvents(store.get(), waiting.concat(message.events));
      store.set(() => change.state, change.channels);
      refresh(change.stale);
      break;
    }
    case "status": {
      const before = store.get().connection.status;
      store.set(
        (state) => {
          const next = {
            ...state,
            connection: {
              status: message.status,
              heardAt: message.heardAt || state.connection.heardAt,
              why: message.why,
            },
          };
          return message.status === "reconnecting" ? afterGap(next) : next;
        },
        ["now"],
      );
      // Journal events are replayed by cursor; what only snapshots know (activity, deadlines) is read again.
      if (message.status === "live" && before === "reconnecting") reloadAll();
      break;
    }
    case "behind":
      store.set(
        (state) => (message.restart ? { ...afterGap(state), position: 0 } : afterGap(state)),
        ["now"],
      );
      reloadAll();
      break;
    case "beat":
      store.set((state) => {
        const at = message.serverNow === null ? Number.NaN : Date.parse(message.serverNow);
        return {
          ...state,
          clockOffset: Number.isNaN(at) ? state.clockOffset : at - message.heardAt,
          connection: { ...state.connection, heardAt: message.heardAt },
        };
      }, []);
      break;
  }
}

export function isUnauthorized(): boolean {
  return store.get().connection.status === "unauthorized";
}

let begun = false;

export function begin(): void {
  if (begun) return;
  begun = true;
  whenUnauthorized(() => {
    store.set(
      (state) => ({ ...state, connection: { ...state.connection, status: "unauthorized" } }),
      ["now"],
    );
  });
  connection = connect(receive);
  connection.send({ do: "hello" });
  overview.want();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    connection?.send({ do: "probe" });
    store.catchUp();
  });
  // Silence makes states too (quiet workers, another day): once in a while the rows are read without news.
  setInterval(() => {
    if (!document.hidden && store.get().connection.status === "live") overview.want();
  }, 30_000);
  window.addEventListener("online", () => connection?.send({ do: "probe" }));
  window.addEventListener("pagehide", () => connection?.send({ do: "bye" }));
  window.addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    connection?.send({ do: "hello" });
    reloadAll();
  });
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(errorText(error));
}
