import { useEffect, useId, useRef, useState } from "react";
import { Link } from "wouter";
import { ApiError } from "../api/client";
import type { WorkerView } from "../api/types";
import { pieces } from "../lib/escape";
import * as format from "../lib/format";
import type { StateWord } from "../lib/states";
import { store, useStore } from "../store/store";
import { Glyph, Icon } from "./glyph";
import { useNow, useWorkerState } from "./hooks";

/** Foreign text: what cannot be seen is written as code points. */
export function Visible({ text }: { text: string }) {
  return (
    <>
      {pieces(text).map((piece, index) =>
        piece.hidden ? (
          <span key={index} className="codepoint">
            {piece.text}
          </span>
        ) : (
          piece.text
        ),
      )}
    </>
  );
}

export function Age({ at }: { at: string }) {
  const now = useNow();
  return (
    <time dateTime={at} title={format.exact(at)} className="num">
      {format.age(at, now)}
    </time>
  );
}

export function Clock({ at }: { at: string }) {
  return (
    <time dateTime={at} title={format.exact(at)} className="num clock">
      {format.clock(at)}
    </time>
  );
}

/** Time left. While the connection is away it is marked: the clock may stand at the desk. */
export function Deadline({ at }: { at: string }) {
  const now = useNow();
  const live = useStore((state) => state.connection.status === "live", "now");
  const ms = Date.parse(at) - now;
  return (
    <time
      dateTime={at}
      title={`denied at ${format.exact(at)}`}
      className={`num deadline${ms < 60_000 ? " soon" : ""}`}
    >
      {format.left(at, now)} left{live ? "" : ", as of last contact"}
    </time>
  );
}

export function Word({ state }: { state: StateWord }) {
  return (
    <span className={`word hue-${state.hue}`}>
      <Glyph name={state.glyph} />
      <span>{state.word}</span>
    </span>
  );
}

/** A worker as a link: glyph, id, name. */
export function WorkerChip({ id }: { id: string }) {
  const worker = useStore((state) => state.workers[id]);
  if (!worker) {
    return (
      <Link href={`/w/${id}`} className="chip mono">
        {id}
      </Link>
    );
  }
  return <KnownChip worker={worker} />;
}

function KnownChip({ worker }: { worker: WorkerView }) {
  const state = useWorkerState(worker);
  return (
    <Link href={`/w/${worker.id}`} className="chip" title={`${state.word} · ${worker.name}`}>
      <Glyph name={state.glyph} hue={state.hue} size={12} />
      <span className="mono">{worker.id}</span>
      <span className="chip-name">{worker.name}</span>
      <span className="sr">{state.word}</span>
    </Link>
  );
}

/** Lines before the end of the effective window: warn, compact, block. */
const WARN_TOKENS = 20_000;
const COMPACT_TOKENS = 13_000;
const BLOCK_TOKENS = 3_000;

export function Meter({ used, window }: { used: number | null; window: number | null }) {
  const value = format.context(used, window);
  if (value === null || used === null || window === null) return <span className="meter-none" />;
  const percent = Math.round(value.part * 100);
  const hue = used > window - BLOCK_TOKENS ? "fail" : used > window - WARN_TOKENS ? "need" : "work";
  return (
    <span className="meter" title={`context now: ${format.tokens(used)} of ${format.tokens(window)} tokens`}>
      <span className="meter-label">ctx</span>
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" className={`bar hue-${hue}`} aria-hidden="true">
        <rect width="100" height="8" rx="2" className="bar-back" />
        <rect width={percent} height="8" rx="2" fill="currentColor" />
        {[WARN_TOKENS, COMPACT_TOKENS, BLOCK_TOKENS]
          .filter((line) => line < window / 2)
          .map((line) => (
            <rect key={line} x={100 * (1 - line / window)} width="1" height="8" className="bar-tick" />
          ))}
      </svg>
      <span className="num">{value.text}</span>
    </span>
  );
}

