import { memo, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { call, post, seg } from "../api/client";
import { OFFERS } from "../api/offers";
import type {
  DiffView,
  DiscardView,
  MergeStrategy,
  MergeView,
  RestoreView,
  WorkerDetail,
  WorkerView,
} from "../api/types";
import * as format from "../lib/format";
import { type FileDiff, foldReason, parsePatch } from "../lib/patch";
import { reload, useStore } from "../store/store";
import { Glyph } from "../ui/glyph";
import { NOT_LIVE, useIsLive } from "../ui/hooks";
import { useKeys } from "../ui/keys";
import { Doubts } from "../ui/outcome";
import { ErrorBox, Skeleton, Visible } from "../ui/parts";
import { toast } from "../ui/toasts";

/** What changes when the branch does. */
const stamp = (worker: WorkerView): string =>
  [worker.commits, worker.files_changed, worker.insertions, worker.deletions, worker.discarded].join(" ");

interface Read {
  view: DiffView;
  files: FileDiff[];
  stamp: string;
}

export function Review({ worker, detail }: { worker: WorkerView; detail: WorkerDetail | null }) {
  const [read, setRead] = useState<Read | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const [filter, setFilter] = useState("");
  const now = stamp(worker);
  const atLoad = useRef(now);
  atLoad.current = now;
  const id = worker.id;
  const nothing = worker.branch === null || worker.discarded;

  const load = useCallback(() => {
    setBusy(true);
    setError(null);
    const mark = atLoad.current;
    call<DiffView>(`/workers/${seg(id)}/diff`, { timeoutMs: 120_000 })
      .then(
        (view) => setRead({ view, files: parsePatch(view.patch), stamp: mark }),
        (failure: unknown) => setError(failure instanceof Error ? failure : new Error(String(failure))),
      )
      .finally(() => setBusy(false));
  }, [id]);
  useEffect(() => {
    if (!nothing) load();
  }, [load, nothing]);

  const box = useRef<HTMLDivElement>(null);
  useKeys("Review", [
    { keys: "]", label: "next file", run: () => jump(1) },
    { keys: "[", label: "previous file", run: () => jump(-1) },
  ]);
  const jump = (by: 1 | -1) => {
    const heads = [...(box.current?.querySelectorAll<HTMLElement>("[data-file]") ?? [])];
    const top = box.current?.getBoundingClientRect().top ?? 0;
    const at = heads.findIndex((head) => head.getBoundingClientRect().top >= top - 4);
    const current = at < 0 ? heads.length - 1 : at;
    const here = heads[current];
    const exact = here !== undefined && Math.abs(here.getBoundingClientRect().top - top) <= 4;
    const next = by > 0 ? (exact ? current + 1 : current) : current - 1;
    heads[Math.max(0, Math.min(heads.length - 1, next))]?.scrollIntoView({ block: "start" });
  };

  if (nothing) {
    return (
      <div className="pane scroll" data-testid="review">
        <div className="empty-page">
          <h2>{worker.discarded ? "This branch was discarded" : "No change"}</h2>
          <p className="text2">
            {worker.discarded
              ? "It lies in the recycle bin and can come back."
              : `It has no branch: nothing was changed against ${format.shortCommit(worker.base)}.`}
          </p>
          {worker.discarded ? <RestoreButton id={id} /> : null}
        </div>
      </div>
    );
  }

  const words = filter.trim().toLowerCase();
  const files = read?.files.filter((file) => words === "" || file.path.toLowerCase().includes(words)) ?? [];
  return (
    <div className="pane review" data-testid="review">
      {error ? <ErrorBox error={error} what="The diff could not be read" retry={load} /> : null}
      {read && read.stamp !== now ? (
        <div className="banner edge-need">
          <span>The branch changed while you read.</span>
          <button type="button" className="button" data-testid="diff-update" disabled={busy} onClick={load}>
            {busy ? "Reading…" : "Update"}
          </button>
        </div>
      ) : null}
      {read === null && !error ? <Skeleton rows={10} height={20} /> : null}
      {read ? (
        <div className="review-split">
          <nav className="files scroll" aria-label="Files">
            <div className="files-head">
              <h2>
                Files <span className="num">{read.files.length}</span>
              </h2>
              {read.files.length > 8 ? (
                <input
                  type="search"
                  className="filter"
                  aria-label="Filter files"
                  placeholder="filter"
                  value={filter}
                  onChange={(event) => setFilter(event.target.value)}
                />
              ) : null}
            </div>
            <ul data-testid="file-list">
              {files.map((file) => (
                <li key={file.path}>
                  <a
                    href={`#f-${encodeURIComponent(file.path)}`}
                    title={file.path}
                    onClick={(event) => go(event, file.path)}
                  >
                    <span className="mono file-mark" title={file.status}>
                      {MARKS[file.status]}
                    </span>
                    <span className="file-name mono">
                      <bdi>
                        <Visible text={file.path} />
                      </bdi>
                    </span>
                    <span className="num text3">
                      {file.binary ? "bin" : format.delta(file.added, file.removed)}
                    </span>
                  </a>
                </li>
              ))}
            </ul>
            {read.view.uncommitted.length > 0 ? (
              <div className="uncommitted">
                <h3>Not committed yet</h3>
                <ul>
                  {read.view.uncommitted.slice(0, 50).map((path) => (
                    <li key={path} className="mono text2">
                      <Visible text={path} />
                    </li>
                  ))}
                </ul>
              </div>
            ) : null}
          </nav>
          <div
            className="diffs scroll"
            ref={box}
            tabIndex={0}
            role="region"
            aria-label="Changes"
            data-testid="diff"
          >
            <p className="text3 diffs-head">
              <span className="mono">{read.view.branch}</span> against{" "}
              <span className="mono">{format.shortCommit(read.view.base)}</span> ·{" "}
              {format.plural(read.view.commits, "commit")}
              {detail?.outcome && detail.outcome.check !== "none" ? ` · check ${detail.outcome.check}` : ""}
            </p>
            {read.files.length === 0 ? (
              <p className="empty">No change against {format.shortCommit(read.view.base)}.</p>
            ) : null}
            {files.map((file) => (
              <FileView key={file.path} file={file} />
            ))}
          </div>
        </div>
      ) : null}
      <MergePanel worker={worker} detail={detail} onMerged={load} />
    </div>
  );
}

const MARKS: Record<FileDiff["status"], string> = {
  modified: "M",
  added: "A",
  deleted: "D",
  renamed: "R",
  copied: "C",
  mode: "M",
};

function go(event: React.MouseEvent, path: string): void {
  event.preventDefault();
  document.getElementById(`f-${path}`)?.scrollIntoView({ block: "start" });
}

/** A file's lines exist only near the window; long ones, locks and generated ones begin folded. */
const FileView = memo(function FileView({ file }: { file: FileDiff }) {
  const reason = useMemo(() => foldReason(file), [file]);
  const [open, setOpen] = useState(reason === null);
  const [near, setNear] = useState(false);
  const place = useRef<HTMLElement>(null);
  useEffect(() => {
    const element = place.current;
    if (!element || near) return;
    const watch = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && setNear(true),
      {
        rootMargin: "1200px",
      },
    );
    watch.observe(element);
    return () => watch.disconnect();
  }, [near]);
  const lines = file.hunks.reduce((sum, hunk) => sum + hunk.lines.length + 1, 0);
  return (
    <section ref={place} className="file" id={`f-${file.path}`} aria-label={file.path}>
      <h3 className="file-head" data-file="">
        <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}>
          <span className="mono file-mark">{MARKS[file.status]}</span>
          <span className="mono file-path">
            {file.oldPath ? (
              <>
                <Visible text={file.oldPath} /> →{" "}
              </>
            ) : null}
            <Visible text={file.path} />
          </span>
          <span className="num text3 push">
            {file.binary ? "binary" : format.delta(file.added, file.removed)}
          </span>
        </button>
      </h3>
      {file.notes.map((note) => (
        <p key={note} className="text3 file-note">
          {note}
        </p>
      ))}
      {!open ? (
        <p className="text3 file-note">
          folded{reason ? `: ${reason}` : ""}{" "}
          {file.binary ? null : (
            <button type="button" className="button" onClick={() => setOpen(true)}>
              Show
            </button>
          )}
        </p>
      ) : file.binary ? (
        <p className="text3 file-note">A binary file: there are no lines to show.</p>
      ) : near ? (
        <Hunks file={file} />
      ) : (
        <div style={{ height: lines * 20 }} />
      )}
    </section>
  );
});

