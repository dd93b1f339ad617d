import { memo, useState } from "react";
import type { WorkerView } from "../api/types";
import { plainOutput } from "../lib/escape";
import * as format from "../lib/format";
import { exitSentence } from "../lib/states";
import { failed, type Step, type ToolStep } from "../lib/steps";
import { NOTHING_LIVE } from "../store/state";
import { useStore } from "../store/store";
import { Glyph } from "./glyph";
import { useNow } from "./hooks";
import { Clock, Gap, Visible } from "./parts";
import { Words } from "./words";

/** A body this long is shown in parts: the page stays light. */
const BODY_CHARS = 20_000;

function Body({ text, label }: { text: string; label: string }) {
  const [all, setAll] = useState(false);
  const long = text.length > BODY_CHARS && !all;
  return (
    <div className="body">
      <p className="text3 body-label">{label}</p>
      <pre>
        <Visible text={long ? text.slice(0, BODY_CHARS) : text} />
      </pre>
      {long ? (
        <button type="button" className="button" onClick={() => setAll(true)}>
          Show all {format.bytes(text.length)}
        </button>
      ) : null}
    </div>
  );
}

/** A fold whose content exists only while it is open. */
function Fold({
  summary,
  children,
  className = "",
  start = false,
  testid,
}: {
  summary: React.ReactNode;
  children: () => React.ReactNode;
  className?: string;
  start?: boolean;
  testid?: string;
}) {
  const [open, setOpen] = useState(start);
  return (
    <details
      className={`step ${className}`}
      open={open}
      onToggle={(event) => setOpen(event.currentTarget.open)}
      data-testid={testid}
    >
      <summary>{summary}</summary>
      {open ? children() : null}
    </details>
  );
}

function commandEnd(step: ToolStep): string {
  if (step.command === null) return step.isError ? "failed" : "";
  if (step.command.exit_code === null) return step.command.ended_by ?? "ended";
  return `exit ${step.command.exit_code}`;
}

function Tool({ step }: { step: ToolStep }) {
  const bad = failed(step);
  const output = step.result === null ? null : plainOutput(step.result);
  return (
    <Fold
      className={bad ? "bad" : ""}
      testid="step-tool"
      summary={
        <>
          <span className="step-n num text3">#{step.n}</span>
          <span className={`step-name${bad ? " hue-fail" : ""}`}>{step.name}</span>
          <span className="step-summary mono">
            <Visible text={step.summary} />
          </span>
          <span className="step-facts num text3">
            {step.lines ? <span>{format.delta(step.lines.added, step.lines.removed)}</span> : null}
            {step.done ? (
              commandEnd(step) === "" ? null : (
                <span className={bad ? "hue-fail" : ""}>{commandEnd(step)}</span>
              )
            ) : (
              <span className="hue-work">running, or its end is not recorded</span>
            )}
            {output !== null && output.length > 2000 ? (
              <span>{format.bytes(output.length)} output</span>
            ) : null}
            {step.durationMs === null ? null : <span>{format.took(step.durationMs)}</span>}
          </span>
        </>
      }
    >
      {() => (
        <>
          {step.input === null ? null : (
            <Body label="input" text={typeof step.input === "string" ? step.input : inputLines(step.input)} />
          )}
          {output === null ? null : <Body label={step.isError ? "error" : "result"} text={output} />}
          {step.images > 0 ? (
            <p className="text3">{format.plural(step.images, "picture")} not shown here</p>
          ) : null}
          {step.command?.children_killed && step.command.children_killed.length > 0 ? (
            <p className="hue-need">left processes, killed: {step.command.children_killed.join(", ")}</p>
          ) : null}
        </>
      )}
    </Fold>
  );
}

function inputLines(input: unknown): string {
  if (typeof input !== "object" || input === null) return String(input);
  return Object.entries(input)
    .map(([key, value]) => {
      const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
      return text.includes("\n") ? `${key}:\n${text}` : `${key}: ${text}`;
    })
    .join("\n");
}

