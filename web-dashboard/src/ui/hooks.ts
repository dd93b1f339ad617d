import { useCallback, useEffect, useLayoutEffect, useRef, useState, useSyncExternalStore } from "react";
import type { WorkerView } from "../api/types";
import { fromRow, type StateWord, workerState } from "../lib/states";
import { serverNow, useStore } from "../store/store";

// --- Time -------------------------------------------------------------------------------------------------

const tickers = new Set<() => void>();
let ticking: ReturnType<typeof setInterval> | null = null;
let second = 0;

function subscribeTick(listener: () => void): () => void {
  tickers.add(listener);
  ticking ??= setInterval(() => {
    if (document.hidden) return;
    second = Math.floor(Date.now() / 1000);
    for (const tick of tickers) tick();
  }, 1000);
  return () => {
    tickers.delete(listener);
    if (tickers.size === 0 && ticking !== null) {
      clearInterval(ticking);
      ticking = null;
    }
  };
}

/** The server's clock, told once a second while the page is seen. */
export function useNow(): number {
  useSyncExternalStore(subscribeTick, () => second);
  return serverNow();
}

// --- Connection -------------------------------------------------------------------------------------------

export const NOT_LIVE = "not connected: the server is being reached";

export function useIsLive(): boolean {
  return useStore((state) => state.connection.status === "live", "now");
}

// --- States -----------------------------------------------------------------------------------------------

function sameState(a: WorkerView, b: WorkerView): boolean {
  return (
    a.status === b.status &&
    a.waiting_for === b.waiting_for &&
    a.doubts.length === b.doubts.length &&
    a.branch === b.branch &&
    a.merged_into === b.merged_into &&
    a.discarded === b.discarded
  );
}

/** The same word on every surface: the server's row where there is one, else the table. */
export function useWorkerState(worker: WorkerView): StateWord {
  const row = useStore(
    (state) => state.overview.data?.rows.find((candidate) => candidate.worker?.id === worker.id),
    "rows",
  );
  if (row?.worker && sameState(row.worker, worker)) return fromRow(row);
  return workerState(worker, serverNow());
}

// --- Media ------------------------------------------------------------------------------------------------

export function useMedia(query: string): boolean {
  const subscribe = useCallback(
    (listener: () => void) => {
      const list = window.matchMedia(query);
      list.addEventListener("change", listener);
      return () => list.removeEventListener("change", listener);
    },
    [query],
  );
  return useSyncExternalStore(subscribe, () => window.matchMedia(query).matches);
}

// --- Following the tail -----------------------------------------------------------------------------------

/** Within this many pixels of the end a view follows what is added. */
export const TAIL_PX = 32;

export interface Tail {
  box: React.RefObject<HTMLDivElement | null>;
  content: React.RefObject<HTMLDivElement | null>;
  following: boolean;
  news: number;
  toEnd: () => void;
  detach: () => void;
}

/** `count` is what the pill counts: how many items there are. */
export function useTail(count: number): Tail {
  const box = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const [following, setFollowing] = useState(true);
  const attached = useRef(true);
  const [seen, setSeen] = useState(count);

  const set = useCallback((value: boolean) => {
    attached.current = value;
    setFollowing(value);
  }, []);
  const toEnd = useCallback(() => {
    set(true);
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [set]);
  const detach = useCallback(() => set(false), [set]);

  useEffect(() => {
    const element = box.current;
    const inner = content.current;
    if (!element || !inner) return;
    let height = element.scrollHeight;
    const onScroll = () => {
      const near = element.scrollHeight - element.scrollTop - element.clientHeight <= TAIL_PX;
      // Growth of the content moves nothing a person did: only a scroll of theirs lets go.
      if (near) set(true);
      else if (element.scrollHeight === height) set(false);
      height = element.scrollHeight;
    };
    const onSelect = () => {
      const selection = document.getSelection();
      if (selection && !selection.isCollapsed && element.contains(selection.anchorNode)) set(false);
    };
    const observer = new ResizeObserver(() => {
      if (attached.current) element.scrollTop = element.scrollHeight;
      height = element.scrollHeight;
    });
    observer.observe(inner);
    observer.observe(element);
    element.addEventListener("scroll", onScroll, { passive: true });
    document.addEventListener("selectionchange", onSelect);
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", onScroll);
      document.removeEventListener("selectionchange", onSelect);
    };
  }, [set]);

  useLayoutEffect(() => {
    if (following) setSeen(count);
  }, [following, count]);

  return { box, content, following, news: following ? 0 : Math.max(0, count - seen), toEnd, detach };
}

// --- Drafts -----------------------------------------------------------------------------------------------

/** Text that survives a reload of this tab. */
export function useDraft(key: string): [string, (text: string) => void] {
  const name = `swarm.draft.${key}`;
  const [text, setText] = useState(() => read(name));
  useEffect(() => setText(read(name)), [name]);
  const set = useCallback(
    (next: string) => {
      setText(next);
      try {
        if (next === "") localStorage.removeItem(name);
        else localStorage.setItem(name, next);
      } catch {
        // No storage: the draft lives as long as the page.
      }
    },
    [name],
  );
  return [text, set];
}

function read(name: string): string {
  try {
    return localStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}
