import { useCallback, useEffect, useId, useReducer, useRef, useState } from "react";
import { Link } from "wouter";
import { errorText, post, seg } from "../api/client";
import type { AnsweredPermission, AnswerPermission, PermissionView, Racer } from "../api/types";
import * as arming from "../lib/arming";
import { firstLines, hasHidden, seenLines, visible } from "../lib/escape";
import * as format from "../lib/format";
import { questionsOf } from "../lib/questions";
import { isOpen } from "../store/state";
import { reload, store, useStore } from "../store/store";
import { BatchBar } from "./batch-bar";
import { Glyph } from "./glyph";
import { NOT_LIVE, useIsLive } from "./hooks";
import { inTextField } from "./keys";
import { Age, Clock, Deadline, Visible } from "./parts";
import { QuestionForm } from "./question-form";
import { toast } from "./toasts";
import { Words } from "./words";

/** A command longer than this must be unfolded before it can be allowed. */
export const LONG_LINES = 12;

const WHO: Record<Racer, string> = {
  rule: "a rule that changed meanwhile",
  hook: "a hook",
  person: "a person",
  remote: "a person at a remote channel",
  classifier: "the classifier",
  timeout: "nobody answered in time",
  unattended: "the task is unattended",
  session_end: "the session ended",
  desk: "the desk, which did not take it",
};

/** How answers are called that are more than leave to act. */
const OWN_WORDS: Record<string, { allow: string; words: string; deny: string }> = {
  AskUserQuestion: { allow: "left to the agent", words: "answered", deny: "not answered" },
  ExitPlanMode: { allow: "accepted", words: "accepted", deny: "sent back" },
};

export function decidedText(view: PermissionView, mine: boolean): string {
  if (view.decision === null) return view.withdrawn === null ? "" : `no longer waits: ${view.withdrawn}`;
  const { decision, scope, by, reason, stop, source } = view.decision;
  const own = OWN_WORDS[view.request.tool];
  const what = own
    ? own[decision === "deny" ? "deny" : reason ? "words" : "allow"] +
      (stop ? ", and the worker stopped" : "")
    : decision === "allow"
      ? { once: "allowed once", session: "allowed for this session", always: "allowed always" }[scope]
      : stop
        ? "denied, and the worker stopped"
        : "denied";
  const who = mine ? "you" : source ? `${WHO[by]} (${source})` : WHO[by];
  return `${what}, ${who}${reason ? `: “${reason}”` : ""}`;
}

