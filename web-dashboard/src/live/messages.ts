import type { WireEvent } from "../api/types";
import type { StreamStatus } from "./stream";

export type ToStream = { do: "start"; from: string } | { do: "probe" } | { do: "hello" } | { do: "bye" };

export type FromStream =
  | { say: "events"; events: WireEvent[] }
  | { say: "status"; status: StreamStatus; heardAt: number; why: string }
  | { say: "behind"; restart: boolean }
  | { say: "beat"; serverNow: string | null; heardAt: number };
