/** A reader for unified patches as `git diff` writes them. Nothing here interprets content: lines stay text. */

export type LineKind = "context" | "add" | "remove" | "note";

export interface DiffLine {
  kind: LineKind;
  old: number | null;
  new: number | null;
  text: string;
}

export interface Hunk {
  header: string;
  lines: DiffLine[];
}

export interface FileDiff {
  /** The path after the change, or before it for a deleted file. */
  path: string;
  oldPath: string | null;
  status: "modified" | "added" | "deleted" | "renamed" | "copied" | "mode";
  binary: boolean;
  added: number;
  removed: number;
  /** Extended header lines worth telling: mode and similarity. */
  notes: string[];
  hunks: Hunk[];
}

const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)$/;

/** Git quotes paths with odd characters as C strings of UTF-8 bytes. */
export function unquote(path: string): string {
  if (!path.startsWith('"') || !path.endsWith('"') || path.length < 2) return path;
  const inner = path.slice(1, -1);
  const bytes: number[] = [];
  const encoder = new TextEncoder();
  const simple: Record<string, number> = {
    n: 10,
    t: 9,
    r: 13,
    a: 7,
    b: 8,
    f: 12,
    v: 11,
    '"': 34,
    "\\": 92,
  };
  for (let i = 0; i < inner.length; ) {
    if (inner[i] !== "\\") {
      const character = String.fromCodePoint(inner.codePointAt(i) ?? 0);
      bytes.push(...encoder.encode(character));
      i += character.length;
      continue;
    }
    const octal = /^[0-3][0-7]{2}/.exec(inner.slice(i + 1, i + 4));
    if (octal) {
      bytes.push(Number.parseInt(octal[0], 8));
      i += 4;
    } else {
      bytes.push(simple[inner[i + 1] ?? ""] ?? 63);
      i += 2;
    }
  }
  return new TextDecoder().decode(new Uint8Array(bytes));
}

function side(line: string): string | null {
  // A tab ends the name when it holds a space.
  const path = unquote(line.slice(4).replace(/\t$/, ""));
  return path === "/dev/null" ? null : path.replace(/^[abciow]\//, "");
}

/** The two names of `diff --git a/x b/x` when no other line names them (binary, mode, empty files). */
function gitHeader(line: string): string {
  const rest = line.slice("diff --git ".length);
  if (rest.startsWith('"')) {
    const end = rest.lastIndexOf(' "');
    return unquote(end > 0 ? rest.slice(end + 1) : rest).replace(/^[abciow]\//, "");
  }
  // `a/NAME b/NAME`: both halves have the same length when the names are equal.
  const half = (rest.length - 1) / 2;
  return Number.isInteger(half) ? rest.slice(half + 1).replace(/^[abciow]\//, "") : rest;
}

export function parsePatch(patch: string): FileDiff[] {
  const files: FileDiff[] = [];
  let file: FileDiff | null = null;
  let hunk: Hunk | null = null;
  let oldLine = 0;
  let newLine = 0;
  let oldLeft = 0;
  let newLeft = 0;
  const lines = patch.split("\n");
  if (lines[lines.length - 1] === "") lines.pop();
  for (const line of lines) {
    // A line of a hunk begins with one of these; editors may have eaten the space of an empty one.
    const inside = line === "" || " +-\\".includes(line.charAt(0));
    if (hunk !== null && file !== null && (oldLeft > 0 || newLeft > 0) && inside) {
      const text = line.slice(1);
      const mark = line[0];
      if (mark === "+") {
        hunk.lines.push({ kind: "add", old: null, new: newLine++, text });
        file.added++;
        newLeft--;
      } else if (mark === "-") {
        hunk.lines.push({ kind: "remove", old: oldLine++, new: null, text });
        file.removed++;
        oldLeft--;
      } else if (mark === "\\") {
        hunk.lines.push({ kind: "note", old: null, new: null, text: line.slice(2) });
      } else {
        hunk.lines.push({ kind: "context", old: oldLine++, new: newLine++, text });
        oldLeft--;
        newLeft--;
      }
      continue;
    }
    if (line.startsWith("diff --git ")) {
      file = {
        path: gitHeader(line),
        oldPath: null,
        status: "modified",
        binary: false,
        added: 0,
        removed: 0,
        notes: [],
        hunks: [],
      };
      files.push(file);
      hunk = null;
      continue;
    }
    if (file === null) continue;
    const match = HUNK.exec(line);
    if (match) {
      oldLine = Number(match[1]);
      newLine = Number(match[3]);
      oldLeft = match[2] === undefined ? 1 : Number(match[2]);
      newLeft = match[4] === undefined ? 1 : Number(match[4]);
      hunk = { header: match[5] ?? "", lines: [] };
      file.hunks.push(hunk);
    } else if (line.startsWith("\\ ") && hunk !== null) {
      hunk.lines.push({ kind: "note", old: null, new: null, text: line.slice(2) });
    } else {
      extendedHeader(file, line);
    }
  }
  return files;
}

function extendedHeader(file: FileDiff, line: string): void {
  if (line.startsWith("new file mode ")) file.status = "added";
  else if (line.startsWith("deleted file mode ")) file.status = "deleted";
  else if (line.startsWith("rename from ")) {
    file.status = "renamed";
    file.oldPath = unquote(line.slice("rename from ".length));
  } else if (line.startsWith("rename to ")) file.path = unquote(line.slice("rename to ".length));
  else if (line.startsWith("copy from ")) {
    file.status = "copied";
    file.oldPath = unquote(line.slice("copy from ".length));
  } else if (line.startsWith("copy to ")) file.path = unquote(line.slice("copy to ".length));
  else if (line.startsWith("old mode ")) file.notes.push(`mode was ${line.slice("old mode ".length)}`);
  else if (line.startsWith("new mode ")) {
    file.notes.push(`mode is ${line.slice("new mode ".length)}`);
    if (file.status === "modified") file.status = "mode";
  } else if (line.startsWith("--- ")) {
    const path = side(line);
    if (path !== null && file.status === "deleted") file.path = path;
  } else if (line.startsWith("+++ ")) {
    const path = side(line);
    if (path !== null) file.path = path;
    if (file.status === "mode") file.status = "modified";
  } else if (line.startsWith("Binary files ") || line.startsWith("GIT binary patch")) file.binary = true;
}

const LOCKS = new Set([
  "package-lock.json",
  "yarn.lock",
  "pnpm-lock.yaml",
  "Cargo.lock",
  "poetry.lock",
  "uv.lock",
  "Gemfile.lock",
  "composer.lock",
  "go.sum",
  "flake.lock",
]);

/** More changed lines than this start folded. */
export const FOLD_LINES = 2000;

/** Why a file starts folded, or null. */
export function foldReason(file: FileDiff): string | null {
  const name = file.path.slice(file.path.lastIndexOf("/") + 1);
  if (file.binary) return "binary file";
  if (LOCKS.has(name)) return "lock file";
  if (/\.min\.(js|css)$|\.snap$|\.pb\.go$|_generated\.|\.map$/.test(name)) return "generated file";
  const changed = file.added + file.removed;
  if (changed > FOLD_LINES) return `${changed} changed lines`;
  return null;
}
