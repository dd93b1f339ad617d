import { useEffect, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import * as format from "../lib/format";
import { sessionState } from "../lib/states";
import { SILENCE_MS } from "../live/stream";
import { countNeeds, openPermissions } from "../store/state";
import { store, useStore } from "../store/store";
import { Glyph, Icon } from "./glyph";
import { useNow } from "./hooks";
import { keyHelp, useKeys } from "./keys";
import { Dialog, LiveRegion, Visible } from "./parts";
import { nextTheme, theme } from "./theme";
import { Toasts } from "./toasts";

/** The heading of a page; a change of route brings the focus here, the first page takes none. */
let firstPlace: string | null = location.pathname;
export function PageTitle({ children }: { children: React.ReactNode }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    if (location.pathname === firstPlace) return;
    firstPlace = null;
    // Who has the focus elsewhere already (a field, a dialog) keeps it.
    const active = document.activeElement;
    if (active === null || active === document.body || !active.isConnected) {
      heading.current?.focus({ preventScroll: true });
    }
  }, []);
  return (
    <h1 ref={heading} tabIndex={-1}>
      {children}
    </h1>
  );
}

function Connection() {
  const connection = useStore((state) => state.connection, "now");
  useNow();
  const silent = Date.now() - connection.heardAt;
  if (connection.status === "connecting" && connection.heardAt === 0) {
    return (
      <span className="connection text2" data-testid="connection" data-state="connecting">
        connecting…
      </span>
    );
  }
  if (connection.status === "live" && silent <= SILENCE_MS) {
    const seconds = Math.floor(silent / 1000);
    return (
      <span
        className="connection hue-ready"
        data-testid="connection"
        data-state="live"
        title={`last word from the server ${seconds} s ago`}
      >
        <span className="dot" />
        <span className="text2">live</span>
        {seconds >= 5 ? <span className="text3 num wide-only">{seconds} s</span> : null}
      </span>
    );
  }
  return (
    <span
      className="connection hue-need"
      data-testid="connection"
      data-state="reconnecting"
      role="status"
      title={connection.why}
    >
      <Glyph name="quiet" size={14} />
      <span className="num">
        reconnecting{connection.heardAt > 0 ? `, as of ${format.clock(connection.heardAt, true)}` : ""}
      </span>
    </span>
  );
}

function Money() {
  const today = useStore((state) => state.overview.data?.today, "money");
  if (!today) return null;
  return (
    <span
      className="num text2 money"
      data-testid="money-today"
      title={
        today.unpriced_calls > 0
          ? `estimated at list price; ${format.plural(today.unpriced_calls, "call")} without a known price not counted`
          : "estimated at list price"
      }
    >
      {format.cost(today)} <span className="text3">today</span>
    </span>
  );
}

function useInboxCount(): number {
  return useStore((state) =>
    state.permissions.data === null ? (state.overview.data?.asks ?? 0) : openPermissions(state).length,
  );
}

function Badge({ count }: { count: number }) {
  if (count === 0) return null;
  return <span className="badge num">{count}</span>;
}

