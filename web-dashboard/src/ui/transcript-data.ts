import { useCallback, useEffect, useReducer, useRef } from "react";
import { call, seg } from "../api/client";
import type { TranscriptPage, TranscriptRecord } from "../api/types";
import { Loader } from "../store/loader";
import { NOTHING_LIVE } from "../store/state";
import { store, useStore } from "../store/store";

const PAGE = 200;
/** More than this stays on the server while one follows the end. */
const KEPT = 1200;

export interface Transcript {
  records: TranscriptRecord[];
  /** Number of the first record held, or 0. */
  first: number;
  last: number;
  damaged: number;
  loaded: boolean;
  error: Error | null;
  earlier: () => Promise<void>;
  retry: () => void;
}

/** The end of a worker's transcript, growing as records come, and earlier pages on demand. */
export function useTranscript(id: string): Transcript {
  const data = useRef({
    records: [] as TranscriptRecord[],
    last: 0,
    damaged: 0,
    loaded: false,
    error: null as Error | null,
    rewinds: 0,
  });
  const [, repaint] = useReducer((count: number) => count + 1, 0);
  const alive = useRef(true);
  const known = useStore((state) => state.lastRecord[id]);

  const page = useCallback(
    (after: number, limit: number) =>
      call<TranscriptPage>(`/workers/${seg(id)}/transcript?after=${after}&limit=${limit}`),
    [id],
  );

  const loader = useRef<Loader | null>(null);
  loader.current ??= new Loader(300, async () => {
    const held = data.current;
    try {
      if (!held.loaded) {
        let got = await page(0, PAGE);
        // Long ones open at their end.
        if (got.last > PAGE) got = await page(got.last - PAGE, PAGE);
        held.records = got.records;
        take(got);
        held.loaded = true;
      }
      for (;;) {
        const at = held.records[held.records.length - 1]?.n ?? 0;
        const wanted = Math.max(held.last, store.get().lastRecord[id]?.n ?? 0);
        if (at >= wanted) break;
        const got = await page(at, PAGE);
        take(got);
        const fresh = got.records.filter((record) => record.n > at);
        if (fresh.length === 0) break;
        held.records = held.records.concat(fresh);
        if (held.records.length > KEPT + PAGE) held.records = held.records.slice(-KEPT);
      }
      held.error = null;
      settle(id, held.records[held.records.length - 1]?.n ?? 0);
    } catch (error) {
      held.error = error instanceof Error ? error : new Error(String(error));
    }
    if (alive.current) repaint();
  });
  const take = (got: TranscriptPage) => {
    data.current.last = got.last;
    data.current.damaged = got.damaged_lines;
  };

  useEffect(() => {
    alive.current = true;
    loader.current?.want();
    return () => {
      alive.current = false;
    };
  }, []);

  useEffect(() => {
    if (known === undefined) return;
    const held = data.current;
    if (known.rewinds !== held.rewinds) {
      // Records that were lost and may be written anew under the same numbers.
      held.rewinds = known.rewinds;
      held.loaded = false;
      held.last = 0;
    }
    loader.current?.want();
  }, [known]);

  const earlier = useCallback(async () => {
    const held = data.current;
    const first = held.records[0]?.n ?? 1;
    const after = Math.max(0, first - 1 - PAGE);
    const got = await page(after, first - 1 - after);
    held.records = got.records.filter((record) => record.n < first).concat(held.records);
    repaint();
  }, [page]);

  const { records, last, damaged, loaded, error } = data.current;
  return {
    records,
    first: records[0]?.n ?? 0,
    last,
    damaged,
    loaded,
    error,
    earlier,
    retry: () => loader.current?.want(),
  };
}

/** The words that are in the transcript now are no longer live. */
function settle(id: string, n: number): void {
  store.set(
    (state) => {
      const live = state.live[id];
      if (!live || live.closedBy === null || live.closedBy > n) return state;
      return {
        ...state,
        live: {
          ...state.live,
          [id]: {
            ...NOTHING_LIVE,
            tools: live.tools,
            activity: live.activity,
            waiting: live.waiting,
            contextTokens: live.contextTokens,
            contextWindow: live.contextWindow,
          },
        },
      };
    },
    ["text"],
  );
}