/** Lines put into the page at once; the rest on demand. */
const LINES_AT_ONCE = 1500;

function Hunks({ file }: { file: FileDiff }) {
  const [limit, setLimit] = useState(LINES_AT_ONCE);
  const total = file.hunks.reduce((sum, hunk) => sum + hunk.lines.length, 0);
  let room = limit;
  return (
    <div className="hunks">
      <table className="diff">
        <caption className="sr">Changes of {file.path}</caption>
        <tbody>
          {file.hunks.map((hunk, index) => {
            if (room <= 0) return null;
            const lines = hunk.lines.slice(0, room);
            room -= lines.length;
            const first = hunk.lines[0];
            return [
              <tr key={`h${index}`} className="hunk">
                <td colSpan={4}>
                  line {first?.new ?? first?.old ?? 0} <Visible text={hunk.header} />
                </td>
              </tr>,
              ...lines.map((line, at) => (
                <tr key={`${index}.${at}`} className={`line ${line.kind}`}>
                  <td className="ln num">{line.old ?? ""}</td>
                  <td className="ln num">{line.new ?? ""}</td>
                  <td className="sign">{line.kind === "add" ? "+" : line.kind === "remove" ? "−" : ""}</td>
                  <td className="code">
                    <Visible text={line.kind === "note" ? `(${line.text})` : line.text} />
                  </td>
                </tr>
              )),
            ];
          })}
        </tbody>
      </table>
      {total > limit ? (
        <button type="button" className="button center" onClick={() => setLimit(limit + LINES_AT_ONCE)}>
          {total - limit} more lines
        </button>
      ) : null}
    </div>
  );
}