function Rail({ place }: { place: string }) {
  const inbox = useInboxCount();
  const needs = useStore(countNeeds);
  const sessions = useStore((state) => state.overview.data?.sessions);
  const live = useStore((state) => state.sessions);
  const [all, setAll] = useState(false);
  const shown = all ? sessions : sessions?.slice(0, 20);
  const [, setTheme] = useState(theme());
  const item = (href: string) => (place === href ? ({ "aria-current": "page" } as const) : {});
  return (
    <nav className="rail" aria-label="Destinations">
      <Link href="/" className="rail-item" {...item("/")} data-testid="nav-home" title="Home (g h)">
        <Icon name="home" />
        <span className="rail-label">Home</span>
        {needs > 0 ? (
          <span className="badge num" title={`${format.plural(needs, "item")} in “Needs you”`}>
            {needs}
          </span>
        ) : null}
      </Link>
      <Link
        href="/inbox"
        className="rail-item"
        {...(place.startsWith("/inbox") ? { "aria-current": "page" as const } : {})}
        data-testid="nav-inbox"
        title="Inbox (g i)"
      >
        <Icon name="inbox" />
        <span className="rail-label">Inbox</span>
        <Badge count={inbox} />
      </Link>
      <Link href="/new" className="rail-item" {...item("/new")} data-testid="nav-new" title="New task (c)">
        <Icon name="plus" />
        <span className="rail-label">New task</span>
      </Link>
      <h2 className="rail-heading" id="rail-sessions">
        Sessions
      </h2>
      <ul className="rail-sessions" aria-labelledby="rail-sessions" data-testid="rail-sessions">
        {shown?.map((listed) => {
          const session = live[listed.session_id] ?? listed;
          const state = sessionState(session);
          return (
            <li key={session.session_id}>
              <Link
                href={`/s/${session.session_id}`}
                className="rail-session"
                {...(place.startsWith(`/s/${session.session_id}`) ? { "aria-current": "page" as const } : {})}
                title={`${session.title} · ${state.word}`}
              >
                <Glyph name={state.glyph} hue={state.hue} size={14} />
                <span className="rail-label">
                  <span className="rail-title">
                    <Visible text={session.title} />
                  </span>
                  <span className="text3 num rail-sub">
                    {session.damaged !== undefined
                      ? "damaged"
                      : `${session.workers_running}/${session.workers} · ${format.cost(session.cost)}`}
                  </span>
                </span>
                <span className="sr">{state.word}</span>
              </Link>
            </li>
          );
        })}
      </ul>
      {sessions && sessions.length > 20 && !all ? (
        <button type="button" className="button quiet rail-more" onClick={() => setAll(true)}>
          + {sessions.length - 20} more
        </button>
      ) : null}
      <div className="rail-foot">
        <button
          type="button"
          className="button quiet"
          data-testid="theme"
          title={`Theme: ${theme()}`}
          onClick={() => setTheme(nextTheme())}
        >
          <Icon name={theme() === "dark" ? "moon" : theme() === "light" ? "sun" : "auto"} size={14} />
          <span className="rail-label">
            {theme() === "system" ? "as the system" : theme()}
            <span className="sr"> theme, change</span>
          </span>
        </button>
      </div>
    </nav>
  );
}

function Bottom({ place }: { place: string }) {
  const inbox = useInboxCount();
  const needs = useStore(countNeeds);
  return (
    <nav className="bottom" aria-label="Destinations">
      <Link href="/" {...(place === "/" ? { "aria-current": "page" as const } : {})}>
        <Icon name="home" size={18} /> Home <Badge count={needs} />
      </Link>
      <Link href="/inbox" {...(place.startsWith("/inbox") ? { "aria-current": "page" as const } : {})}>
        <Icon name="inbox" size={18} /> Inbox <Badge count={inbox} />
      </Link>
      <Link href="/new" {...(place === "/new" ? { "aria-current": "page" as const } : {})}>
        <Icon name="plus" size={18} /> New
      </Link>
    </nav>
  );
}

function Header({ place, onHelp }: { place: string; onHelp: () => void }) {
  const inbox = useInboxCount();
  const title = useStore((state) => placeTitle(state, place));
  return (
    <header className="top">
      <Link href="/" className="brand" aria-label="swarm, home">
        <img src="/favicon.svg" alt="" width={20} height={20} />
        <span className="wide-only">swarm</span>
      </Link>
      <span className="place text2">
        <Visible text={title} />
      </span>
      <span className="push" />
      <Connection />
      <Link href="/inbox" className={`top-inbox${inbox > 0 ? " some" : ""}`} data-testid="inbox-count">
        Inbox <span className="num">{inbox}</span>
      </Link>
      <Money />
      <button
        type="button"
        className="button quiet wide-only"
        aria-label="Keys of this screen"
        title="Keys (?)"
        onClick={onHelp}
      >
        <Icon name="help" />
      </button>
    </header>
  );
}

function placeTitle(state: ReturnType<typeof store.get>, place: string): string {
  const [, kind, id = ""] = place.split("/");
  if (kind === "inbox") return "Inbox";
  if (kind === "new") return "New task";
  if (kind === "s") return state.sessions[id]?.title ?? "Session";
  if (kind === "w") {
    const worker = state.workers[id];
    return worker ? `${id} ${worker.name}` : id;
  }
  return "Home";
}

