import type { LedgerEntry, Notification, Outcome } from "../api/types";
import * as format from "../lib/format";
import { doubtSentence, exitSentence, type GlyphName, type Hue } from "../lib/states";
import { Glyph } from "./glyph";
import { Clock, Visible, WorkerChip } from "./parts";

export function exitText(outcome: Outcome): string {
  return exitSentence(outcome.exit_reason.reason, outcome.exit_reason);
}

const STATUS: Record<Notification["status"], { glyph: GlyphName; hue: Hue }> = {
  completed: { glyph: "ready", hue: "ready" },
  failed: { glyph: "fail", hue: "fail" },
  aborted: { glyph: "stopped", hue: "text2" },
  progress: { glyph: "wait", hue: "text2" },
};

/** What the server established, in one line. */
export function outcomeLine(outcome: Outcome): string {
  const parts: string[] = [];
  if (outcome.files.length > 0) {
    const added = outcome.files.reduce((sum, file) => sum + (file.added ?? 0), 0);
    const removed = outcome.files.reduce((sum, file) => sum + (file.removed ?? 0), 0);
    parts.push(`${format.plural(outcome.files.length, "file")} ${format.delta(added, removed)}`);
  } else parts.push("no file changed");
  parts.push(format.plural(outcome.commits.length, "commit"));
  if (outcome.check !== "none") parts.push(`check ${outcome.check}`);
  if (outcome.restarts > 0) parts.push(`started again ${outcome.restarts} ×`);
  return parts.join(" · ");
}

export function Doubts({ doubts }: { doubts: readonly string[] }) {
  if (doubts.length === 0) return null;
  return (
    <ul className="doubts" data-testid="doubts">
      {doubts.map((doubt) => (
        <li key={doubt} className="hue-need">
          <Glyph name="doubt" size={12} /> doubt: {doubtSentence(doubt)}
        </li>
      ))}
    </ul>
  );
}

/** A notification as the coordinator heard it, with what the server found. */
export function NotificationCard({ notification }: { notification: Notification }) {
  const { outcome, status } = notification;
  const doubts = outcome?.doubts ?? [];
  const look =
    doubts.length > 0 && status === "completed"
      ? { glyph: "doubt" as const, hue: "need" as const }
      : STATUS[status];
  return (
    <div className={`card outcome edge-${look.hue}`} data-testid="outcome-card">
      <div className="outcome-head">
        <Glyph name={look.glyph} hue={look.hue} />
        <WorkerChip id={notification.key.worker_id} />
        <span className="text2">
          {status}
          {notification.key.run > 1 ? `, run ${notification.key.run}` : ""}
          {notification.after_stop ? ", arrived after stop" : ""}
        </span>
        {outcome ? <span className="num">{outcomeLine(outcome)}</span> : <span>{notification.summary}</span>}
        {status === "progress" ? null : (
          <span className="num text3 push">
            {format.plural(notification.turns, "turn")} · {format.took(notification.duration_ms)} ·{" "}
            {format.cost(notification.cost)}
          </span>
        )}
      </div>
      {outcome && outcome.exit_reason.reason !== "completed" ? (
        <p className="hue-fail">ended: {exitText(outcome)}</p>
      ) : null}
      <Doubts doubts={doubts} />
      {notification.result !== "" ? (
        <details>
          <summary>
            its words
            {notification.result_from_earlier ? " (from an earlier message; the last one was empty)" : ""}
          </summary>
          <div className="pre text">
            <Visible text={notification.result} />
          </div>
        </details>
      ) : null}
    </div>
  );
}

/** The outcome at the head of an ended worker's page. */
export function OutcomeCard({ outcome, result }: { outcome: Outcome; result: string | null }) {
  const failed = outcome.exit_reason.reason !== "completed";
  const hue: Hue = failed ? "fail" : outcome.doubts.length > 0 ? "need" : "ready";
  const lists: [string, string[]][] = [
    ["left uncommitted", outcome.dirty],
    ["killed at the end", outcome.children_killed],
    ["changed elsewhere while it ran", outcome.foreign_changes],
    ["note", outcome.notes],
  ];
  return (
    <section className={`card outcome edge-${hue}`} data-testid="outcome-card" aria-label="Outcome">
      <div className="outcome-head">
        <Glyph name={failed ? "fail" : outcome.doubts.length > 0 ? "doubt" : "ready"} hue={hue} />
        <strong>{failed ? `Ended: ${exitText(outcome)}` : "Completed"}</strong>
        <span className="num text2">{outcomeLine(outcome)}</span>
      </div>
      <Doubts doubts={outcome.doubts} />
      {lists
        .filter(([, items]) => items.length > 0)
        .map(([label, items]) => (
          <p key={label} className="text2">
            {label}: {items.slice(0, 10).join(", ")}
            {items.length > 10 ? ` and ${items.length - 10} more` : ""}
          </p>
        ))}
      {result ? (
        <details open={result.length < 600}>
          <summary>last words of the worker</summary>
          <div className="pre text">
            <Visible text={result} />
          </div>
        </details>
      ) : null}
    </section>
  );
}

/** The way of the entries to the coordinator: queued, sent, committed, with the reason of every repeat. */
export function Ledger({ entries, workers = true }: { entries: readonly LedgerEntry[]; workers?: boolean }) {
  if (entries.length === 0) {
    return <p className="empty">No news has been queued for the coordinator yet.</p>;
  }
  return (
    <ol className="ledger" data-testid="ledger">
      {entries.map(({ notification, steps }) => {
        const last = steps[steps.length - 1];
        const committed = last?.step === "committed";
        const key = notification.key;
        return (
          <li key={`${key.worker_id} ${key.run} ${key.kind} ${key.n}`} className="card">
            <div className="outcome-head">
              <Glyph name={committed ? "reported" : "queued"} hue={committed ? "ready" : "work"} />
              {workers ? <WorkerChip id={key.worker_id} /> : null}
              <span>{notification.summary}</span>
              <span className="text3 push">
                {key.kind === "end" ? "end" : "progress"}, run {key.run}
              </span>
            </div>
            <ol className="ledger-steps">
              {steps.map((step) => (
                <li key={`${step.seq} ${step.step}`}>
                  <Clock at={step.at} />
                  <strong>{step.step}</strong>
                  <span className="text2">
                    {step.request === null ? "" : `in request ${step.request}`}
                    {step.turn === null ? "" : `, turn ${step.turn}`}
                  </span>
                  {step.reason ? <span className="hue-need">again because: {step.reason}</span> : null}
                  <span className="mono text3 push">seq {step.seq}</span>
                </li>
              ))}
              {committed ? null : <li className="text3">not yet in the coordinator's history</li>}
            </ol>
          </li>
        );
      })}
    </ol>
  );
}
