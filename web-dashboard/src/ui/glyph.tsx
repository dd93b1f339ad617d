import type { GlyphName, Hue } from "../lib/states";

/** Own glyphs of different shape: they read without colour. The word always stands beside them. */
const SHAPES: Record<GlyphName, React.ReactNode> = {
  need: <path d="M8 2 15 14H1z" fill="currentColor" stroke="none" />,
  doubt: <path d="M8 1.5 14.5 8 8 14.5 1.5 8z" fill="currentColor" stroke="none" />,
  fail: (
    <>
      <path d="M5.3 1.5h5.4l3.8 3.8v5.4l-3.8 3.8H5.3l-3.8-3.8V5.3z" />
      <path d="m5.6 5.6 4.8 4.8m0-4.8-4.8 4.8" />
    </>
  ),
  ready: (
    <>
      <circle cx="8" cy="8" r="7" fill="currentColor" stroke="none" />
      <path d="m4.8 8.3 2.2 2.2 4.2-4.6" stroke="var(--canvas)" strokeWidth="1.8" />
    </>
  ),
  quiet: <circle cx="8" cy="8" r="6.2" strokeDasharray="1.2 2.7" />,
  wait: (
    <path d="M3.5 1.8h9M3.5 14.2h9M4.5 1.8c0 3.4 3.5 4 3.5 6.2 0-2.2 3.5-2.8 3.5-6.200M4.5 14.200c0-3.4 3.5-4 3.5-6.2 0 2.2 3.5 2.8 3.5 6.2" />
  ),
  work: (
    <>
      <circle cx="8" cy="8" r="6.2" />
      <path d="M8 1.800a6.2 6.2 0 0 1 0 12.400z" fill="currentColor" stroke="none" />
    </>
  ),
  queued: <circle cx="8" cy="8" r="6.2" strokeDasharray="3.2 1.670" />,
  merged: <path d="m1.5 8.5 2.8 3 5.2-7M7.7 10.700l.9.8 5.4-7" />,
  reported: <path d="m3 8.5 3.3 3.300L13 4.5" />,
  nothing: <path d="M3 8h10" />,
  stopped: (
    <>
      <circle cx="8" cy="8" r="6.2" />
      <path d="m3.7 12.3 8.6-8.6" />
    </>
  ),
  discarded: <path d="M5.5 3.500h9v9h-9L1.5 8zM8 6.200l3.6 3.600m0-3.600L8 9.8" />,
  idle: <circle cx="8" cy="8" r="2.2" fill="currentColor" stroke="none" />,
  unknown: <circle cx="8" cy="8" r="6.2" />,
};

export function Glyph({ name, hue, size = 16 }: { name: GlyphName; hue?: Hue; size?: number }) {
  return (
    <svg
      className={`glyph${name === "work" ? " turning" : ""}${hue ? ` hue-${hue}` : ""}`}
      viewBox="0 0 16 16"
      width={size}
      height={size}
      fill="none"
      stroke="currentColor"
      strokeWidth="1.6"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      focusable="false"
    >
      {SHAPES[name]}
    </svg>
  );
}

/** The icons of navigation and buttons. */
const ICONS = {
  home: <path d="m2 7.5 6-5 6 5M3.5 6.500v7h9v-7" />,
  inbox: <path d="M1.8 9.5 3.8 3h8.400l2 6.500V13H1.800zM1.8 9.500h3.700l1 1.700h3l1-1.700h3.7" />,
  plus: <path d="M8 2.500v11M2.5 8h11" />,
  back: <path d="M10 3 5 8l5 5" />,
  down: <path d="M8 2.500v10.500M3.5 8.5 8 13l4.5-4.5" />,
  copy: <path d="M5.5 5.500h8v8h-8zM10.5 5.500v-3h-8v8h3" />,
  sun: (
    <>
      <circle cx="8" cy="8" r="3" />
      <path d="M8 1v1.500M8 13.500V15M1 8h1.500M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1" />
    </>
  ),
  moon: <path d="M13.5 9.800A6 6 0 0 1 6.2 2.500a6 6 0 1 0 7.3 7.300z" />,
  auto: (
    <>
      <circle cx="8" cy="8" r="6" />
      <path d="M8 2a6 6 0 0 1 0 12z" fill="currentColor" stroke="none" />
    </>
  ),
  help: <path d="M5.5 6a2.5 2.5 0 1 1 3.6 2.200c-.8.4-1.1.9-1.1 1.800M8 12.800v.2" />,
  chevron: <path d="m6 3.5 4.5 4.500L6 12.5" />,
} as const;

export type IconName = keyof typeof ICONS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg
      className="icon"
      viewBox="0 0 16 16"
      width={size}
      height={size}
      fill="none"
      stroke="currentColor"
      strokeWidth="1.5"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      focusable="false"
    >
      {ICONS[name]}
    </svg>
  );
}