/** The title counts what needs a person, also in a hidden tab; the icon has another shape then. */
function useTitle(place: string): void {
  useEffect(() => {
    let shown = -1;
    let name = "";
    const icon = document.querySelector<HTMLLinkElement>('link[rel="icon"]');
    const update = () => {
      const state = store.get();
      const count = Math.max(countNeeds(state), openPermissions(state).length);
      const title = placeTitle(state, place);
      if (count === shown && title === name) return;
      if (icon && count > 0 !== shown > 0) icon.href = count > 0 ? "/favicon-need.svg" : "/favicon.svg";
      shown = count;
      name = title;
      document.title = `${count > 0 ? `(${count}) ` : ""}${title} · swarm`;
    };
    update();
    return store.subscribeAlways(update);
  }, [place]);
}

export function Shell({ children }: { children: React.ReactNode }) {
  const [place, navigate] = useLocation();
  const [help, setHelp] = useState(false);
  useTitle(place);
  useKeys("Everywhere", [
    { keys: "g h", label: "go to Home", run: () => navigate("/") },
    { keys: "g i", label: "go to Inbox", run: () => navigate("/inbox") },
    { keys: "c", label: "new task", run: () => navigate("/new") },
    { keys: "N", label: "next that needs you", run: () => step(1) },
    { keys: "P", label: "previous that needs you", run: () => step(-1) },
    { keys: "?", label: "keys of this screen", run: () => setHelp(true) },
    { keys: "Escape", label: "close the top layer, then go up; never stops anything", run: () => up() },
  ]);

  const step = (by: 1 | -1) => {
    const links = (store.get().overview.data?.rows ?? [])
      .filter((row) => row.group === "needs_you")
      .map((row) => row.link);
    if (links.length === 0) return;
    const at = links.indexOf(place);
    const next = at < 0 ? (by > 0 ? 0 : links.length - 1) : (at + by + links.length) % links.length;
    const link = links[next];
    if (link !== undefined) navigate(link);
  };
  const up = () => {
    const [, kind, id = ""] = place.split("/");
    if (kind === "w") {
      const session = store.get().workers[id]?.session_id;
      navigate(session ? `/s/${session}` : "/");
    } else if (kind) navigate("/");
  };

  return (
    <div className="shell">
      <a className="skip" href="#main">
        Skip to the content
      </a>
      <Header place={place} onHelp={() => setHelp(true)} />
      <Rail place={place} />
      <main id="main" tabIndex={-1}>
        {children}
      </main>
      <Bottom place={place} />
      <Toasts />
      <LiveRegion />
      <Dialog open={help} onClose={() => setHelp(false)} title="Keys of this screen">
        <Keys />
        <div className="dialog-actions">
          <button type="button" className="button" onClick={() => setHelp(false)}>
            Close
          </button>
        </div>
      </Dialog>
    </div>
  );
}

function Keys() {
  const answering = [
    { keys: "a", label: "allow once" },
    { keys: "A", label: "allow for this session" },
    { keys: "d", label: "deny" },
    { keys: "D", label: "deny and say why" },
    { keys: "Enter", label: "unfold a long command" },
  ];
  const scopes = [...keyHelp().toReversed()];
  const cards = document.querySelector("[data-request]") !== null;
  if (cards) scopes.unshift({ name: "On a framed permission card", actions: answering });
  return (
    <div className="keys" data-testid="key-help">
      {scopes
        .filter((scope) => scope.actions.length > 0)
        .map((scope) => (
          <section key={scope.name}>
            <h3>{scope.name}</h3>
            <dl>
              {scope.actions.map((action) => (
                <div key={action.keys}>
                  <dt>
                    {action.keys.split(" ").map((key) => (
                      <kbd key={key}>{key}</kbd>
                    ))}
                  </dt>
                  <dd>{action.label}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      <p className="text3">Single keys do nothing while a text field has the focus.</p>
    </div>
  );
}