export const StepView = memo(function StepView({ step }: { step: Step }): React.ReactNode {
  switch (step.type) {
    case "tool":
      return <Tool step={step} />;
    case "fold": {
      const first = step.steps[0]?.summary ?? "";
      const last = step.steps[step.steps.length - 1]?.summary ?? "";
      return (
        <Fold
          testid="step-fold"
          summary={
            <>
              <span className="step-n num text3">#{step.n}</span>
              <span className="step-name">
                {step.name} <span className="num">×{step.steps.length}</span>
              </span>
              <span className="step-summary mono">
                <Visible text={first} /> … <Visible text={last} />
              </span>
              <span className="step-facts text3">{step.steps.length} alike, folded</span>
            </>
          }
        >
          {() => (
            <div className="step-inner">
              {step.steps.map((inner) => (
                <Tool key={inner.key} step={inner} />
              ))}
            </div>
          )}
        </Fold>
      );
    }
    case "text":
      return (
        <article className="step-text" id={`r${step.n}`} data-testid="step-text">
          <span className="step-n num text3">#{step.n}</span>
          <div>
            <Words text={step.text} />
            {step.incomplete ? <p className="text3">the stream broke here</p> : null}
          </div>
        </article>
      );
    case "thinking":
      return (
        <Fold
          className="quiet"
          summary={
            <>
              <span className="step-n num text3">#{step.n}</span>
              <span className="step-name text3">thought</span>
            </>
          }
        >
          {() => <div className="pre text text2">{step.text}</div>}
        </Fold>
      );
    case "said":
      return step.folded ? (
        <Fold
          className="quiet"
          summary={
            <>
              <span className="step-n num text3">#{step.n}</span>
              <span className="step-name text2">{step.who}</span>
              <span className="step-summary text3">{step.text.slice(0, 200)}</span>
            </>
          }
        >
          {() => <Body label={step.who.toLowerCase()} text={step.text} />}
        </Fold>
      ) : (
        <article className="step-text said">
          <span className="step-n num text3">#{step.n}</span>
          <div>
            <strong>{step.who}</strong> <Clock at={step.at} />
            <div className="pre text">
              <Visible text={step.text} />
            </div>
          </div>
        </article>
      );
    case "note":
      return (
        <p className={`step-note ${step.tone === "plain" ? "text3" : `hue-${step.tone}`}`}>
          <span className="step-n num text3">#{step.n}</span>
          <span>
            <Visible text={step.text} />
          </span>
        </p>
      );
    case "run":
      return (
        <div className="rule">
          <span>
            <Clock at={step.at} /> {step.text}
          </span>
        </div>
      );
    case "end": {
      const { end } = step;
      const bad = end.exit_reason.reason !== "completed";
      return (
        <div className={`rule${bad ? " hue-fail" : ""}`}>
          <span>
            <Clock at={step.at} /> run ended: {exitSentence(end.exit_reason.reason, end.exit_reason)} ·{" "}
            {format.plural(end.turns, "turn")} · {format.cost(end.cost)}
            {end.commit_error ? ` · not committed: ${end.commit_error}` : ""}
          </span>
        </div>
      );
    }
    case "compact":
      return (
        <div className="compact">
          <div className="rule">
            <span>▼ {step.text}</span>
          </div>
          {step.summary === "" ? null : (
            <Fold className="quiet" summary={<span className="text2">show the summary</span>}>
              {() => <Body label="what stays" text={step.summary} />}
            </Fold>
          )}
        </div>
      );
    case "todo":
      return (
        <Fold
          className="quiet"
          summary={
            <>
              <span className="step-n num text3">#{step.n}</span>
              <span className="step-name text2">to-do</span>
              <span className="step-summary text3">
                {step.items.filter((item) => item.status === "completed").length} of {step.items.length} done
              </span>
            </>
          }
        >
          {() => <TodoList items={step.items} />}
        </Fold>
      );
  }
});

export function TodoList({ items }: { items: readonly { content: string; status: string }[] }) {
  return (
    <ul className="todo">
      {items.map((item) => (
        <li key={item.content} className={item.status === "completed" ? "text3" : ""}>
          <Glyph
            name={
              item.status === "completed" ? "reported" : item.status === "in_progress" ? "work" : "queued"
            }
            hue={item.status === "in_progress" ? "work" : "text2"}
            size={12}
          />{" "}
          <Visible text={item.content} /> <span className="sr">{item.status.replace("_", " ")}</span>
        </li>
      ))}
    </ul>
  );
}

/** What the worker says and does now, at the end of its transcript. */
export function LiveWorker({ worker, lastRecord }: { worker: WorkerView; lastRecord: number }) {
  const live = useStore((state) => state.live[worker.id] ?? NOTHING_LIVE, "text");
  const ended = ["completed", "failed", "aborted", "pending"].includes(worker.status);
  if (ended) return null;
  const over = live.closedBy !== null && live.closedBy <= lastRecord;
  return (
    <div className="live" data-testid="live-worker">
      {!over && live.text !== "" ? (
        <article className="step-text streaming" data-testid="live-text">
          <span className="step-n text3">now</span>
          <div className="pre text">
            {live.gap ? <Gap /> : null}
            {live.text}
            <span className="caret" aria-hidden="true" />
          </div>
        </article>
      ) : null}
      {live.tools.map((tool) => (
        <div key={tool.id} className="live-tool" data-testid="live-tool">
          <p>
            <Glyph name="work" hue="work" size={14} /> <span className="step-name">{tool.tool}</span>{" "}
            <span className="mono">
              <Visible text={tool.summary} />
            </span>{" "}
            <Since at={tool.since} />
          </p>
          {tool.tail === "" ? null : (
            <pre>
              <Visible text={plainOutput(tool.tail).split("\n").slice(-8).join("\n")} />
            </pre>
          )}
        </div>
      ))}
      {live.text === "" && live.tools.length === 0 && live.waiting === null ? (
        <p className="text3 thinking">
          <Glyph name="work" hue="work" size={12} />{" "}
          {live.thinking ? "thinking" : live.activity || worker.activity || "at work"}
        </p>
      ) : null}
      {live.waiting ? (
        <p className="text2">
          <Glyph name="wait" size={12} /> waits: {live.waiting.cause}
          {live.waiting.until ? <> until {format.clock(live.waiting.until, true)}</> : null}
        </p>
      ) : null}
    </div>
  );
}

function Since({ at }: { at: string }) {
  const now = useNow();
  return <span className="num text3">{format.duration(now - Date.parse(at))}</span>;
}
