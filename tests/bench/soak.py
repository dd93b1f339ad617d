#!/usr/bin/env python3
"""One worker, thousands of turns with results of 2 to 200 KB, through dozens of compactions. Prints figures, and fails
when a request breaks a rule of the provider. Standard library only.

    cargo build --release -p coordinator -p worker --bins
    tests/bench/soak.py [--bin target/release] [--turns 10000] [--window 200000]

Checked on every request: roles alternate, each call has its result in the next message, the first request's task is
there word for word, and a request extends the one before unless history was made smaller. Printed: memory of the worker
and the time from the end of a response to the next request, by stretches of the run. On a busy machine times grow.
"""

import argparse
import collections
import hashlib
import json
import os
import pathlib
import random
import sys
import time

sys.dont_write_bytecode = True
import bench  # noqa: E402
import model as bench_model  # noqa: E402

TASK = "bench worker 0: read files."
SUMMARY_REQUEST = "Stop here: do not go on with the task and call no tool."
CLEARED = "[Old tool result content cleared;"
SUMMARY = "1. Goal: read files. 2. No file was changed. 3. No errors. 4. No preferences were stated. " * 20


def rss_kib(pid: int) -> int | None:
    try:
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None


class Broken(Exception):
    """A request that a provider would refuse, or that breaks a promise."""


class SoakModel(bench_model.Model):
    """Answers the worker with one call after the other, and looks at each request."""

    def __init__(self, n_turns: int, sizes: list[int]):
        self.sizes, self.random = sizes, random.Random(7)
        self.before: list[str] = []
        self.shrunk = collections.Counter()
        self.summaries = 0
        self.problem: str | None = None
        self.context: list[int] = []
        self.samples: list[tuple[int, int]] = []
        self.place: bench.Place | None = None
        super().__init__(1, n_turns)

    def answer(self, connection, body, arrived, arrived_wall) -> None:
        if bench_model.COORDINATOR.search(body) or not bench_model.WORKER.search(body):
            super().answer(connection, body, arrived, arrived_wall)
            return
        request = json.loads(body)
        tokens = len(body) // 4
        last = request["messages"][-1]["content"][-1]
        if last.get("text", "").startswith(SUMMARY_REQUEST):
            self.summaries += 1
            connection.sendall(bench_model.response([("text", SUMMARY)], tokens))
            return
        agent = self.agents[0]
        agent.arrivals.append(arrived)
        agent.request_bytes.append(len(body))
        self.context.append(tokens)
        turn = len(agent.arrivals)
        try:
            self.check(request)
        except Broken as broken:
            self.problem = f"request {turn}: {broken}"
        if turn % 100 == 0 and self.place:
            for worker in self.place.workers():
                memory = rss_kib(worker)
                if memory:
                    self.samples.append((turn, memory))
        done = turn > self.n_turns or self.problem is not None
        parts = [("text", f"Step {turn}.")] + ([] if done else [("tool", self.call(turn))])
        data = bench_model.response(parts, tokens)
        agent.ends.append(time.perf_counter())
        connection.sendall(data)

    def call(self, turn: int) -> tuple[str, dict]:
        size = self.random.choice(self.sizes)
        kind = self.random.random()
        name = f"big/{size}.txt"
        if kind < 0.7:
            return "Read", {"file_path": name, "offset": 1 + turn % 7}
        if kind < 0.9:
            return "Bash", {"command": f"cat {name} | head -c {size * 512}; echo {turn}"}
        return "Grep", {"pattern": f"line {turn % 10}", "path": "big", "output_mode": "content"}

    def check(self, request: dict) -> None:
        messages = request["messages"]
        open_calls: list[str] = []
        for index, message in enumerate(messages):
            if message["role"] != ("user" if index % 2 == 0 else "assistant"):
                raise Broken(f"message {index} is of the {message['role']}")
            if not message["content"]:
                raise Broken(f"message {index} is empty")
            results = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
            if results != open_calls:
                raise Broken(f"message {index} answers {results}, called were {open_calls}")
            open_calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if not any(TASK in block.get("text", "") for block in messages[0]["content"]):
            raise Broken("the task is gone")
        now = [digest(message["role"], block) for message in messages for block in message["content"]]
        if now[: len(self.before)] != self.before:
            text = json.dumps(messages)
            if CLEARED not in text and "[Summary of prior conversation]" not in text:
                raise Broken("what was sent changed, and nothing says why")
            self.shrunk["summarised" if len(now) < len(self.before) else "cleared"] += 1
        self.before = now


