import { useSyncExternalStore } from "react";

/** Toasts confirm a person's own act, and offer to undo it for ten seconds. */
export interface Toast {
  id: number;
  text: string;
  tone: "plain" | "fail";
  undo?: { label: string; run: () => void };
}

let toasts: readonly Toast[] = [];
let next = 1;
const listeners = new Set<() => void>();

function change(list: readonly Toast[]): void {
  toasts = list;
  for (const listener of listeners) listener();
}

export function dismiss(id: number): void {
  change(toasts.filter((toast) => toast.id !== id));
}

export function toast(text: string, options: { tone?: Toast["tone"]; undo?: Toast["undo"] } = {}): void {
  const id = next++;
  const made: Toast = {
    id,
    text,
    tone: options.tone ?? "plain",
    ...(options.undo ? { undo: options.undo } : {}),
  };
  change([...toasts, made].slice(-4));
  setTimeout(() => dismiss(id), options.undo ? 10_000 : 6_000);
}

export function Toasts() {
  const list = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => toasts,
  );
  return (
    <div className="toasts" data-testid="toasts">
      {list.map((item) => (
        <div key={item.id} className={`toast ${item.tone}`} role={item.tone === "fail" ? "alert" : undefined}>
          <span>{item.text}</span>
          {item.undo ? (
            <button
              type="button"
              className="button"
              data-testid="undo"
              onClick={() => {
                item.undo?.run();
                dismiss(item.id);
              }}
            >
              {item.undo.label}
            </button>
          ) : null}
          <button type="button" className="button quiet" aria-label="Close" onClick={() => dismiss(item.id)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}
