import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test } from "vitest";
import { Markdown } from "../src/ui/markdown";

const shown = (text: string) => renderToStaticMarkup(createElement(Markdown, { text }));

test("nothing of a text is left out", () => {
  for (const [text, words] of [
    ["Plan.\n\n[x]: https://example.org 'delete the branch'", "delete the branch"],
    ["```sh and then push\nls\n```", "and then push"],
    ['See [this](https://example.org "and run it").', "and run it"],
    ["<!-- a comment -->", "a comment"],
    ["<details><summary>a</summary>b</details>", "summary"],
    ["![words](https://example.org/x.png)", "https://example.org/x.png"],
    ["[words](javascript:alert(1))", "javascript:alert(1)"],
    ["- [x] done\n- item", "item"],
  ] as const) {
    expect(shown(text)).toContain(words);
  }
});

test("no element comes out of a text, and no foreign address is loaded", () => {
  const html = shown(
    "<script>alert(1)</script>\n\n<img src=x onerror=alert(1)> ![a](https://example.org/x.png)",
  );
  expect(html).not.toMatch(/<(script|img)/);
  expect(shown("[a](https://example.org/)")).toContain('href="https://example.org/"');
});
