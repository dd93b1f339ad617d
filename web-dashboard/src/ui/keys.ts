import { useEffect, useRef } from "react";

export interface KeyAction {
  /** `c`, `g h`, `?`, `Shift+N` is written `N`. */
  keys: string;
  label: string;
  run: (event: KeyboardEvent) => void;
}

interface Scope {
  name: string;
  actions: KeyAction[];
}

const scopes: Scope[] = [];
let prefix: { key: string; at: number } | null = null;

/** What is typed here is text: no single key acts. */
export function inTextField(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable) return true;
  if (target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement) return true;
  return (
    target instanceof HTMLInputElement && !["checkbox", "radio", "button", "submit"].includes(target.type)
  );
}

function onKey(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.repeat && !["j", "k"].includes(event.key)) return;
  if (inTextField(event.target)) return;
  // A dialog owns the keyboard; it closes by its own Esc.
  if (document.querySelector("dialog[open]")) return;
  const now = performance.now();
  const first = prefix !== null && now - prefix.at < 1200 ? prefix.key : null;
  prefix = null;
  const wanted = first === null ? event.key : `${first} ${event.key}`;
  for (const scope of scopes.toReversed()) {
    const action = scope.actions.find((candidate) => candidate.keys === wanted);
    if (action) {
      event.preventDefault();
      action.run(event);
      return;
    }
  }
  const begins = scopes.some((scope) =>
    scope.actions.some((action) => action.keys.startsWith(`${event.key} `)),
  );
  if (first === null && begins) {
    prefix = { key: event.key, at: now };
    event.preventDefault();
  }
}

let listening = false;

export function useKeys(name: string, actions: KeyAction[]): void {
  const latest = useRef(actions);
  useEffect(() => {
    latest.current = actions;
  });
  const signature = actions.map((action) => `${action.keys}=${action.label}`).join("\n");
  useEffect(() => {
    if (!listening) {
      window.addEventListener("keydown", onKey);
      listening = true;
    }
    const scope: Scope = {
      name,
      actions: signature
        .split("\n")
        .filter(Boolean)
        .map((line, index) => {
          const [keys = "", label = ""] = line.split("=");
          return { keys, label, run: (event) => latest.current[index]?.run(event) };
        }),
    };
    scopes.push(scope);
    return () => {
      scopes.splice(scopes.indexOf(scope), 1);
    };
  }, [name, signature]);
}

export function keyHelp(): { name: string; actions: { keys: string; label: string }[] }[] {
  return scopes.map(({ name, actions }) => ({ name, actions }));
}

/** Moves the focus among the rows of the page: a list is walked with the same two keys everywhere. */
export function moveRow(by: 1 | -1, selector = "[data-row]"): void {
  const rows = [...document.querySelectorAll<HTMLElement>(`main ${selector}`)].filter(
    (row) => row.offsetParent !== null,
  );
  if (rows.length === 0) return;
  const at = rows.findIndex((row) => row === document.activeElement || row.contains(document.activeElement));
  const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by));
  rows[next]?.focus();
  rows[next]?.scrollIntoView({ block: "nearest" });
}