const STRATEGIES: readonly { value: MergeStrategy; label: string }[] = [
  { value: "merge", label: "merge (fast-forward when possible)" },
  { value: "squash", label: "squash into one commit" },
  { value: "rebase", label: "rebase onto the target" },
  { value: "no_ff", label: "always a merge commit" },
];

function MergePanel({
  worker,
  detail,
  onMerged,
}: {
  worker: WorkerView;
  detail: WorkerDetail | null;
  onMerged: () => void;
}) {
  const session = useStore((state) => state.sessions[worker.session_id]);
  const live = useIsLive();
  const [into, setInto] = useState("");
  const [strategy, setStrategy] = useState<MergeStrategy>("merge");
  const [check, setCheck] = useState(true);
  const [busy, setBusy] = useState<"" | "trial" | "merge" | "discard">("");
  const [result, setResult] = useState<MergeView | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const field = useRef<HTMLInputElement>(null);
  useKeys("Merge", [
    { keys: "M", label: "to the merge panel (never merges)", run: () => field.current?.focus() },
  ]);

  const target = into.trim() || session?.target_branch || "";
  const hasCheck =
    detail?.outcome !== null && detail?.outcome !== undefined && detail.outcome.check !== "none";
  const running = !["completed", "failed", "aborted"].includes(worker.status);
  const merge = (dryRun: boolean) => {
    setBusy(dryRun ? "trial" : "merge");
    setError(null);
    setResult(null);
    post<MergeView>(
      `/workers/${seg(worker.id)}/merge`,
      {
        ...(into.trim() === "" ? {} : { into: into.trim() }),
        strategy,
        ...(hasCheck && check ? { check: true } : {}),
        ...(dryRun ? { dry_run: true } : {}),
      },
      { timeoutMs: 30 * 60_000 },
    )
      .then(
        (view) => {
          setResult(view);
          if (view.result === "merged") {
            toast(`Merged ${worker.id} into ${view.into}.`);
            reload(`worker ${worker.id}`);
            reload("overview");
            onMerged();
          }
        },
        (failure: unknown) => setError(failure instanceof Error ? failure : new Error(String(failure))),
      )
      .finally(() => setBusy(""));
  };
  const discard = () => {
    setBusy("discard");
    setError(null);
    post<DiscardView>(`/workers/${seg(worker.id)}/discard`, {})
      .then(
        (view) => {
          toast(
            view.kept_ref
              ? `Discarded ${worker.id}; kept for ${format.plural(view.days, "day")}.`
              : `Discarded ${worker.id}; it had no branch to keep.`,
            view.kept_ref ? { undo: { label: "Undo", run: () => restore(worker.id) } } : {},
          );
          reload(`worker ${worker.id}`);
          reload("overview");
        },
        (failure: unknown) => setError(failure instanceof Error ? failure : new Error(String(failure))),
      )
      .finally(() => setBusy(""));
  };
  const off = !live ? NOT_LIVE : running ? "it is still at work: wait for its end, or stop it first" : null;
  const merged = worker.merged_into !== null;
  return (
    <section className="merge" aria-label="Merge" data-testid="merge-panel">
      {merged ? (
        <p className="hue-ready">
          <Glyph name="merged" /> Merged into <span className="mono">{worker.merged_into}</span>.
        </p>
      ) : null}
      <div className="merge-line">
        <label>
          into{" "}
          <input
            ref={field}
            type="text"
            className="mono"
            data-testid="merge-into"
            value={into}
            placeholder={session?.target_branch ?? "branch"}
            spellCheck={false}
            onChange={(event) => setInto(event.target.value)}
          />
        </label>
        <label>
          <span className="sr">how</span>
          <select
            value={strategy}
            data-testid="merge-strategy"
            onChange={(event) => setStrategy(event.target.value as MergeStrategy)}
          >
            {STRATEGIES.map((choice) => (
              <option key={choice.value} value={choice.value}>
                {choice.label}
              </option>
            ))}
          </select>
        </label>
        {hasCheck ? (
          <label className="check">
            <input type="checkbox" checked={check} onChange={(event) => setCheck(event.target.checked)} /> run
            the check on the merged tree
          </label>
        ) : null}
        <span className="push" />
        {OFFERS.mergeTrial ? (
          <button
            type="button"
            className="button"
            data-testid="merge-trial"
            disabled={busy !== "" || off !== null}
            title={off ?? "moves nothing"}
            onClick={() => merge(true)}
          >
            {busy === "trial" ? "Trying…" : "Try"}
          </button>
        ) : null}
        <button
          type="button"
          className="button primary"
          data-testid="merge"
          disabled={busy !== "" || off !== null || target === ""}
          title={off ?? (target === "" ? "name the branch to merge into" : undefined)}
          onClick={() => merge(false)}
        >
          {busy === "merge" ? "Merging…" : `Merge into ${target || "…"}`}
        </button>
        <button
          type="button"
          className="button danger"
          data-testid="discard"
          disabled={busy !== "" || off !== null}
          title={off ?? "kept in the recycle bin; can be undone"}
          onClick={discard}
        >
          {busy === "discard" ? "Discarding…" : "Discard"}
        </button>
      </div>
      {running ? (
        <p className="text2">It is still at work: it can be merged or discarded when its run has ended.</p>
      ) : null}
      <Doubts doubts={worker.doubts} />
      {result ? <MergeResult view={result} /> : null}
      {error ? <ErrorBox error={error} what="It was not done" /> : null}
    </section>
  );
}

