import { useEffect, useMemo, useState } from "react";
import { useLocation } from "wouter";
import { post, seg } from "../api/client";
import type { SessionDetail, StopView } from "../api/types";
import * as format from "../lib/format";
import { type Line, toLines } from "../lib/lines";
import { GROUPS, sessionState, VERDICTS, workerState } from "../lib/states";
import { coordinatorKey, isOpen, NOTHING_LIVE } from "../store/state";
import { reload, serverNow, sessionIdOf, useStore, want } from "../store/store";
import { Composer } from "../ui/composer";
import { Glyph } from "../ui/glyph";
import { NOT_LIVE, useIsLive, useMedia, useNow, useTail } from "../ui/hooks";
import { moveRow, useKeys } from "../ui/keys";
import { Ledger, NotificationCard } from "../ui/outcome";
import { Clock, Confirm, ErrorBox, Gap, Skeleton, Tab, Visible, WorkerChip } from "../ui/parts";
import { PermissionList } from "../ui/permission-card";
import { PageTitle } from "../ui/shell";
import { toast } from "../ui/toasts";
import { Words } from "../ui/words";
import { WorkerCard } from "../ui/worker-row";

export function Session({ id: name, tab }: { id: string; tab: "conversation" | "workers" | "queue" }) {
  useEffect(() => want(`session ${name}`), [name]);
  const id = sessionIdOf(name);
  const loaded = useStore((state) => state.sessionDetails[id] ?? state.sessionDetails[name]);
  const [stopping, setStopping] = useState(false);
  const [, navigate] = useLocation();
  const wide = useMedia("(min-width: 1000px)");
  const live = useIsLive();
  const base = `/s/${name}`;

  useKeys("Session", [
    { keys: "1", label: "conversation", run: () => navigate(base) },
    { keys: "2", label: "queue", run: () => navigate(`${base}/queue`) },
    { keys: "j", label: "next worker", run: () => moveRow(1) },
    { keys: "k", label: "previous worker", run: () => moveRow(-1) },
  ]);

  const detail = loaded?.data ?? null;
  if (detail === null) {
    return (
      <div className="page" data-testid="page-session">
        <div className="page-head">
          <PageTitle>Session</PageTitle>
        </div>
        {loaded?.error ? (
          <ErrorBox
            error={loaded.error}
            what="The session could not be read"
            retry={() => reload(`session ${name}`)}
          />
        ) : (
          <Skeleton rows={6} height={56} />
        )}
      </div>
    );
  }

  const { session } = detail;
  const state = sessionState(session);
  const waiting = detail.notifications.filter(
    ({ steps }) => steps[steps.length - 1]?.step !== "committed",
  ).length;
  const shown = wide && tab === "workers" ? "conversation" : tab;
  const stoppable = session.state === "active" || session.workers_running > 0;
  return (
    <div className="page" data-testid="page-session">
      <div className="page-head">
        <PageTitle>
          <Visible text={session.title} />
        </PageTitle>
        <span className={`word hue-${state.hue}`} data-testid="session-state">
          <Glyph name={state.glyph} />
          <span>{state.word}</span>
        </span>
        <span className="push" />
        <SessionMoney id={id} />
        <button
          type="button"
          className="button"
          data-testid="session-stop"
          disabled={!live || !stoppable}
          title={live ? (stoppable ? undefined : "nothing runs") : NOT_LIVE}
          onClick={() => setStopping(true)}
        >
          Stop…
        </button>
      </div>
      <p className="page-sub text3">
        <span className="mono">{session.short}</span>
        <span title={session.repo}>{format.basename(session.repo)}</span>
        <span className="mono" title={session.base}>
          {session.base_name}@{format.shortCommit(session.base)}
        </span>
        {session.target_branch ? (
          <span className="wide-only">
            merges into <span className="mono">{session.target_branch}</span>
          </span>
        ) : null}
        <span className="wide-only">{session.model}</span>
        <span className="wide-only">mode {session.permission_mode}</span>
      </p>

      {loaded?.error ? (
        <ErrorBox
          error={loaded.error}
          what="The session could not be read again; what is shown may be old"
          retry={() => reload(`session ${name}`)}
        />
      ) : null}
      {session.damaged !== undefined ? (
        <div className="banner edge-fail" role="alert">
          <Glyph name="fail" hue="fail" /> Its journal could not be read: {session.damaged}. It is shown as
          far as it is known; nothing can be done with it.
        </div>
      ) : null}
      {session.state === "waiting" && session.waiting_for === "key" ? (
        <div className="banner edge-need" data-testid="needs-key">
          <Glyph name="need" hue="need" />
          <span>
            The session waits for a key of its model's provider. In a shell that has the key:{" "}
            <code>swarm resume {session.short}</code>; or set the key where the server starts and start it
            again.
          </span>
        </div>
      ) : null}

      <div className="tabs" role="tablist" aria-label="Parts of the session">
        <Tab href={base} on={shown === "conversation"}>
          Conversation
        </Tab>
        {wide ? null : (
          <Tab href={`${base}/workers`} on={shown === "workers"}>
            Workers <span className="num">{detail.workers.length}</span>
          </Tab>
        )}
        <Tab href={`${base}/queue`} on={shown === "queue"}>
          Queue <span className="num">{waiting}</span>
        </Tab>
      </div>

      <div className={`split${wide ? " two" : ""}`}>
        {shown === "queue" ? (
          <div className="pane scroll" data-testid="queue">
            <p className="text2">
              Every worker's end waits here for the coordinator: queued, sent in a request, then committed to
              its history. An entry that was sent but not committed goes out again, with the reason.
            </p>
            <Ledger entries={detail.notifications} />
          </div>
        ) : shown === "workers" ? (
          <div className="pane scroll">
            <Workers detail={detail} />
          </div>
        ) : (
          <Conversation detail={detail} />
        )}
        {wide ? (
          <aside className="pane side scroll" aria-label="Workers">
            <Workers detail={detail} />
          </aside>
        ) : null}
      </div>

      <Confirm
        open={stopping}
        onClose={() => setStopping(false)}
        title="Stop this session's work?"
        action="Stop"
        run={async () => {
          const view = await post<StopView>(`/sessions/${seg(id)}/interrupt`, {});
          toast(
            view.already
              ? "Nothing was running."
              : view.stopping.length > 0
                ? `Stopping ${format.plural(view.stopping.length, "worker")}: ${view.stopping.join(", ")}`
                : "The coordinator's turn is being stopped.",
          );
        }}
      >
        <StopList detail={detail} />
      </Confirm>
    </div>
  );
}

