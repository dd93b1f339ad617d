import { describe, expect, it } from "vitest";
import { foldReason, parsePatch, unquote } from "../src/lib/patch";

const PATCH = `diff --git a/src/a.ts b/src/a.ts
index 1..2 100644
--- a/src/a.ts
+++ b/src/a.ts
@@ -1,4 +1,5 @@ function x() {
 one
-two
+two changed
+two and a half
 three
 
diff --git a/new file.txt b/new file.txt
new file mode 100644
index 0..1
--- /dev/null
+++ b/new file.txt\t
@@ -0,0 +1 @@
+--- not a header
\\ No newline at end of file
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-@@ -1 +1 @@ not a hunk
diff --git a/old/name.rs b/new/name.rs
similarity index 100%
rename from old/name.rs
rename to new/name.rs
diff --git a/logo.png b/logo.png
Binary files a/logo.png and b/logo.png differ
diff --git a/run.sh b/run.sh
old mode 100644
new mode 100755
diff --git "a/f\\303\\274r.txt" "b/f\\303\\274r.txt"
--- "a/f\\303\\274r.txt"
+++ "b/f\\303\\274r.txt"
@@ -5,2 +5,2 @@
-diff --git a/x b/x
+still a line
 end
`;

describe("unified patches", () => {
  const files = parsePatch(PATCH);

  it("finds every file with its status and counts", () => {
    expect(files.map((file) => `${file.status} ${file.path} +${file.added} -${file.removed}`)).toEqual([
      "modified src/a.ts +2 -1",
      "added new file.txt +1 -0",
      "deleted gone +0 -1",
      "renamed new/name.rs +0 -0",
      "modified logo.png +0 -0",
      "mode run.sh +0 -0",
      "modified für.txt +1 -1",
    ]);
    expect(files[3]?.oldPath).toBe("old/name.rs");
    expect(files[4]?.binary).toBe(true);
    expect(files[5]?.notes).toEqual(["mode was 100644", "mode is 100755"]);
  });

  it("numbers lines on both sides", () => {
    expect(files[0]?.hunks[0]?.lines.map((line) => [line.kind, line.old, line.new, line.text])).toEqual([
      ["context", 1, 1, "one"],
      ["remove", 2, null, "two"],
      ["add", null, 2, "two changed"],
      ["add", null, 3, "two and a half"],
      ["context", 3, 4, "three"],
      ["context", 4, 5, ""],
    ]);
    expect(files[0]?.hunks[0]?.header).toBe("function x() {");
  });

  it("does not take content for structure", () => {
    expect(files[1]?.hunks[0]?.lines[0]).toMatchObject({ kind: "add", text: "--- not a header" });
    expect(files[1]?.hunks[0]?.lines[1]).toMatchObject({ kind: "note", text: "No newline at end of file" });
    expect(files[2]?.hunks[0]?.lines[0]?.text).toBe("@@ -1 +1 @@ not a hunk");
    expect(files[6]?.hunks[0]?.lines[0]?.text).toBe("diff --git a/x b/x");
  });

  it("is not led astray by a hunk that is too short", () => {
    const short =
      "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n a\ndiff --git a/y b/y\nBinary files a/y and b/y differ\n";
    expect(parsePatch(short).map((file) => [file.path, file.binary])).toEqual([
      ["x", false],
      ["y", true],
    ]);
  });

  it("reads nothing as nothing", () => {
    expect(parsePatch("")).toEqual([]);
  });
});

it("unquotes git's paths", () => {
  expect(unquote('"a\\tb\\"c\\\\d"')).toBe('a\tb"c\\d');
  expect(unquote("plain")).toBe("plain");
});

it("folds what nobody reads line by line, with the reason", () => {
  const file = parsePatch(PATCH)[0];
  if (!file) throw new Error("no file");
  expect(foldReason(file)).toBeNull();
  expect(foldReason({ ...file, path: "deep/Cargo.lock" })).toBe("lock file");
  expect(foldReason({ ...file, binary: true })).toBe("binary file");
  expect(foldReason({ ...file, path: "x.min.js" })).toBe("generated file");
  expect(foldReason({ ...file, added: 1500, removed: 501 })).toBe("2001 changed lines");
});