function restore(id: string): void {
  post<RestoreView>(`/workers/${seg(id)}/restore`, {}).then(
    (view) => {
      toast(view.message);
      reload(`worker ${id}`);
      reload("overview");
    },
    (failure: unknown) => toast(`It could not be brought back: ${String(failure)}`, { tone: "fail" }),
  );
}

function RestoreButton({ id }: { id: string }) {
  const live = useIsLive();
  return (
    <button
      type="button"
      className="button primary"
      data-testid="restore"
      disabled={!live}
      title={live ? undefined : NOT_LIVE}
      onClick={() => restore(id)}
    >
      Bring it back
    </button>
  );
}

/** Every answer to a merge in words, each with its one next step. Refusal is not conflict. */
function MergeResult({ view }: { view: MergeView }) {
  return (
    <div className="merge-result" role="status" data-testid="merge-result" data-result={view.result}>
      <MergeWords view={view} />
    </div>
  );
}

function MergeWords({ view }: { view: MergeView }) {
  switch (view.result) {
    case "clean":
      return (
        <p className="hue-ready">
          <Glyph name="ready" /> Merges clean into <b className="mono">{view.into}</b> at{" "}
          <span className="mono">{format.shortCommit(view.from)}</span>. Nothing moved: this was a trial.
        </p>
      );
    case "merged":
      return (
        <p className="hue-ready">
          <Glyph name="merged" /> Merged: <b className="mono">{view.into}</b> moved from{" "}
          <span className="mono">{format.shortCommit(view.from)}</span> to{" "}
          <span className="mono">{format.shortCommit(view.to)}</span>, {format.plural(view.files, "file")}{" "}
          {format.delta(view.insertions, view.deletions)}.
        </p>
      );
    case "already_merged":
      return (
        <p>
          <Glyph name="merged" /> The branch is in <b className="mono">{view.into}</b> already. Nothing is
          left to merge.
        </p>
      );
    case "conflict":
      return (
        <>
          <p className="hue-need">
            <Glyph name="need" /> Conflicts with <b className="mono">{view.into}</b> at{" "}
            <span className="mono">{format.shortCommit(view.at)}</span>. Nothing moved.
          </p>
          <ul className="plain">
            {view.files.map((file) => (
              <li key={file.path}>
                <span className="mono">
                  <Visible text={file.path} />
                </span>{" "}
                <span className="text2 num">
                  {file.lines.length > 0 ? `lines ${file.lines.join(", ")}` : ""}
                </span>
              </li>
            ))}
          </ul>
          <p className="text2">Next: ask the worker to bring its branch up to date, by a message.</p>
        </>
      );
    case "target_dirty":
      return (
        <>
          <p className="hue-need">
            <Glyph name="need" /> Refused: these files are changed in the checkout of{" "}
            <b className="mono">{view.into}</b>, and this merge would touch them. Nothing moved. This is no
            conflict.
          </p>
          <ul className="plain">
            {view.files.map((file) => (
              <li key={file} className="mono">
                <Visible text={file} />
              </li>
            ))}
          </ul>
          <p className="text2">
            Next: commit or stash them in <span className="mono">{view.checkout}</span>, then merge again.
          </p>
        </>
      );
    case "target_moved":
      return (
        <p className="hue-need">
          <Glyph name="need" /> <b className="mono">{view.into}</b> was moved by somebody meanwhile, from{" "}
          <span className="mono">{format.shortCommit(view.expected)}</span> to{" "}
          <span className="mono">{format.shortCommit(view.actual)}</span>. Nothing of yours moved. Next: try
          again.
        </p>
      );
    case "check_failed":
      return (
        <>
          <p className="hue-fail">
            <Glyph name="fail" /> The project's check failed on the merged tree. Nothing moved.
          </p>
          <pre>
            <Visible text={view.output} />
          </pre>
        </>
      );
    default:
      return (
        <p>
          The server answered with a result this page does not know: {(view as { result: string }).result}.
        </p>
      );
  }
}
