import { Suspense, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { post, seg } from "../api/client";
import type { StopView, WorkerDetail, WorkerView } from "../api/types";
import * as format from "../lib/format";
import { exitSentence, workerFact } from "../lib/states";
import { filterSteps, foldSteps, type Show, toSteps } from "../lib/steps";
import { isOpen } from "../store/state";
import { reload, useStore, want } from "../store/store";
import { Composer } from "../ui/composer";
import { Icon } from "../ui/glyph";
import { NOT_LIVE, useIsLive, useTail, useWorkerState } from "../ui/hooks";
import { useKeys } from "../ui/keys";
import { lazyPart } from "../ui/lazy";
import { Ledger, OutcomeCard } from "../ui/outcome";
import { Age, Confirm, CopyButton, ErrorBox, Fact, Skeleton, Tab, Visible, Word } from "../ui/parts";
import { PermissionList } from "../ui/permission-card";
import { PageTitle } from "../ui/shell";
import { toast } from "../ui/toasts";
import { LiveWorker, StepView, TodoList } from "../ui/transcript";
import { useTranscript } from "../ui/transcript-data";
import { WorkerMeter } from "../ui/worker-row";

const Review = lazyPart(async () => ({ default: (await import("./review")).Review }));

const ENDED = ["completed", "failed", "aborted"];

export function Worker({ id, tab }: { id: string; tab: "transcript" | "review" | "details" }) {
  useEffect(() => want(`worker ${id}`), [id]);
  const loaded = useStore((state) => state.workerDetails[id]);
  const worker = useStore((state) => state.workers[id]) ?? loaded?.data?.worker;
  const [, navigate] = useLocation();
  const base = `/w/${id}`;
  useKeys("Worker", [
    { keys: "1", label: "transcript", run: () => navigate(base) },
    { keys: "2", label: "review", run: () => navigate(`${base}/review`) },
    { keys: "3", label: "details", run: () => navigate(`${base}/details`) },
  ]);

  if (!worker) {
    return (
      <div className="page" data-testid="page-worker">
        <div className="page-head">
          <PageTitle>{id}</PageTitle>
        </div>
        {loaded?.error ? (
          <ErrorBox
            error={loaded.error}
            what="The worker could not be read"
            retry={() => reload(`worker ${id}`)}
          />
        ) : (
          <Skeleton rows={6} />
        )}
      </div>
    );
  }
  const detail = loaded?.data ?? null;
  return (
    <div className="page" data-testid="page-worker">
      <WorkerHead worker={worker} />
      {loaded?.error ? (
        <ErrorBox
          error={loaded.error}
          what={
            detail
              ? "The worker could not be read again; what is shown may be old"
              : "The worker could not be read"
          }
          retry={() => reload(`worker ${id}`)}
        />
      ) : null}
      <div className="tabs" role="tablist" aria-label="Parts of the worker">
        <Tab href={base} on={tab === "transcript"}>
          Transcript
        </Tab>
        <Tab href={`${base}/review`} on={tab === "review"}>
          Review{" "}
          {worker.files_changed > 0 ? (
            <span className="num">{format.delta(worker.insertions, worker.deletions)}</span>
          ) : null}
        </Tab>
        <Tab href={`${base}/details`} on={tab === "details"}>
          Details
        </Tab>
      </div>
      {tab === "transcript" ? <Transcript worker={worker} detail={detail} /> : null}
      {tab === "review" ? (
        <Suspense fallback={<Skeleton />}>
          <Review worker={worker} detail={detail} />
        </Suspense>
      ) : null}
      {tab === "details" ? <Details worker={worker} detail={detail} /> : null}
    </div>
  );
}

function WorkerHead({ worker }: { worker: WorkerView }) {
  const [stopping, setStopping] = useState(false);
  const live = useIsLive();
  const state = useWorkerState(worker);
  const now = useStore((all) => all.live[worker.id]);
  const session = useStore((all) => all.sessions[worker.session_id]);
  const ended = ENDED.includes(worker.status);
  // Doubts stand in the outcome card, which heads the page.
  const doing =
    worker.status === "completed" ? "" : !ended && now?.activity ? now.activity : workerFact(worker);
  return (
    <>
      <div className="page-head">
        <Link
          href={`/s/${worker.session_id}`}
          className="button quiet back"
          data-testid="to-session"
          aria-label={`to the session ${session?.title ?? ""}`}
        >
          <Icon name="back" size={14} />
          <span className="wide-only">
            <Visible text={session?.title ?? "session"} />
          </span>
        </Link>
        <PageTitle>
          <span className="mono h1-id">{worker.id}</span> <Visible text={worker.name} />
        </PageTitle>
        <span data-testid="worker-state">
          <Word state={state} />
        </span>
        <span className="push" />
        <span className="num text2" title={`estimated at list price\n${format.usage(worker.usage)}`}>
          {format.usd(worker.cost_usd)}
        </span>
        <button
          type="button"
          className="button"
          data-testid="worker-stop"
          disabled={!live || ended}
          title={ended ? "its run has ended" : live ? undefined : NOT_LIVE}
          onClick={() => setStopping(true)}
        >
          Stop…
        </button>
      </div>
      <p className="page-sub text3">
        {doing ? (
          <span className={`text2 doing${state.group === "failed" ? " hue-fail" : ""}`}>
            <Visible text={doing} />
          </span>
        ) : null}
        <span className="num">
          run {worker.run} · {format.plural(worker.turns, "turn")}
        </span>
        {ended ? null : <WorkerMeter worker={worker} />}
        <span>
          {ended ? "ended " : "spawned "}
          <Age at={worker.ended_at ?? worker.spawned_at} /> ago
        </span>
        <span className="wide-only">{worker.model}</span>
      </p>
      <Confirm
        open={stopping}
        onClose={() => setStopping(false)}
        title={`Stop ${worker.id}?`}
        action="Stop the worker"
        run={async () => {
          const view = await post<StopView>(`/workers/${seg(worker.id)}/stop`, {});
          toast(view.already ? "It had ended already." : `Stopping ${view.stopping.join(", ")}.`);
        }}
      >
        <p>
          This ends run {worker.run} of <span className="mono">{worker.id}</span> {worker.name}, now:{" "}
          {state.word.toLowerCase()}
          {doing ? ` (${doing})` : ""}.
        </p>
        <p className="text2">
          Its work so far is committed to its branch. The coordinator cannot wake it again; you can, with a
          message.
        </p>
      </Confirm>
    </>
  );
}

const SHOWS: readonly { show: Show; label: string }[] = [
  { show: "all", label: "all" },
  { show: "words", label: "words" },
  { show: "commands", label: "commands" },
  { show: "edits", label: "edits" },
  { show: "errors", label: "errors" },
];

function Transcript({ worker, detail }: { worker: WorkerView; detail: WorkerDetail | null }) {
  const transcript = useTranscript(worker.id);
  const [show, setShow] = useState<Show>("all");
  const { records } = transcript;
  const steps = useMemo(() => foldSteps(filterSteps(toSteps(records), show)), [records, show]);
  const tail = useTail(steps.length);
  const permissions = useStore((state) => state.permissions.data);
  const asks = useMemo(
    () =>
      Object.values(permissions ?? {}).filter((view) => view.request.worker_id === worker.id && isOpen(view)),
    [permissions, worker.id],
  );
  useKeys("Transcript", [
    { keys: "G", label: "to the end, and follow", run: tail.toEnd },
    { keys: "f", label: "follow the end", run: () => (tail.following ? tail.detach() : tail.toEnd()) },
  ]);

  // Earlier steps come above what is read: the line under the eyes stays.
  const fromEnd = useRef<number | null>(null);
  const earlier = () => {
    const box = tail.box.current;
    if (box) fromEnd.current = box.scrollHeight - box.scrollTop;
    tail.detach();
    transcript
      .earlier()
      .catch((error: unknown) =>
        toast(`Earlier steps could not be read: ${String(error)}`, { tone: "fail" }),
      );
  };
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs when the list has grown at its head
  useLayoutEffect(() => {
    const box = tail.box.current;
    if (box && fromEnd.current !== null) {
      box.scrollTop = box.scrollHeight - fromEnd.current;
      fromEnd.current = null;
    }
  }, [transcript.first]);

  const ended = ENDED.includes(worker.status);
  return (
    <div className="pane talk">
      {ended && detail?.outcome ? (
        <div className="head-outcome">
          <OutcomeCard outcome={detail.outcome} result={detail.result} />
        </div>
      ) : null}
      <div className="filters" role="group" aria-label="Show">
        {SHOWS.map((choice) => (
          <button
            key={choice.show}
            type="button"
            className="filter-button"
            aria-pressed={show === choice.show}
            data-testid={`show-${choice.show}`}
            onClick={() => setShow(choice.show)}
          >
            {choice.label}
          </button>
        ))}
        <span className="push text3 num">
          {transcript.last > 0 ? `${transcript.last} records` : ""}
          {transcript.damaged > 0 ? ` · ${transcript.damaged} damaged` : ""}
        </span>
      </div>
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: a summary sends a click for its keys too */}
      <div
        className="scroll grow"
        ref={tail.box}
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label="Transcript"
        data-testid="transcript"
        onClick={(event) => {
          if ((event.target as HTMLElement).closest("summary")) tail.detach();
        }}
      >
        <div ref={tail.content} className="talk-content steps">
          {detail && detail.todo.length > 0 ? (
            <details className="card todo-card">
              <summary>
                to-do: {detail.todo.filter((item) => item.status === "completed").length} of{" "}
                {detail.todo.length} done
              </summary>
              <TodoList items={detail.todo} />
            </details>
          ) : null}
          {transcript.error ? (
            <ErrorBox
              error={transcript.error}
              what="The transcript could not be read"
              retry={transcript.retry}
            />
          ) : null}
          {!transcript.loaded && !transcript.error ? <Skeleton rows={8} height={28} /> : null}
          {transcript.first > 1 ? (
            <button type="button" className="button center" data-testid="earlier" onClick={earlier}>
              Earlier steps (from #{transcript.first - 1} back)
            </button>
          ) : null}
          {transcript.loaded && steps.length === 0 ? (
            <p className="empty">
              {show === "all"
                ? worker.status === "pending"
                  ? "Queued: it has not begun."
                  : worker.status === "starting"
                    ? `Setting up: ${worker.activity || "its worktree is being made"}`
                    : "Nothing is recorded yet."
                : `No ${show} among the steps shown.`}
            </p>
          ) : null}
          {steps.map((step) => (
            <StepView key={step.key} step={step} />
          ))}
          <LiveWorker worker={worker} lastRecord={records[records.length - 1]?.n ?? 0} />
        </div>
      </div>
      {tail.following ? null : (
        <button type="button" className="pill" data-testid="tail-pill" onClick={tail.toEnd}>
          ↓ {tail.news > 0 ? `${tail.news} new` : "to the end"}
        </button>
      )}
      {asks.length > 0 ? (
        <div className="dock" data-testid="permission-dock">
          <PermissionList views={asks} showPlace={false} />
        </div>
      ) : null}
      {detail && detail.unread.length > 0 ? (
        <ul className="unread" aria-label="Messages it has not read yet" data-testid="unread">
          {detail.unread.map((message) => (
            <li key={message.seq}>
              <span className="text3">queued, {message.from_person ? "yours" : "of the coordinator"}:</span>{" "}
              <Visible text={message.text} />
            </li>
          ))}
        </ul>
      ) : null}
      <Composer
        path={`/workers/${seg(worker.id)}/messages`}
        label={`Message to ${worker.id}`}
        note={ended ? "begins a new run of this worker, with all it knows" : "read at its next turn"}
      />
    </div>
  );
}

const TIERS: Record<number, string> = { 2: "2, full", 1: "1, partial", 0: "0, none" };

function Copyable({ text }: { text: string }) {
  return (
    <span className="copyable">
      <span className="mono">
        <Visible text={text} />
      </span>
      <CopyButton text={text} />
    </span>
  );
}

function Details({ worker, detail }: { worker: WorkerView; detail: WorkerDetail | null }) {
  const commands = detail?.outcome?.commands ?? [];
  const after = detail?.outcome?.commands_after_last_edit ?? 0;
  return (
    <div className="pane scroll details" data-testid="worker-details">
      {detail?.outcome ? <OutcomeCard outcome={detail.outcome} result={null} /> : null}
      <dl className="facts">
        <Fact label="Worker">
          <Copyable text={worker.id} />
        </Fact>
        <Fact label="Branch">{worker.branch ? <Copyable text={worker.branch} /> : "none"}</Fact>
        <Fact label="Started from">
          <Copyable text={worker.base} />
        </Fact>
        <Fact label="Worktree">
          <Copyable text={worker.worktree} /> {worker.worktree_exists ? "" : "(removed)"}
        </Fact>
        <Fact label="Kind">
          {worker.agent_type}, expects {worker.expects}, isolation {worker.isolation}
        </Fact>
        <Fact label="Model">{worker.model}</Fact>
        <Fact label="Ports">
          <span className="num">
            {worker.port_base}–{worker.port_base + 9}
          </span>
        </Fact>
        <Fact label="Sandbox tier">
          {worker.sandbox_tier === null
            ? "not known before its process began"
            : (TIERS[worker.sandbox_tier] ?? worker.sandbox_tier)}
        </Fact>
        <Fact label="Process">
          {worker.pid === null ? "none" : worker.pid}
          {worker.restarts > 0 ? `, started again ${worker.restarts} ×` : ""}
        </Fact>
        <Fact label="Run">
          {worker.run}, {format.plural(worker.turns, "turn")} over all runs
          {worker.exit_reason ? `; last ended: ${exitSentence(worker.exit_reason, worker.exit_detail)}` : ""}
        </Fact>
        <Fact label="Tokens">{format.usage(worker.usage)}</Fact>
        <Fact label="Cost">{format.usd(worker.cost_usd)}, estimated at list price</Fact>
        <Fact label="Snapshots">{worker.snapshots}</Fact>
        <Fact label="Session">
          <Copyable text={worker.session_id} />
        </Fact>
        <Fact label="Task">
          <Copyable text={worker.task_id} />
        </Fact>
      </dl>
      <h2>Commands of the last run</h2>
      {commands.length === 0 ? (
        <p className="empty">{detail?.outcome ? "It ran no command." : "Known when its run has ended."}</p>
      ) : (
        <ol className="commands" data-testid="commands">
          {commands.map((command, index) => (
            <li key={index}>
              <span
                className={`num exit ${command.exit_code === 0 ? "text2" : command.benign && command.exit_code !== null ? "text2" : "hue-fail"}`}
              >
                {command.exit_code === null ? (command.ended_by ?? "ended") : `exit ${command.exit_code}`}
              </span>
              <span className="mono">
                <Visible text={command.command} />
              </span>
              {index >= commands.length - after ? <span className="text3">after the last edit</span> : null}
            </li>
          ))}
        </ol>
      )}
      <h2>The prompt it began with</h2>
      {detail ? (
        <pre>
          <Visible text={detail.prompt} />
        </pre>
      ) : (
        <Skeleton rows={2} />
      )}
      <h2>The way of its news to the coordinator</h2>
      {detail ? <Ledger entries={detail.ledger} workers={false} /> : <Skeleton rows={2} />}
    </div>
  );
}
