/** The SharedWorker: one stream for all tabs of a browser, so that no tab takes a connection of its own. */

import type { FromStream, ToStream } from "./messages";
import { EventStream } from "./stream";

declare const self: {
  onconnect: ((event: MessageEvent) => void) | null;
  fetch: typeof fetch;
};

const ports = new Set<MessagePort>();

function tellAll(message: FromStream): void {
  for (const port of ports) port.postMessage(message);
}

const stream = new EventStream(
  {
    events: (events) => tellAll({ say: "events", events }),
    status: (status, heardAt, why) => tellAll({ say: "status", status, heardAt, why }),
    behind: (restart) => tellAll({ say: "behind", restart }),
    beat: (serverNow, heardAt) => tellAll({ say: "beat", serverNow, heardAt }),
  },
  { fetch: (input, init) => fetch(input, init), now: () => Date.now(), url: "/api/v1/events" },
);

self.onconnect = (event) => {
  const port = event.ports[0];
  if (port === undefined) return;
  port.onmessage = (message: MessageEvent<ToStream>) => {
    const order = message.data;
    switch (order.do) {
      case "hello":
        ports.add(port);
        break;
      case "start": {
        ports.add(port);
        const { running, status, heardAt } = stream.state;
        if (running) port.postMessage({ say: "status", status, heardAt, why: "" } satisfies FromStream);
        else stream.start(order.from);
        break;
      }
      case "probe":
        stream.probe();
        break;
      case "bye":
        ports.delete(port);
        if (ports.size === 0) stream.stop();
        break;
    }
  };
  port.start();
};
