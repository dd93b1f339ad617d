export type Theme = "system" | "light" | "dark";

const NAME = "swarm.theme";
const ORDER: readonly Theme[] = ["system", "dark", "light"];

export function theme(): Theme {
  try {
    const stored = localStorage.getItem(NAME);
    return stored === "light" || stored === "dark" ? stored : "system";
  } catch {
    return "system";
  }
}

export function applyTheme(value: Theme = theme()): void {
  if (value === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = value;
}

export function nextTheme(): Theme {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length] ?? "system";
  try {
    localStorage.setItem(NAME, next);
  } catch {
    // Without storage the choice lives as long as the page.
  }
  applyTheme(next);
  return next;
}
