import { useEffect, useMemo, useRef } from "react";
import type { PermissionView } from "../api/types";
import * as format from "../lib/format";
import { isOpen } from "../store/state";
import { reload, useStore } from "../store/store";
import { moveRow, useKeys } from "../ui/keys";
import { Age, Deadline, ErrorBox, Skeleton } from "../ui/parts";
import { decidedText, PermissionList } from "../ui/permission-card";
import { PageTitle } from "../ui/shell";

const NONE: Readonly<Record<string, PermissionView>> = {};

export function Inbox({ request }: { request?: string | undefined }) {
  const { data, error } = useStore((state) => state.permissions);
  const all = data ?? NONE;
  // What was open when this page came to be, or opened since, keeps its place when it is settled.
  const seen = useRef(new Set<string>());

  const { cards, history, open } = useMemo(() => {
    const views = Object.values(all);
    for (const view of views) if (isOpen(view)) seen.current.add(view.request.id);
    const stays = views
      .filter((view) => seen.current.has(view.request.id))
      .sort(
        (a, b) =>
          (a.deadline_at ?? a.request.requested_at).localeCompare(b.deadline_at ?? b.request.requested_at) ||
          a.request.id.localeCompare(b.request.id),
      );
    const past = views
      .filter((view) => !seen.current.has(view.request.id))
      .sort((a, b) => (b.decision?.decided_at ?? "").localeCompare(a.decision?.decided_at ?? ""));
    return { cards: stays, history: past, open: stays.filter(isOpen) };
  }, [all]);

  // An address that names a request shows it; the keyboard is not moved.
  const shown = useRef<string | null>(null);
  useEffect(() => {
    if (!request || shown.current === request || data === null) return;
    const card = document.querySelector(`[data-request="${CSS.escape(request)}"]`);
    if (card) {
      shown.current = request;
      card.scrollIntoView({ block: "center" });
    }
  }, [request, data]);

  useKeys("Inbox", [
    { keys: "j", label: "frame the next card", run: () => moveRow(1, "[data-request]") },
    { keys: "k", label: "frame the previous card", run: () => moveRow(-1, "[data-request]") },
  ]);

  const next = open[0]?.deadline_at;
  return (
    <div className="page scroll" data-testid="page-inbox">
      <div className="page-head">
        <PageTitle>Inbox</PageTitle>
        <span className="text2 num">
          {open.length === 0 ? "nothing waits" : format.plural(open.length, "request waits", "requests wait")}
        </span>
        {next ? (
          <span className="text2 push">
            next deadline <Deadline at={next} />
          </span>
        ) : null}
      </div>
      {error ? (
        <ErrorBox error={error} what="The requests could not be read" retry={() => reload("permissions")} />
      ) : null}
      {data === null && !error ? <Skeleton rows={2} height={180} /> : null}
      {data !== null && open.length === 0 && cards.length === 0 ? (
        <div className="empty-page" data-testid="inbox-empty">
          <h2>Nothing waits for you</h2>
          <p className="text2">What a worker may not do on its own is asked here.</p>
        </div>
      ) : null}
      <PermissionList views={cards} />
      {open.length > 0 ? (
        <p className="hint text3 wide-only">
          <kbd>j</kbd> <kbd>k</kbd> frame a card · <kbd>a</kbd> <kbd>A</kbd> <kbd>d</kbd> <kbd>D</kbd> act on
          the framed card alone, 0.4 s after it is framed · <kbd>Enter</kbd> unfolds · nothing takes the
          keyboard by itself
        </p>
      ) : null}
      {history.length > 0 ? (
        <section className="group" aria-label="Last decisions">
          <h2 className="group-head text2">Last decisions</h2>
          <ul className="decisions">
            {history.slice(0, 5).map((view) => (
              <li key={view.request.id}>
                <Age at={view.decision?.decided_at ?? view.request.requested_at} />
                <span className="mono">{view.request.worker_id}</span>
                <span className="mono row-fact">
                  {view.request.tool} {view.request.summary}
                </span>
                <span className="text2">{decidedText(view, false)}</span>
              </li>
            ))}
          </ul>
        </section>
      ) : null}
    </div>
  );
}
