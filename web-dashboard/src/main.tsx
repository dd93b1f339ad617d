import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./app";
import { applyTheme } from "./ui/theme";
import "./styles.css";

/** The one-time code leaves the address before anything renders, and before anything else can read it. */
function takeCode(): string | null {
  const match = /^#code=([^&]+)$/.exec(location.hash);
  if (match === null) return null;
  history.replaceState(null, "", location.pathname + location.search);
  return decodeURIComponent(match[1] ?? "");
}

const code = takeCode();
applyTheme();

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <App code={code} />
    </StrictMode>,
  );
}
