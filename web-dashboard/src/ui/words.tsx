import { Suspense } from "react";
import { lazyPart } from "./lazy";

const Markdown = lazyPart(async () => ({ default: (await import("./markdown")).Markdown }));

/** Coordinator's words: plain until the reader of Markdown is here. */
export function Words({ text }: { text: string }) {
  return (
    <Suspense fallback={<div className="pre text">{text}</div>}>
      <Markdown text={text} />
    </Suspense>
  );
}
