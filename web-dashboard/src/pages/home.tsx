import { useEffect, useMemo, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import type { OverviewRow } from "../api/types";
import * as format from "../lib/format";
import { GROUP_TITLES, GROUPS, type Group, isGroup } from "../lib/states";
import { reload, store, useStore } from "../store/store";
import { Icon } from "../ui/glyph";
import { moveRow, useKeys } from "../ui/keys";
import { ErrorBox, Skeleton } from "../ui/parts";
import { PageTitle } from "../ui/shell";
import { OverviewRowView } from "../ui/worker-row";

const rowKey = (row: OverviewRow): string => row.worker?.id ?? `${row.session_id} ${row.group} ${row.word}`;

interface Placed {
  row: OverviewRow;
  /** The group it stands in; the row itself says what is true now. */
  place: string;
}

interface Shown {
  rows: Placed[];
  gone: ReadonlySet<string>;
  news: number;
  newNeeds: number;
}

/** While somebody points into the list, or just did, nothing in it moves: news are counted. */
function useCalm(rows: OverviewRow[], held: boolean): Shown {
  const frozen = useRef<OverviewRow[]>(rows);
  return useMemo(() => {
    if (!held) {
      frozen.current = rows;
      const placed = rows.map((row) => ({ row, place: row.group }));
      return { rows: placed, gone: new Set<string>(), news: 0, newNeeds: 0 };
    }
    const now = new Map(rows.map((row) => [rowKey(row), row]));
    const gone = new Set<string>();
    let moved = 0;
    const shown = frozen.current.map((old) => {
      const row = now.get(rowKey(old));
      if (row === undefined) {
        gone.add(rowKey(old));
        return { row: old, place: old.group };
      }
      if (row.group !== old.group) moved++;
      return { row, place: old.group };
    });
    const before = new Map(frozen.current.map((row) => [rowKey(row), row.group]));
    const added = rows.filter((row) => !before.has(rowKey(row)));
    const newNeeds = rows.filter(
      (row) => row.group === "needs_you" && before.get(rowKey(row)) !== "needs_you",
    ).length;
    return { rows: shown, gone, news: added.length + moved + gone.size, newNeeds };
  }, [rows, held]);
}

/** True while the pointer or the focus is in the element, and for two seconds after. */
function useHeld(element: React.RefObject<HTMLElement | null>): [boolean, () => void] {
  const [held, setHeld] = useState(false);
  useEffect(() => {
    const box = element.current;
    if (!box) return;
    let inside = false;
    let timer: ReturnType<typeof setTimeout> | null = null;
    const hold = () => {
      inside = true;
      if (timer !== null) clearTimeout(timer);
      setHeld(true);
    };
    const release = () => {
      if (box.contains(document.activeElement) || box.matches(":hover")) return;
      inside = false;
      if (timer !== null) clearTimeout(timer);
      timer = setTimeout(() => !inside && setHeld(false), 2000);
    };
    box.addEventListener("pointermove", hold, { passive: true });
    box.addEventListener("focusin", hold);
    box.addEventListener("pointerleave", release);
    box.addEventListener("focusout", () => setTimeout(release));
    return () => {
      if (timer !== null) clearTimeout(timer);
      box.removeEventListener("pointermove", hold);
      box.removeEventListener("focusin", hold);
      box.removeEventListener("pointerleave", release);
    };
  }, [element]);
  return [held, () => setHeld(false)];
}

const FOLDED_FIRST: readonly Group[] = ["done"];

export function Home() {
  const overview = useStore((state) => state.overview);
  const data = overview.data;
  const [filter, setFilter] = useState("");
  const [open, setOpen] = useState<Partial<Record<Group, boolean>>>({});
  const list = useRef<HTMLDivElement>(null);
  const field = useRef<HTMLInputElement>(null);
  const [held, release] = useHeld(list);
  const [, navigate] = useLocation();

  const words = filter.trim().toLowerCase();
  const all = useMemo(() => {
    const rows = data?.rows ?? [];
    if (words === "") return rows;
    return rows.filter((row) =>
      [row.word, row.fact, row.title, row.worker?.id, row.worker?.name, row.worker?.branch, row.session_id]
        .join(" ")
        .toLowerCase()
        .includes(words),
    );
  }, [data, words]);
  const shown = useCalm(all, held);

  useKeys("Home", [
    { keys: "j", label: "next row", run: () => moveRow(1) },
    { keys: "k", label: "previous row", run: () => moveRow(-1) },
    { keys: "/", label: "filter", run: () => field.current?.focus() },
    {
      keys: "r",
      label: "review the row's branch",
      run: () => {
        const id = (document.activeElement as HTMLElement | null)?.dataset["worker"];
        if (id && store.get().workers[id]?.branch) navigate(`/w/${id}/review`);
      },
    },
  ]);

  const sessions = data?.sessions.length ?? 0;
  const workers = data?.rows.filter((row) => row.worker !== null).length ?? 0;

  return (
    <div className="page scroll" data-testid="page-home">
      <div className="page-head">
        <PageTitle>Home</PageTitle>
        <input
          ref={field}
          type="search"
          className="filter"
          placeholder="filter  /"
          aria-label="Filter rows"
          data-testid="home-filter"
          value={filter}
          onChange={(event) => setFilter(event.target.value)}
          onKeyDown={(event) => {
            if (event.key === "Escape") {
              setFilter("");
              event.currentTarget.blur();
            }
          }}
        />
        <span className="text3 num wide-only">
          {data ? `${format.plural(workers, "worker")} in ${format.plural(sessions, "session")}` : ""}
        </span>
        <Link href="/new" className="button primary push" data-testid="new-task">
          <Icon name="plus" size={14} /> New task <kbd>c</kbd>
        </Link>
      </div>

      {overview.error ? (
        <ErrorBox
          error={overview.error}
          what={
            data ? "The list could not be read again; what is shown may be old" : "The list could not be read"
          }
          retry={() => reload("overview")}
        />
      ) : null}
      {data === null && !overview.error ? <Skeleton rows={8} /> : null}
      {data !== null && data.rows.length === 0 ? <Empty sessions={sessions} /> : null}
      {data !== null && data.rows.length > 0 && shown.rows.length === 0 ? (
        <p className="empty">Nothing matches “{filter}”.</p>
      ) : null}

      <div ref={list} className="groups">
        {GROUPS.map((group) => {
          const rows = shown.rows.filter(({ place }) => (isGroup(place) ? place : "done") === group);
          if (rows.length === 0) return null;
          const unfolded = open[group] ?? (words !== "" || !FOLDED_FIRST.includes(group) || rows.length <= 3);
          const title = `${GROUP_TITLES[group]}`;
          return (
            <section key={group} className="group" aria-label={title} data-testid={`group-${group}`}>
              <h2>
                <button
                  type="button"
                  className={`group-head hue-${group === "needs_you" ? "need" : group === "failed" ? "fail" : group === "ready" ? "ready" : "text2"}`}
                  aria-expanded={unfolded}
                  onClick={() => setOpen({ ...open, [group]: !unfolded })}
                >
                  <Icon name="chevron" size={12} />
                  {title} <span className="num">{rows.length}</span>
                  {group === "done" && !unfolded ? (
                    <span className="text3">{doneWords(rows.map(({ row }) => row))}</span>
                  ) : null}
                </button>
              </h2>
              {unfolded ? (
                <ul>
                  {rows.map(({ row }) => (
                    <li key={rowKey(row)}>
                      <OverviewRowView row={row} gone={shown.gone.has(rowKey(row))} />
                    </li>
                  ))}
                </ul>
              ) : null}
            </section>
          );
        })}
      </div>
      {shown.news > 0 ? (
        <button type="button" className="pill" data-testid="news-pill" onClick={release}>
          {shown.newNeeds > 0
            ? `↑ ${shown.newNeeds} new need${shown.newNeeds === 1 ? "s" : ""} you`
            : `${format.plural(shown.news, "change")}, show`}
        </button>
      ) : null}
    </div>
  );
}

function doneWords(rows: OverviewRow[]): string {
  const counts = new Map<string, number>();
  for (const row of rows) {
    const word = row.word.replace(/ into .*$| by .*$|, kept.*$/, "").toLowerCase();
    counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  return [...counts].map(([word, count]) => `${word} ${count}`).join(" · ");
}

function Empty({ sessions }: { sessions: number }) {
  return (
    <div className="empty-page" data-testid="home-empty">
      {sessions === 0 ? (
        <>
          <h2>Nothing has been asked yet</h2>
          <p>
            Give swarm a task about a git repository. Workers take its parts, each on a branch of its own;
          </p>
          <p>what needs you shows up here, and finished branches wait here for your review.</p>
          <p className="row-actions center">
            <Link href="/new?model=demo" className="button primary" data-testid="run-demo">
              Run the demonstration
            </Link>
            <Link href="/new" className="button">
              New task <kbd>c</kbd>
            </Link>
          </p>
          <p className="text3">
            The demonstration needs a git repository, and neither a key nor a network: a scripted model drives
            real workers.
          </p>
        </>
      ) : (
        <>
          <h2>All quiet</h2>
          <p>No worker has anything to show.</p>
          <p className="row-actions center">
            <Link href="/new" className="button primary">
              New task <kbd>c</kbd>
            </Link>
          </p>
        </>
      )}
    </div>
  );
}