/** The whole input as people read it: a command as it is, everything else by key. */
export function inputText(view: PermissionView): string {
  const { input, summary } = view.request;
  if (typeof input === "object" && input !== null && !Array.isArray(input)) {
    const entries = Object.entries(input);
    const command = (input as Record<string, unknown>)["command"];
    const rest = entries.filter(([key]) => key !== "command" && key !== "description");
    const lines = rest.map(
      ([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value, null, 2)}`,
    );
    if (typeof command === "string") return [command, ...lines].join("\n");
    if (lines.length > 0) return lines.join("\n");
  }
  if (typeof input === "string" && input !== "") return input;
  return summary;
}

/** The plan that a call asks a person to accept; none when it is no such call. */
export function planOf(tool: string, input: unknown): string | null {
  if (tool !== "ExitPlanMode" || typeof input !== "object" || input === null) return null;
  const { plan } = input as { plan?: unknown };
  return typeof plan === "string" && plan.trim() !== "" ? plan : null;
}

/** Whether one answer to several may be for this one too: a question or a plan has an answer of its own. */
export function isPlain({ request }: PermissionView): boolean {
  return request.tool !== "AskUserQuestion" && request.tool !== "ExitPlanMode";
}

const TIERS: Record<number, string> = {
  2: "sandbox tier 2",
  1: "sandbox tier 1",
  0: "no sandbox (tier 0)",
};

type Layer = "none" | "always" | "reason" | "stop";

interface CardProps {
  view: PermissionView;
  framed: boolean;
  mayAct: (id: string, event: React.KeyboardEvent | null) => boolean;
  onAnswering: (id: string) => void;
  onFailed: (id: string) => void;
  onSettled: (id: string, won: boolean) => void;
  mine: boolean;
  showPlace?: boolean;
  /** Whether it is among those that one answer will be for; undefined where there is no such choice. */
  selected?: boolean | undefined;
  onSelect?: (id: string, selected: boolean) => void;
}

export function PermissionCard({
  view,
  framed,
  mayAct,
  onAnswering,
  onFailed,
  onSettled,
  mine,
  showPlace = true,
  selected,
  onSelect,
}: CardProps) {
  const { request } = view;
  const live = useIsLive();
  const [layer, setLayer] = useState<Layer>("none");
  const [unfolded, setUnfolded] = useState(false);
  const [sending, setSending] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const [reason, setReason] = useState("");
  const wrote = useStore((state) => state.wroteRule[request.id]);
  const card = useRef<HTMLDivElement>(null);
  const ids = useId();
  const open = isOpen(view);
  const questions = questionsOf(request.tool, request.input);
  const asks = questions.length > 0;
  const plan = planOf(request.tool, request.input);
  const text = plan ?? (asks ? questions.map((one) => one.question).join("\n") : inputText(view));
  const lines = seenLines(text);
  // Questions are read by answering them.
  const long = !asks && lines > LONG_LINES;
  const unread = long && !unfolded;
  const off = live ? null : NOT_LIVE;
  const allowOff = off ?? (unread ? `unfold the ${lines} lines first` : null);
  const hasRules = plan === null;
  const ruleOff =
    allowOff ??
    (hasRules ? null : "a plan is accepted by itself") ??
    (request.proposed_rule === null ? "no rule can say this: allow it once, or deny it" : null);
  const alwaysOff =
    ruleOff ?? (view.always_file === null ? "where the rule would be written is not known yet" : null);

  const answer = useCallback(
    (body: AnswerPermission) => {
      // The pressed button goes away: the focus a person had in this card stays in it.
      if (card.current?.contains(document.activeElement)) card.current.focus({ preventScroll: true });
      setSending(true);
      setError(null);
      onAnswering(request.id);
      post<AnsweredPermission>(`/permissions/${seg(request.id)}`, body)
        .then(
          (answered) => {
            setLayer("none");
            // The journal's decision, not ours: a lost race says who decided.
            store.set(
              (state) => {
                const known = state.permissions.data?.[request.id];
                if (!known) return state;
                const wroteRule = answered.wrote_rule
                  ? { ...state.wroteRule, [request.id]: answered.wrote_rule }
                  : state.wroteRule;
                return {
                  ...state,
                  wroteRule,
                  permissions: {
                    ...state.permissions,
                    data: {
                      ...state.permissions.data,
                      [request.id]: { ...known, decision: answered.decision },
                    },
                  },
                };
              },
              ["now"],
            );
            if (!answered.won) {
              toast(
                `Your answer came too late: ${answered.decision.decision === "allow" ? "allowed" : "denied"} already, ${WHO[answered.decision.by]}.`,
              );
            }
            onSettled(request.id, answered.won);
            reload("overview");
          },
          (failure: unknown) => {
            setError(errorText(failure));
            onFailed(request.id);
            reload("permissions");
          },
        )
        .finally(() => setSending(false));
    },
    [request.id, onAnswering, onFailed, onSettled],
  );

  const onKeyDown = (event: React.KeyboardEvent) => {
    if (!open || event.defaultPrevented) return;
    if (inTextField(event.target)) return;
    if (event.key === "Enter" && event.target === event.currentTarget && long && !event.repeat) {
      event.preventDefault();
      setUnfolded((value) => !value);
      return;
    }
    if (!["a", "A", "d", "D"].includes(event.key)) return;
    // The keys mean nothing else here, whether or not they may act now.
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (sending || layer !== "none" || !mayAct(request.id, event)) return;
    if (event.key === "a" && allowOff === null && !asks) answer({ decision: "allow", scope: "once" });
    else if (event.key === "A" && ruleOff === null && !asks) answer({ decision: "allow", scope: "session" });
    else if (event.key === "d" && off === null) answer({ decision: "deny", scope: "once" });
    else if (event.key === "D" && off === null) setLayer("reason");
  };

  return (
    <div
      ref={card}
      role="group"
      tabIndex={0}
      className={`card permission${framed ? " framed" : ""}${open ? "" : " settled"}`}
      aria-labelledby={`${ids}-title`}
      aria-describedby={`${ids}-input`}
      data-row={open ? "" : undefined}
      data-request={request.id}
      data-testid="permission-card"
      onKeyDown={onKeyDown}
    >
      <div className="permission-head">
        {open && selected !== undefined ? (
          <input
            type="checkbox"
            data-testid="permission-select"
            checked={selected}
            disabled={!selected && allowOff !== null}
            title={allowOff ?? "one answer for all that are picked"}
            aria-label={`pick ${request.tool} of ${request.worker_id}`}
            onChange={(event) => onSelect?.(request.id, event.target.checked)}
          />
        ) : null}
        <Glyph name={open ? "need" : "reported"} {...(open ? { hue: "need" as const } : {})} />
        <h3 id={`${ids}-title`}>
          {showPlace ? (
            <Link href={`/w/${request.worker_id}`} className="mono">
              {request.worker_id}
            </Link>
          ) : (
            <span className="mono">{request.worker_id}</span>
          )}{" "}
          <Visible text={view.worker_name} />{" "}
          <span className="text2">{asks ? "asks you" : plan === null ? "asks for" : "shows a plan"}</span>{" "}
          {asks || plan !== null ? null : request.tool}
        </h3>
        <span className="text3">
          {view.sandbox_tier === null ? "" : (TIERS[view.sandbox_tier] ?? `tier ${view.sandbox_tier}`)}
        </span>
        <span className="push permission-time">
          {open ? (
            view.deadline_at ? (
              <Deadline at={view.deadline_at} />
            ) : (
              <Age at={request.requested_at} />
            )
          ) : null}
        </span>
      </div>
      {open && view.deadline_at ? <DeadlineBar from={request.requested_at} to={view.deadline_at} /> : null}

      <div className={`permission-input${unread ? " folded" : ""}`} id={`${ids}-input`}>
        {plan !== null ? (
          <div className="plan" data-testid="plan">
            <Words text={visible(unread ? firstLines(text, LONG_LINES) : text)} />
          </div>
        ) : asks && open ? null : (
          <pre data-testid="permission-input">
            <Visible text={unread ? firstLines(text, LONG_LINES) : text} />
          </pre>
        )}
        <div className="permission-input-foot text3">
          {long ? (
            <button
              type="button"
              className="button"
              data-testid="permission-unfold"
              aria-expanded={unfolded}
              onClick={() => setUnfolded((value) => !value)}
            >
              {unfolded ? "Fold" : `Unfold all ${lines} lines`}
            </button>
          ) : asks ? null : (
            <span>
              whole {plan === null ? "input" : "plan"}, {format.plural(lines, "line")}
            </span>
          )}
          {open && view.joined && view.joined.length > 0 ? (
            <span data-testid="permission-joined">
              {format.plural(view.joined.length + 1, "equal call")} of this worker: one answer is for all
            </span>
          ) : null}
          {hasHidden(text) ? (
            <span className="hue-need">holds characters that cannot be seen: shown as ⟨U+…⟩</span>
          ) : null}
        </div>
      </div>

      <p className="text2">
        <Visible text={request.why} />
        {request.description ? (
          <>
            {" "}
            · its reason: “<Visible text={request.description} />”
          </>
        ) : null}
      </p>

      {open ? (
        <>
          {layer === "none" && asks ? (
            <QuestionForm
              questions={questions}
              off={off}
              sending={sending}
              onAnswer={(words) =>
                mayAct(request.id, null) && answer({ decision: "allow", scope: "once", reason: words })
              }
              onLeave={() => mayAct(request.id, null) && answer({ decision: "allow", scope: "once" })}
            />
          ) : null}
          {layer === "none" ? (
            <div className="permission-actions">
              {asks ? null : (
                <button
                  type="button"
                  className="button primary"
                  data-testid="allow-once"
                  disabled={sending || allowOff !== null}
                  title={allowOff ?? undefined}
                  onClick={() => mayAct(request.id, null) && answer({ decision: "allow", scope: "once" })}
                >
                  {plan === null ? "Allow once" : "Accept the plan"} <kbd>a</kbd>
                </button>
              )}
              {asks || !hasRules ? null : (
                <>
                  <button
                    type="button"
                    className="button"
                    data-testid="allow-session"
                    disabled={sending || ruleOff !== null}
                    title={ruleOff ?? `adds for this session: ${request.proposed_rule}`}
                    onClick={() =>
                      mayAct(request.id, null) && answer({ decision: "allow", scope: "session" })
                    }
                  >
                    This session <kbd>A</kbd>
                  </button>
                  <button
                    type="button"
                    className="button"
                    data-testid="allow-always"
                    disabled={sending || alwaysOff !== null}
                    title={alwaysOff ?? undefined}
                    onClick={() => setLayer("always")}
                  >
                    Always…
                  </button>
                </>
              )}
              <span className="push" />
              <button
                type="button"
                className="button"
                data-testid="deny"
                disabled={sending || off !== null}
                title={off ?? undefined}
                onClick={() => mayAct(request.id, null) && answer({ decision: "deny", scope: "once" })}
              >
                {asks ? "Do not answer" : "Deny"} <kbd>d</kbd>
              </button>
              <button
                type="button"
                className="button"
                data-testid="deny-reason"
                disabled={sending || off !== null}
                title={off ?? undefined}
                onClick={() => setLayer("reason")}
              >
                {asks ? "Say why not" : plan === null ? "Deny, say why" : "Send back, say what"} <kbd>D</kbd>
              </button>
              <button
                type="button"
                className="button"
                data-testid="deny-stop"
                disabled={sending || off !== null}
                title={off ?? undefined}
                onClick={() => setLayer("stop")}
              >
                and stop…
              </button>
            </div>
          ) : null}
          {allowOff !== null && layer === "none" ? <p className="text3">Allow is off: {allowOff}.</p> : null}
          {layer === "always" ? (
            <div className="permission-layer" data-testid="always-layer">
              <p>This rule will be written, and holds from then on for every session of this project:</p>
              <pre>
                <Visible text={`allow  ${request.proposed_rule ?? ""}`} />
              </pre>
              <p className="text2">
                into <span className="mono">{visible(view.always_file ?? "")}</span>
              </p>
              <div className="row-actions">
                <button type="button" className="button" onClick={() => setLayer("none")}>
                  Cancel
                </button>
                <button
                  type="button"
                  className="button primary"
                  data-testid="always-write"
                  disabled={sending || alwaysOff !== null}
                  onClick={() => answer({ decision: "allow", scope: "always" })}
                >
                  Write this rule and allow
                </button>
              </div>
            </div>
          ) : null}
          {layer === "reason" || layer === "stop" ? (
            <form
              className="permission-layer"
              onSubmit={(event) => {
                event.preventDefault();
                const words = reason.trim();
                answer({
                  decision: "deny",
                  scope: "once",
                  ...(words === "" ? {} : { reason: words }),
                  ...(layer === "stop" ? { stop: true } : {}),
                });
              }}
            >
              {layer === "stop" ? (
                <p>
                  Denies the call and ends this worker. Its work so far is committed to its branch; the
                  coordinator cannot wake it again.
                </p>
              ) : null}
              <label htmlFor={`${ids}-reason`}>
                Words to the model{layer === "stop" ? " (optional)" : ""}
              </label>
              <ReasonField
                id={`${ids}-reason`}
                value={reason}
                onChange={setReason}
                onEscape={() => setLayer("none")}
              />
              <div className="row-actions">
                <button type="button" className="button" onClick={() => setLayer("none")}>
                  Cancel
                </button>
                <button
                  type="submit"
                  className="button danger"
                  data-testid="deny-send"
                  disabled={sending || off !== null || (layer === "reason" && reason.trim() === "")}
                >
                  {layer === "stop" ? "Deny and stop the worker" : "Deny"}
                </button>
              </div>
            </form>
          ) : null}
          {sending ? (
            <p className="text2" role="status">
              sending…
            </p>
          ) : null}
          {error !== null ? (
            <p className="hue-fail" role="alert">
              not answered: {error}
            </p>
          ) : null}
        </>
      ) : (
        <p className="permission-decided" data-testid="permission-decided">
          {view.decision ? <Clock at={view.decision.decided_at} /> : null} {decidedText(view, mine)}
          {wrote ? <span className="mono text3"> · wrote {visible(wrote)}</span> : null}
        </p>
      )}
    </div>
  );
}

/** The field a person asked for by a key or a button of theirs: only then it takes the focus. */
function ReasonField({
  id,
  value,
  onChange,
  onEscape,
}: {
  id: string;
  value: string;
  onChange: (text: string) => void;
  onEscape: () => void;
}) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  return (
    <input
      id={id}
      ref={field}
      type="text"
      value={value}
      data-testid="deny-reason-input"
      onChange={(event) => onChange(event.target.value)}
      onKeyDown={(event) => {
        if (event.key === "Escape") {
          event.preventDefault();
          onEscape();
        }
      }}
    />
  );
}

function DeadlineBar({ from, to }: { from: string; to: string }) {
  const start = Date.parse(from);
  const end = Date.parse(to);
  // One step a second is enough: the number beside it is exact.
  const [, tick] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || tick(), 1000);
    return () => clearInterval(timer);
  }, []);
  const now = Date.now() + store.get().clockOffset;
  const part = end > start ? Math.max(0, Math.min(1, (end - now) / (end - start))) : 0;
  return (
    <svg className="deadline-bar" viewBox="0 0 100 2" preserveAspectRatio="none" aria-hidden="true">
      <rect width="100" height="2" className="bar-back" />
      <rect width={part * 100} height="2" fill="currentColor" />
    </svg>
  );
}

/** A list of cards that owns the framing: a card is framed by the focus a person gave it. */
export function PermissionList({
  views,
  showPlace = true,
}: {
  views: readonly PermissionView[];
  showPlace?: boolean;
}) {
  const state = useRef<arming.Arming>(arming.DISARMED);
  const settledAt = useRef(Number.NEGATIVE_INFINITY);
  const [framed, setFramed] = useState<string | null>(null);
  const [mine, setMine] = useState<ReadonlySet<string>>(new Set());
  const box = useRef<HTMLDivElement>(null);
  const [picked, setPicked] = useState<ReadonlySet<string>>(new Set());
  const plain = views.filter((view) => isOpen(view) && isPlain(view));
  const batch = plain.filter((view) => picked.has(view.request.id));
  const onSelect = useCallback((id: string, selected: boolean) => {
    setPicked((known) => {
      const next = new Set(known);
      if (selected) next.add(id);
      else next.delete(id);
      return next;
    });
  }, []);

  const setFrame = useCallback((id: string | null) => {
    state.current = arming.frame(state.current, id, performance.now());
    setFramed(id);
  }, []);

  useEffect(() => {
    const rearm = () => {
      state.current = arming.rearm(state.current, performance.now());
    };
    window.addEventListener("focus", rearm);
    document.addEventListener("visibilitychange", rearm);
    return () => {
      window.removeEventListener("focus", rearm);
      document.removeEventListener("visibilitychange", rearm);
    };
  }, []);

  const mayAct = useCallback((id: string, event: React.KeyboardEvent | null) => {
    // A click just after a card changed its size may have been aimed at what stood there before.
    if (event === null) return performance.now() - settledAt.current >= arming.ARM_MS;
    return arming.mayAnswer(
      state.current,
      id,
      {
        repeat: event.repeat,
        other: event.ctrlKey || event.metaKey || event.altKey || event.nativeEvent.isComposing,
        inText: inTextField(event.target),
      },
      performance.now(),
    );
  }, []);

  const onAnswering = useCallback((id: string) => {
    state.current = arming.answered(state.current, id);
  }, []);
  const onFailed = useCallback((id: string) => {
    state.current = arming.unanswered(state.current, id, performance.now());
  }, []);
  const onSettled = useCallback((id: string, won: boolean) => {
    if (won) setMine((known) => new Set(known).add(id));
    settledAt.current = performance.now();
    // The focus was in this list by the person's own act: it goes on to the next card, which must arm anew.
    const list = box.current;
    if (!list?.contains(document.activeElement)) return;
    const cards = [...list.querySelectorAll<HTMLElement>("[data-request]")];
    const at = cards.findIndex((card) => card.dataset["request"] === id);
    const open = (card: HTMLElement) => card.dataset["row"] !== undefined && card.dataset["request"] !== id;
    const next = cards.slice(at + 1).find(open) ?? cards.find(open) ?? cards[at];
    next?.focus();
  }, []);

  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: only watches which card has the focus
    <div
      ref={box}
      className="permission-list"
      data-testid="permission-list"
      onFocus={(event) => {
        const card = (event.target as HTMLElement).closest<HTMLElement>("[data-request]");
        setFrame(card?.dataset["request"] ?? null);
      }}
      onBlur={(event) => {
        if (!event.currentTarget.contains(event.relatedTarget)) setFrame(null);
      }}
    >
      {plain.length > 1 ? (
        <BatchBar
          open={plain}
          picked={batch}
          onPick={(ids) => setPicked(new Set(ids))}
          onWon={(ids) => setMine((known) => new Set([...known, ...ids]))}
        />
      ) : null}
      {views.map((view) => (
        <PermissionCard
          key={view.request.id}
          view={view}
          framed={framed === view.request.id}
          mayAct={mayAct}
          onAnswering={onAnswering}
          onFailed={onFailed}
          onSettled={onSettled}
          mine={mine.has(view.request.id)}
          showPlace={showPlace}
          selected={plain.length > 1 && isPlain(view) ? picked.has(view.request.id) : undefined}
          onSelect={onSelect}
        />
      ))}
    </div>
  );
}