function SessionMoney({ id }: { id: string }) {
  const session = useStore((state) => state.sessions[id], "money");
  if (!session) return null;
  return (
    <span className="num text2" title={`estimated at list price\n${format.usage(session.usage)}`}>
      {format.cost(session.cost)}
      {session.budget ? (
        <span className={format.isNearlySpent(session.budget) ? "hue-need" : undefined}>
          {" "}
          · {format.budget(session.budget)}
        </span>
      ) : null}
    </span>
  );
}

function StopList({ detail }: { detail: SessionDetail }) {
  const workers = useStore((state) => state.workers);
  const running = detail.workers
    .map((worker) => workers[worker.id] ?? worker)
    .filter((worker) => !["completed", "failed", "aborted"].includes(worker.status));
  return (
    <>
      <p>What would stop:</p>
      <ul className="plain">
        {detail.session.state === "active" ? <li>the coordinator's turn that is under way</li> : null}
        {running.map((worker) => (
          <li key={worker.id}>
            <span className="mono">{worker.id}</span> {worker.name}{" "}
            <span className="text2">({workerState(worker, serverNow()).word})</span>
          </li>
        ))}
        {running.length === 0 && detail.session.state !== "active" ? <li>nothing runs now</li> : null}
      </ul>
      <p className="text2">
        The work of each worker so far is committed to its branch. The coordinator cannot wake a worker you
        stopped; you can, with a message.
      </p>
    </>
  );
}

function Workers({ detail }: { detail: SessionDetail }) {
  const known = useStore((state) => state.workers);
  const rows = useStore((state) => state.overview.data?.rows);
  const workers = useMemo(() => {
    const list = detail.workers.map((worker) => known[worker.id] ?? worker);
    const now = serverNow();
    const rank = (id: string, fallback: string) => {
      const group = rows?.find((row) => row.worker?.id === id)?.group ?? fallback;
      const at = (GROUPS as readonly string[]).indexOf(group);
      return at < 0 ? GROUPS.length : at;
    };
    return list
      .map((worker) => ({ worker, rank: rank(worker.id, workerState(worker, now).group) }))
      .sort((a, b) => a.rank - b.rank)
      .map(({ worker }) => worker);
  }, [detail.workers, known, rows]);
  return (
    <section aria-label="Workers" data-testid="worker-cards">
      <h2 className="side-heading">
        Workers{" "}
        <span className="num">
          {detail.session.workers_running} of {detail.workers.length} running
        </span>
      </h2>
      {workers.length === 0 ? <p className="empty">No worker has been started yet.</p> : null}
      <ul className="cards">
        {workers.map((worker) => (
          <li key={worker.id}>
            <WorkerCard worker={worker} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function Conversation({ detail }: { detail: SessionDetail }) {
  const id = detail.session.session_id;
  const lines = useMemo(() => toLines(detail.conversation), [detail.conversation]);
  const tail = useTail(lines.length);
  const permissions = useStore((state) => state.permissions.data);
  const asks = useMemo(
    () =>
      Object.values(permissions ?? {})
        .filter((view) => view.session_id === id && isOpen(view))
        .sort((a, b) => (a.deadline_at ?? "").localeCompare(b.deadline_at ?? "")),
    [permissions, id],
  );
  useKeys("Conversation", [
    { keys: "G", label: "to the end, and follow", run: tail.toEnd },
    { keys: "f", label: "follow the end", run: () => (tail.following ? tail.detach() : tail.toEnd()) },
  ]);
  const busy = detail.session.state === "active" || detail.session.workers_running > 0;
  return (
    <section className="pane talk" aria-label="Conversation">
      <div
        className="scroll grow"
        ref={tail.box}
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label="Conversation"
        data-testid="conversation"
      >
        <div ref={tail.content} className="talk-content">
          {lines.map((line, index) => (
            // Calls of one turn share its seq: the place tells them apart.
            <ConversationLine key={`${line.seq} ${line.item} ${index}`} line={line} />
          ))}
          <LiveCoordinator id={id} detail={detail} />
        </div>
      </div>
      {tail.following ? null : (
        <button type="button" className="pill" data-testid="tail-pill" onClick={tail.toEnd}>
          ↓ {tail.news > 0 ? `${tail.news} new` : "to the end"}
        </button>
      )}
      {asks.length > 0 ? (
        <div className="dock" data-testid="permission-dock">
          <PermissionList views={asks} />
        </div>
      ) : null}
      <Composer
        path={`/sessions/${seg(id)}/messages`}
        label="Message to the coordinator"
        note={busy ? "busy: read at its next turn" : "opens a new task in this session"}
        disabled={
          detail.session.damaged !== undefined
            ? "its journal is damaged"
            : detail.session.state === "ended"
              ? "this session has ended: start a new task"
              : null
        }
      />
    </section>
  );
}

function ConversationLine({ line }: { line: Line }) {
  switch (line.item) {
    case "person":
      return (
        <article className="say person" data-testid="say-person">
          <header>
            <strong>You</strong> <Clock at={line.at} />
          </header>
          <div className="pre text">
            <Visible text={line.text} />
          </div>
        </article>
      );
    case "coordinator":
      return (
        <article className="say" data-testid="say-coordinator">
          <header>
            <strong>Coordinator</strong> <Clock at={line.at} />
          </header>
          <Words text={line.text} />
        </article>
      );
    case "calls":
      return (
        <div className="calls" data-testid="calls">
          <span className="text2">
            {line.tool}
            {line.calls.length > 1 ? ` ×${line.calls.length}` : ""}
          </span>
          {line.calls.map((call, index) => (
            <span key={index} className={call.is_error ? "hue-fail" : ""}>
              {call.worker_id ? <WorkerChip id={call.worker_id} /> : <Visible text={call.summary} />}
              {call.is_error ? " failed" : ""}
            </span>
          ))}
        </div>
      );
    case "woke":
      return (
        <div className="woke" data-testid="woke">
          <div className="rule">
            <span>
              <Clock at={line.at} /> woke on {format.plural(line.notifications.length, "notification")},
              request {line.request}
            </span>
          </div>
          {line.notifications.map((notification) => (
            <NotificationCard
              key={`${notification.key.worker_id} ${notification.key.run} ${notification.key.kind} ${notification.key.n}`}
              notification={notification}
            />
          ))}
        </div>
      );
    case "verdict": {
      const look = VERDICTS[line.verdict];
      return (
        <div className={`card verdict edge-${look.hue}`} data-testid="verdict" data-verdict={line.verdict}>
          <span className={`word hue-${look.hue}`}>
            <Glyph name={look.glyph} />
            <strong>Verdict: {look.word.toLowerCase()}</strong>
          </span>
          <Clock at={line.at} />
          {line.reasons.length > 0 ? (
            <ul className="plain">
              {line.reasons.map((reason) => (
                <li key={reason}>{reason}</li>
              ))}
            </ul>
          ) : null}
        </div>
      );
    }
    case "error":
      return (
        <div className="card edge-fail verdict">
          <span className="word hue-fail">
            <Glyph name="fail" />
            <span>{line.message}</span>
          </span>
          <span className="mono text3">{line.code}</span> <Clock at={line.at} />
        </div>
      );
    default:
      return null;
  }
}

/** What the coordinator says and does now. */
function LiveCoordinator({ id, detail }: { id: string; detail: SessionDetail }) {
  const live = useStore((state) => state.live[coordinatorKey(id)] ?? NOTHING_LIVE, "text");
  const active = useStore((state) => (state.sessions[id] ?? detail.session).state === "active");
  const over = live.closedBy !== null && live.closedBy <= detail.seq;
  if (over || (!active && live.text === "")) return null;
  if (live.text === "" && live.tools.length === 0) {
    return <Thinking since={detail.session.updated_at} thinking={live.thinking} />;
  }
  return (
    <article className="say streaming" data-testid="live-text">
      <header>
        <strong>Coordinator</strong> <span className="text3">now</span>
      </header>
      {live.gap ? <Gap /> : null}
      {live.text === "" ? null : <Words text={live.text} />}
      {live.tools.map((tool) => (
        <div key={tool.id} className="calls">
          <Glyph name="work" hue="work" size={12} /> {tool.tool} <Visible text={tool.summary} />
        </div>
      ))}
    </article>
  );
}

function Thinking({ since, thinking }: { since: string; thinking: boolean }) {
  const now = useNow();
  return (
    <p className="text3 thinking" data-testid="thinking">
      <Glyph name="work" hue="work" size={12} /> the coordinator {thinking ? "is thinking" : "is at work"}{" "}
      <span className="num">{format.duration(now - Date.parse(since))}</span>
    </p>
  );
}