def digest(role: str, block: dict) -> str:
    plain = {key: value for key, value in block.items() if key != "cache_control"}
    return hashlib.sha1((role + json.dumps(plain, sort_keys=True)).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=bench.ROOT / "target" / "release")
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--window", type=int, default=200_000)
    arguments = parser.parse_args()
    sizes = [2, 4, 8, 16, 32, 64, 128, 200]
    print(f"{arguments.turns} turns, window {arguments.window}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    place = bench.Place(arguments.bin.resolve(), 10)
    try:
        for size in sizes:
            path = place.repo / "big" / f"{size}.txt"
            path.parent.mkdir(exist_ok=True)
            line = "line {} of a file whose lines are all a little different\n"
            text = "".join(line.format(number) for number in range(size * 1024 // 56))
            path.write_text(text)
        place.git("add", ".")
        place.git(*bench.GIT_IDENTITY, "commit", "-q", "-m", "big files")
        place.environment["SWARM_CONTEXT_WINDOW"] = str(arguments.window)
        model = SoakModel(arguments.turns, sizes)
        model.place = place
        began = time.time()
        events = place.run(model)
        took = time.time() - began
        report(model, events, took)
    finally:
        place.close()
    if model.problem or len(model.agents[0].arrivals) <= arguments.turns:
        sys.exit(model.problem or f"it ended after {len(model.agents[0].arrivals)} requests")


def report(model: SoakModel, events: list[dict], took: float) -> None:
    agent = model.agents[0]
    gaps = agent.gaps()
    n = len(gaps)
    bench.row("requests, summaries, whole run", f"{n + 1}, {model.summaries}, {took:.0f} s")
    bench.row("breaks", ", ".join(f"{count} {kind}" for kind, count in sorted(model.shrunk.items())) or "none")
    bench.row("context, in the model's tokens", f"max {max(model.context)}, mean {sum(model.context) // len(model.context)}")
    step = max(100, n // 5)
    for begin in range(0, n, step):
        part = gaps[begin : begin + step]
        if len(part) == step or begin == 0:
            bench.row(f"response end to next request, turns {begin + 1} to {begin + len(part)}", bench.milliseconds(part))
    for low in range(0, max(model.context), 40_000):
        part = [gap for gap, tokens in zip(gaps, model.context[1:]) if low <= tokens < low + 40_000]
        early, late = part[: len(part) // 2], part[len(part) // 2 :]
        bench.row(f"  at {low // 1000}k to {low // 1000 + 40}k tokens, first half", bench.milliseconds(early))
        bench.row(f"  at {low // 1000}k to {low // 1000 + 40}k tokens, second half", bench.milliseconds(late))
    warm = [memory for turn, memory in model.samples if turn > n // 10] or [memory for _, memory in model.samples]
    if warm:
        shown = ", ".join(f"{memory / 1024:.1f}" for _, memory in model.samples[:: max(1, len(model.samples) // 10)])
        bench.row("RSS of the worker, MiB, over the run", shown)
        bench.row("RSS after warm-up, MiB", f"min {min(warm) / 1024:.1f}, max {max(warm) / 1024:.1f}")
    workers = events[-1].get("workers", []) if events else []
    bench.row("the worker's end", str(workers[0].get("exit_reason") if workers else None))


if __name__ == "__main__":
    main()
