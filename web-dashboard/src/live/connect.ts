/** The page's end of the stream: a SharedWorker where there is one, else a stream of its own. */

import type { FromStream, ToStream } from "./messages";
import { EventStream } from "./stream";

export interface Connection {
  send(message: ToStream): void;
}

export function connect(receive: (message: FromStream) => void): Connection {
  let target: Connection | null = null;
  let last: ToStream | null = null;
  const inPage = () => {
    target = ownStream(receive);
    if (last !== null) target.send(last);
  };
  target = openShared(receive, inPage) ?? ownStream(receive);
  return {
    send(message) {
      if (message.do === "start") last = message;
      target?.send(message);
    },
  };
}

function ownStream(receive: (message: FromStream) => void): Connection {
  const stream = new EventStream(
    {
      events: (events) => receive({ say: "events", events }),
      status: (status, heardAt, why) => receive({ say: "status", status, heardAt, why }),
      behind: (restart) => receive({ say: "behind", restart }),
      beat: (serverNow, heardAt) => receive({ say: "beat", serverNow, heardAt }),
    },
    { fetch: (input, init) => fetch(input, init), now: () => Date.now(), url: "/api/v1/events" },
  );
  return {
    send(message) {
      if (message.do === "start") stream.start(message.from);
      else if (message.do === "probe") stream.probe();
      else if (message.do === "bye") stream.stop();
    },
  };
}

function openShared(receive: (message: FromStream) => void, failed: () => void): Connection | null {
  if (typeof SharedWorker === "undefined") return null;
  try {
    const worker = new SharedWorker(new URL("./shared.ts", import.meta.url), {
      type: "module",
      name: "swarm-live",
    });
    worker.addEventListener("error", failed, { once: true });
    worker.port.onmessage = (event: MessageEvent<FromStream>) => receive(event.data);
    worker.port.start();
    return { send: (message) => worker.port.postMessage(message) };
  } catch {
    return null;
  }
}
