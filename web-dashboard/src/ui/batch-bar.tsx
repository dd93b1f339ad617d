import { useEffect, useRef, useState } from "react";
import { errorText, post } from "../api/client";
import type { AnsweredOne, AnswerPermission, PermissionView } from "../api/types";
import { seenLines } from "../lib/escape";
import * as format from "../lib/format";
import { reload, store } from "../store/store";
import { NOT_LIVE, useIsLive } from "./hooks";
import { inputText, LONG_LINES } from "./permission-card";
import { toast } from "./toasts";

/** Several requests, one answer. What is long has to be unfolded and picked by itself: nothing is allowed unread. */
export function BatchBar({
  open,
  picked,
  onPick,
  onWon,
}: {
  open: readonly PermissionView[];
  picked: readonly PermissionView[];
  onPick: (ids: string[]) => void;
  onWon: (ids: string[]) => void;
}) {
  const live = useIsLive();
  const [sending, setSending] = useState(false);
  const [denying, setDenying] = useState(false);
  const [reason, setReason] = useState("");
  const [failures, setFailures] = useState<readonly string[]>([]);
  const field = useRef<HTMLInputElement>(null);
  const off = live ? (picked.length === 0 ? "pick some first" : null) : NOT_LIVE;
  useEffect(() => {
    if (denying) field.current?.focus();
  }, [denying]);

  const short = open.filter((view) => seenLines(inputText(view)) <= LONG_LINES);
  const workers = [...new Set(short.map((view) => view.request.worker_id))];

  const answer = (body: AnswerPermission) => {
    const ids = picked.map((view) => view.request.id);
    setSending(true);
    setFailures([]);
    post<AnsweredOne[]>("/permissions", { ids, answer: body })
      .then((all) => {
        const answered = all.filter((one) => one.answered !== null);
        // The journal's decisions, not ours.
        store.set(
          (state) => {
            const data = { ...state.permissions.data };
            for (const { id, answered } of all) {
              const known = data[id];
              if (known && answered) data[id] = { ...known, decision: answered.decision };
            }
            return { ...state, permissions: { ...state.permissions, data } };
          },
          ["now"],
        );
        const won = answered.filter((one) => one.answered?.won === true).map((one) => one.id);
        const late = answered.length - won.length;
        if (late > 0)
          toast(`${format.plural(late, "request was", "requests were")} answered by somebody else before.`);
        onWon(won);
        const failed = all.filter((one) => one.answered === null);
        onPick(failed.map((one) => one.id));
        setFailures(failed.map((one) => `${one.id}: ${one.problem?.title ?? "not answered"}`));
        setDenying(false);
        setReason("");
        reload("overview");
      })
      .catch((failure: unknown) => {
        // What became of them is not known: they are asked for again, and stay picked.
        setFailures([errorText(failure)]);
        reload("permissions");
      })
      .finally(() => setSending(false));
  };

  return (
    <div className="batch" data-testid="batch" role="group" aria-label="One answer for several">
      <div className="batch-row">
        <span className="text2">Pick:</span>
        <button
          type="button"
          className="button"
          data-testid="batch-all"
          onClick={() => onPick(short.map((view) => view.request.id))}
        >
          all {short.length}
        </button>
        {workers.length > 1
          ? workers.map((worker) => (
              <button
                key={worker}
                type="button"
                className="button mono"
                onClick={() =>
                  onPick(
                    short.filter((view) => view.request.worker_id === worker).map((view) => view.request.id),
                  )
                }
              >
                {worker}
              </button>
            ))
          : null}
        {picked.length > 0 ? (
          <button type="button" className="button" onClick={() => onPick([])}>
            none
          </button>
        ) : null}
        <span className="push text2 num" data-testid="batch-count">
          {picked.length} of {open.length} picked
        </span>
      </div>
      {picked.length > 0 && !denying ? (
        <div className="batch-row">
          <button
            type="button"
            className="button primary"
            data-testid="batch-allow"
            disabled={sending || off !== null}
            title={off ?? undefined}
            onClick={() => answer({ decision: "allow", scope: "once" })}
          >
            Allow {format.plural(picked.length, "request")} once
          </button>
          <button
            type="button"
            className="button"
            data-testid="batch-deny"
            disabled={sending || off !== null}
            title={off ?? undefined}
            onClick={() => setDenying(true)}
          >
            Deny {format.plural(picked.length, "request")}…
          </button>
        </div>
      ) : null}
      {denying && picked.length > 0 ? (
        <form
          className="permission-layer"
          onSubmit={(event) => {
            event.preventDefault();
            const words = reason.trim();
            answer({ decision: "deny", scope: "once", ...(words === "" ? {} : { reason: words }) });
          }}
        >
          <label>
            <span>Words to the models (optional)</span>
            <input
              ref={field}
              type="text"
              value={reason}
              data-testid="batch-reason"
              onChange={(event) => setReason(event.target.value)}
              onKeyDown={(event) => {
                if (event.key === "Escape") setDenying(false);
              }}
            />
          </label>
          <div className="row-actions">
            <button type="button" className="button" onClick={() => setDenying(false)}>
              Cancel
            </button>
            <button
              type="submit"
              className="button danger"
              data-testid="batch-deny-send"
              disabled={sending || off !== null}
            >
              Deny {format.plural(picked.length, "request")}
            </button>
          </div>
        </form>
      ) : null}
      {failures.length > 0 ? (
        <p className="hue-fail" role="alert">
          not answered: {failures.join("; ")}
        </p>
      ) : null}
    </div>
  );
}
