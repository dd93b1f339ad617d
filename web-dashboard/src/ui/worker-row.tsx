import { Link } from "wouter";
import type { OverviewRow, WorkerView } from "../api/types";
import * as format from "../lib/format";
import { fromRow, type StateWord, workerFact } from "../lib/states";
import { useStore } from "../store/store";
import { useWorkerState } from "./hooks";
import { Age, Deadline, Meter, Visible, Word } from "./parts";

/** What it does now: the live word while it works, else the server's fact. */
function useFact(worker: WorkerView | null, state: StateWord, fact: string): string {
  const live = useStore((all) => (worker === null ? undefined : all.live[worker.id]));
  if (worker === null || live === undefined) return fact;
  if (live.waiting !== null && state.group === "watch") return live.waiting.cause || fact;
  if (state.group === "working" && live.activity) return live.activity;
  return fact;
}

/** A row of Home. All of it is one link to where the need is met. */
export function OverviewRowView({ row, gone }: { row: OverviewRow; gone: boolean }) {
  const state = fromRow(row);
  const worker = row.worker;
  const fact = useFact(worker, state, row.fact);
  return (
    <Link
      href={row.link}
      className={`row${gone ? " gone" : ""}`}
      data-row=""
      data-group={row.group}
      data-worker={worker?.id}
      data-testid="overview-row"
    >
      <Word state={gone ? { ...state, word: `was: ${state.word}` } : state} />
      <span className="mono row-id">{worker?.id ?? row.session_id.slice(-8)}</span>
      <span className="row-name">
        <Visible text={worker?.name ?? row.title} />
      </span>
      <span className="row-fact">
        <Visible text={fact} />
      </span>
      <RowEnd worker={worker} state={state} deadline={row.deadline_at} />
    </Link>
  );
}

function RowEnd({
  worker,
  state,
  deadline,
}: {
  worker: WorkerView | null;
  state: StateWord;
  deadline: string | null;
}) {
  const running = state.group === "working" || state.group === "watch";
  return (
    <>
      <span className="row-meter">
        {running && worker ? (
          <WorkerMeter worker={worker} />
        ) : worker &&
          worker.files_changed > 0 &&
          (state.group === "needs_you" || state.group === "failed") ? (
          <span className="num">{format.delta(worker.insertions, worker.deletions)}</span>
        ) : null}
      </span>
      <span className="row-cost num text2">{worker ? format.usd(worker.cost_usd) : ""}</span>
      <span className="row-age num">
        {deadline && state.group === "needs_you" ? (
          <Deadline at={deadline} />
        ) : worker ? (
          <Age at={worker.ended_at ?? worker.spawned_at} />
        ) : null}
      </span>
    </>
  );
}

export function WorkerMeter({ worker }: { worker: WorkerView }) {
  const live = useStore((all) => all.live[worker.id], "money");
  return (
    <Meter
      used={live?.contextTokens ?? worker.context_tokens}
      window={live?.contextWindow ?? worker.context_window}
    />
  );
}

/** A worker as a card of its session's page. */
export function WorkerCard({ worker }: { worker: WorkerView }) {
  const state = useWorkerState(worker);
  const row = useStore((all) =>
    all.overview.data?.rows.find((candidate) => candidate.worker?.id === worker.id),
  );
  const fact = useFact(worker, state, row?.fact ?? workerFact(worker));
  const running = state.group === "working" || state.group === "watch";
  return (
    <Link
      href={`/w/${worker.id}`}
      className="card worker-card"
      data-row=""
      data-worker={worker.id}
      data-testid="worker-card"
    >
      <span className="worker-card-head">
        <Word state={state} />
        <span className="push text3 num">
          {row?.deadline_at && state.group === "needs_you" ? (
            <Deadline at={row.deadline_at} />
          ) : (
            <Age at={worker.ended_at ?? worker.spawned_at} />
          )}
        </span>
      </span>
      <span className="worker-card-name">
        <span className="mono text2">{worker.id}</span> <Visible text={worker.name} />
      </span>
      {fact && state.group !== "ready" && state.group !== "done" ? (
        <span className="row-fact text2">
          <Visible text={fact} />
        </span>
      ) : null}
      <span className="worker-card-foot text3 num">
        {running ? <WorkerMeter worker={worker} /> : null}
        {worker.files_changed > 0 ? (
          <span>
            {format.plural(worker.files_changed, "file")} {format.delta(worker.insertions, worker.deletions)}
          </span>
        ) : null}
        <span>{format.plural(worker.turns, "turn")}</span>
        <span>{format.usd(worker.cost_usd)}</span>
      </span>
    </Link>
  );
}
