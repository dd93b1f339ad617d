import { useId, useRef, useState } from "react";
import { errorText, post } from "../api/client";
import type { MessageAccepted } from "../api/types";
import { NOT_LIVE, useDraft, useIsLive } from "./hooks";
import { useKeys } from "./keys";
import { toast } from "./toasts";

/** A message to an agent. The draft stays until the server has taken the message. */
export function Composer({
  path,
  label,
  note,
  disabled,
}: {
  path: string;
  label: string;
  note: string;
  disabled?: string | null;
}) {
  const [text, setText] = useDraft(path);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  const live = useIsLive();
  const id = useId();
  useKeys("Message", [{ keys: "m", label: "write a message", run: () => field.current?.focus() }]);

  const blocked = disabled ?? (live ? null : NOT_LIVE);
  const send = () => {
    const words = text.trim();
    if (words === "" || busy || blocked !== null) return;
    setBusy(true);
    setError(null);
    post<MessageAccepted>(path, { text: words })
      .then(
        (accepted) => {
          setText("");
          toast(`Sent: ${accepted.note || accepted.status}`);
        },
        (failure: unknown) => setError(errorText(failure)),
      )
      .finally(() => setBusy(false));
  };

  return (
    <form
      className="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <label htmlFor={id} className="sr">
        {label}
      </label>
      <textarea
        id={id}
        ref={field}
        rows={Math.min(8, Math.max(1, text.split("\n").length))}
        value={text}
        placeholder={label}
        data-testid="message-input"
        aria-describedby={`${id}-note`}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.nativeEvent.isComposing) {
            event.preventDefault();
            send();
          }
          if (event.key === "Escape") event.currentTarget.blur();
        }}
      />
      <div className="composer-foot">
        <span id={`${id}-note`} className="text3">
          {error !== null ? (
            <span className="hue-fail" role="alert">
              not sent: {error}
            </span>
          ) : (
            (blocked ?? note)
          )}
        </span>
        <button
          type="submit"
          className="button primary"
          data-testid="message-send"
          disabled={busy || blocked !== null || text.trim() === ""}
        >
          {busy ? "Sending…" : "Send"} <kbd>Ctrl ↵</kbd>
        </button>
      </div>
    </form>
  );
}