/** The failing part only: the message, its code, and how to try again. */
export function ErrorBox({ error, retry, what }: { error: Error; retry?: () => void; what: string }) {
  const api = error instanceof ApiError ? error : null;
  const details = [
    error.message,
    ...(api?.causes ?? []),
    api?.hint ? `hint: ${api.hint}` : "",
    api ? `code: ${api.code}` : "",
  ]
    .filter(Boolean)
    .join("\n");
  return (
    <div className="error-box" role="alert" data-testid="error">
      <Glyph name="fail" hue="fail" />
      <div className="grow">
        <p>
          <strong>{what}</strong>: {error.message}
        </p>
        {api?.causes.map((cause) => (
          <p key={cause} className="text2">
            {cause}
          </p>
        ))}
        {api?.hint ? <p className="text2">{api.hint}</p> : null}
        {api ? <p className="mono text3">{api.code}</p> : null}
      </div>
      <div className="row-actions">
        {retry ? (
          <button type="button" className="button" onClick={retry}>
            Retry
          </button>
        ) : null}
        <CopyButton text={details} label="Copy details" />
      </div>
    </div>
  );
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  return (
    <button
      type="button"
      className="button quiet"
      onClick={() => navigator.clipboard?.writeText(text).then(() => setDone(true))}
    >
      <Icon name="copy" size={14} /> {done ? "Copied" : label}
    </button>
  );
}

/** Skeletons of final size, only when it takes longer than a blink. */
export function Skeleton({ rows = 6, height = 36 }: { rows?: number; height?: number }) {
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(true), 150);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div className="skeletons" aria-busy="true">
      <span className="sr">Loading</span>
      {Array.from({ length: rows }, (_, index) => (
        <div key={index} className={shown ? "skeleton" : ""} style={{ height }} />
      ))}
    </div>
  );
}

/** A dialog of the browser: it keeps the focus, closes by Esc, and gives the focus back. */
export function Dialog({
  open,
  onClose,
  title,
  children,
}: {
  open: boolean;
  onClose: () => void;
  title: string;
  children: React.ReactNode;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    const dialog = ref.current;
    if (!dialog) return;
    if (open && !dialog.open) dialog.showModal();
    if (!open && dialog.open) dialog.close();
  }, [open]);
  return (
    <dialog ref={ref} aria-labelledby={heading} onClose={onClose} onCancel={onClose}>
      {open ? (
        <>
          <h2 id={heading}>{title}</h2>
          {children}
        </>
      ) : null}
    </dialog>
  );
}

/** Asks before something that cannot simply be undone, and says what will happen. */
export function Confirm({
  open,
  onClose,
  title,
  action,
  run,
  children,
}: {
  open: boolean;
  onClose: () => void;
  title: string;
  action: string;
  run: () => Promise<void>;
  children: React.ReactNode;
}) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  return (
    <Dialog
      open={open}
      title={title}
      onClose={() => {
        setError(null);
        onClose();
      }}
    >
      <div className="dialog-body">{children}</div>
      {error ? <ErrorBox error={error} what={action} /> : null}
      <div className="dialog-actions">
        <button type="button" className="button" onClick={onClose}>
          Cancel
        </button>
        <button
          type="button"
          className="button danger"
          disabled={busy}
          data-testid="confirm"
          onClick={() => {
            setBusy(true);
            setError(null);
            run()
              .then(onClose, (failure: unknown) =>
                setError(failure instanceof Error ? failure : new Error(String(failure))),
              )
              .finally(() => setBusy(false));
          }}
        >
          {busy ? "Sending…" : action}
        </button>
      </div>
    </Dialog>
  );
}

export function Fact({ label, children }: { label: string; children: React.ReactNode }) {
  return (
    <div className="fact">
      <dt>{label}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** Polite region: at most one message in ten seconds. */
let lastSaid = Number.NEGATIVE_INFINITY;
export function LiveRegion() {
  const [text, setText] = useState("");
  useEffect(() => {
    let needs = -1;
    return store.subscribeAlways(() => {
      const rows = store.get().overview.data?.rows;
      if (!rows) return;
      const count = rows.filter((row) => row.group === "needs_you").length;
      const more = needs >= 0 && count > needs;
      const now = performance.now();
      if (more && now - lastSaid > 10_000) {
        lastSaid = now;
        setText(`${format.plural(count, "item")} need${count === 1 ? "s" : ""} you`);
      }
      needs = count;
    });
  }, []);
  return (
    <div className="sr" role="status" aria-live="polite" data-testid="live-region">
      {text}
    </div>
  );
}

export function Tab({ href, on, children }: { href: string; on: boolean; children: React.ReactNode }) {
  return (
    <Link href={href} role="tab" aria-selected={on} className="tab">
      {children}
    </Link>
  );
}

/** Stands for words that were said before this page listened. */
export function Gap() {
  return (
    <span className="text3" title="said before this page listened; the finished text will be whole">
      …{" "}
    </span>
  );
}
