/**
 * Text that a person decides on must look as it is: control characters, bidirectional overrides and
 * characters without width are shown as code points.
 */

export type Piece = { text: string; hidden: boolean };

// C0 and C1 without tab and line feed; soft hyphen; Arabic letter mark; fillers; widthless, bidi and
// invisible operators; line and paragraph separators; variation selectors; byte-order mark; interlinear
// marks; tags and supplementary variation selectors; odd spaces; half surrogates.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]|\p{Cs}/gu;

/** `⟨U+202E⟩`. */
export function codePoint(character: string): string {
  const value = character.codePointAt(0) ?? 0;
  return `⟨U+${value.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** The text in pieces; hidden characters are pieces of their own, written as code points. */
export function pieces(text: string): Piece[] {
  const result: Piece[] = [];
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > end) result.push({ text: text.slice(end, match.index), hidden: false });
    result.push({ text: codePoint(match[0]), hidden: true });
    end = match.index + match[0].length;
  }
  if (end < text.length) result.push({ text: text.slice(end), hidden: false });
  return result;
}

/** The same as one string. */
export function visible(text: string): string {
  return text.replace(HIDDEN, codePoint);
}

export function hasHidden(text: string): boolean {
  return text.search(HIDDEN) >= 0;
}

/** Terminal colours and cursor moves have no meaning here: they are dropped from output, not from inputs. */
const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

export function plainOutput(text: string): string {
  return text
    .replace(ANSI, "")
    .replace(/\r\n/g, "\n")
    .split("\n")
    .map((line) => line.slice(line.lastIndexOf("\r") + 1))
    .join("\n");
}

/** Columns after which a line is taken to wrap: one endless line hides as much as many short ones. */
const COLUMNS = 100;

/** Lines as they are seen, long ones wrapped. */
export function seenLines(text: string): number {
  if (text === "") return 0;
  const body = text.endsWith("\n") ? text.slice(0, -1) : text;
  return body.split("\n").reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / COLUMNS)), 0);
}

/** The first lines as they are seen. */
export function firstLines(text: string, count: number): string {
  const kept: string[] = [];
  let room = count;
  for (const line of text.split("\n")) {
    if (room <= 0) break;
    kept.push(line.slice(0, room * COLUMNS));
    room -= Math.max(1, Math.ceil(line.length / COLUMNS));
  }
  return kept.join("\n");
}
