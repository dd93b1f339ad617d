#!/usr/bin/env python3
"""Prints the numbers of the harness; asserts nothing. Standard library only.

    cargo build --release -p coordinator -p worker --bins
    tests/bench/bench.py [--bin target/release] [--turns 1000] [--files 10000] [--quick]

Real binaries, a model played on loopback (model.py). Times of a turn are from the last byte of a response to the first
byte of the next request, a file read between them. On a busy machine all of it grows.
"""

import argparse
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from model import Model  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
GIT_IDENTITY = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def milliseconds(values: list[float]) -> str:
    if not values:
        return "no values"
    shown = [percentile(values, 0.5), percentile(values, 0.99), max(values)]
    p50, p99, worst = (f"{1000 * value:.2f}" for value in shown)
    return f"p50 {p50} ms, p99 {p99} ms, max {worst} ms ({len(values)})"


def row(what: str, figure: str) -> None:
    print(f"  {what:<58} {figure}", flush=True)


class Place:
    """A repository and a home of their own."""

    def __init__(self, bin_dir: pathlib.Path, n_files: int):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="swarm-bench-"))
        self.repo = self.root / "repo"
        self.program = str(bin_dir / "swarm")
        self.environment = {
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "HOME": str(self.root / "user"),
            "SWARM_HOME": str(self.root / "home"),
            "ANTHROPIC_API_KEY": "bench",
            "SWARM_MODEL": "anthropic/bench",
            "SWARM_CONTEXT_WINDOW": "10000000",
            "SWARM_WORKER_MAX_TURNS": "100000",
            "LANG": "C.UTF-8",
        }
        (self.root / "user").mkdir()
        for number in range(n_files):
            path = self.repo / f"d{number % 10}" / f"f{number:05}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"file {number}\n" + "a line of text to read\n" * 20)
        self.git("init", "-q", "-b", "main")
        self.git("add", ".")
        self.git(*GIT_IDENTITY, "commit", "-q", "-m", "start")

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.repo), *arguments]
        return subprocess.run(command, check=True, text=True, capture_output=True, env=self.environment).stdout

    def run(self, model: Model, on_held=None) -> list[dict]:
        """One session to its end; its events."""
        command = [self.program, "run", "--json", "--unattended", "--max-workers", "32", "bench"]
        environment = {**self.environment, "ANTHROPIC_BASE_URL": model.url}
        process = subprocess.Popen(
            command, cwd=self.repo, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        events = []
        while line := process.stdout.readline():
            events.append(json.loads(line))
            if on_held and events[-1].get("kind") == "worker.process":
                for _ in range(model.n_workers):
                    model.held.acquire(timeout=60)
                on_held(events)
                on_held = None
        errors = process.stderr.read()
        process.wait()
        model.close()
        result = events[-1] if events else {}
        if result.get("verdict") != "complete":
            print(f"the run did not complete: {json.dumps(result)[:600]}\n{errors[-2000:]}", file=sys.stderr)
        return events

    def server(self) -> int:
        return json.loads((self.root / "home" / "server.json").read_text())["process"]["pid"]

    def keepers(self) -> list[int]:
        """They are the server's children, and workers are theirs."""
        return children(self.server())

    def workers(self) -> list[int]:
        return [worker for keeper in self.keepers() for worker in children(keeper)]

    def close(self) -> None:
        command = [self.program, "serve", "--stop", "--workers"]
        subprocess.run(command, cwd=self.repo, env=self.environment, capture_output=True)
        shutil.rmtree(self.root, ignore_errors=True)


def at(event: dict) -> float:
    return datetime.datetime.fromisoformat(event["at"].replace("Z", "+00:00")).timestamp()


def by_worker(events: list[dict], kind: str) -> dict[str, dict]:
    """The first event of a kind for each worker."""
    found: dict[str, dict] = {}
    for event in events:
        if event.get("kind") == kind:
            worker = event.get("worker_id") or event["spec"]["id"]
            found.setdefault(worker, event)
    return found


def pss_kib(pid: int) -> int | None:
    try:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None


def cpu_seconds(pid: int) -> float:
    """Of the process and all its threads; grows in steps of 10 ms."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    found = []
    # Children belong to the thread that made them.
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:
            pass
    return found


def mebibytes(values: list[int | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "not readable (run as root)"
    return f"{statistics.mean(known) / 1024:.1f} MiB mean, {max(known) / 1024:.1f} MiB max ({len(known)})"


def turns(bin_dir: pathlib.Path, n_turns: int) -> None:
    print(f"one worker, {n_turns} turns, a file read in each")
    place = Place(bin_dir, 1000)
    try:
        model = Model(1, n_turns)
        cpu: dict[int, float] = {}
        marks = [1, 20, max(20, n_turns - 100), n_turns]
        for mark in marks:
            model.at_turn[mark] = lambda mark=mark: cpu.setdefault(mark, sum(map(cpu_seconds, place.workers())))
        place.run(model)
        agent = model.agents[0]
        gaps = agent.gaps()
        row("response end to next request", milliseconds(gaps))
        for begin, end in zip(marks, marks[1:]):
            if end > begin and begin in cpu and end in cpu:
                each = 1000 * (cpu[end] - cpu[begin]) / (end - begin)
                row(f"  processor time a turn, turns {begin} to {end}", f"{each:.2f} ms")
        if n_turns > 200:
            row("  the first 20 turns", milliseconds(gaps[:20]))
            row("  the last 100 turns", milliseconds(gaps[-100:]))
        if agent.request_bytes:
            row("size of the last request", f"{agent.request_bytes[-1] / 1024:.0f} KiB")
    finally:
        place.close()


def many(bin_dir: pathlib.Path, n_workers: int, n_turns: int) -> None:
    print(f"{n_workers} workers at once, {n_turns} turns each")
    place = Place(bin_dir, 1000)
    figures: dict[str, list[int | None]] = {}

    def measure(_events: list[dict]) -> None:
        time.sleep(0.5)
        figures["workers"] = [pss_kib(worker) for worker in place.workers()]
        figures["keepers"] = [pss_kib(keeper) for keeper in place.keepers()]
        figures["server"] = [pss_kib(place.server())]

    try:
        model = Model(n_workers, n_turns, hold_turn=2, hold_seconds=3.0)
        events = place.run(model, on_held=measure)
        row("PSS of a worker, idle after its first turn", mebibytes(figures.get("workers", [])))
        row("PSS of a keeper", mebibytes(figures.get("keepers", [])))
        row("PSS of the server", mebibytes(figures.get("server", [])))
        # Each is held at its second request: what follows the hold is warm.
        gaps = [gap for agent in model.agents.values() for gap in agent.gaps()[2:]]
        row("response end to next request, per agent turn", milliseconds(gaps))
        spawn_figures(events, model)
    finally:
        place.close()


def spawn_figures(events: list[dict], model: Model) -> None:
    spawned, made = by_worker(events, "worker.spawned"), by_worker(events, "worker.worktree")
    whole, apart, trees = [], [], []
    for worker, event in spawned.items():
        number = int(event["spec"]["description"].split()[-1])
        first = model.agents[number].first_wall
        if not first:
            continue
        whole.append(first - at(event))
        if worker in made:
            trees.append(at(made[worker]) - at(event))
            apart.append(first - at(made[worker]))
    row("spawn to first request, worktree included", milliseconds(whole))
    row("worktree ready to first request", milliseconds(apart))
    row("spawn to worktree ready", milliseconds(trees))


def alone(bin_dir: pathlib.Path, rounds: int) -> None:
    print("one worker at a time, the server warm")
    place = Place(bin_dir, 1000)
    try:
        whole, apart = [], []
        for round_number in range(rounds + 1):
            model = Model(1, 1)
            events = place.run(model)
            spawned, made = by_worker(events, "worker.spawned"), by_worker(events, "worker.worktree")
            if round_number == 0 or not spawned or not made:
                continue
            first = model.agents[0].first_wall
            whole.append(first - at(*spawned.values()))
            apart.append(first - at(*made.values()))
        row("spawn to first request, worktree included", milliseconds(whole))
        row("worktree ready to first request", milliseconds(apart))
    finally:
        place.close()


def worktrees(bin_dir: pathlib.Path, n_files: int, rounds: int) -> None:
    print(f"worktrees of a repository of {n_files} files")
    place = Place(bin_dir, n_files)
    try:
        plain, ours = [], []
        for number in range(rounds):
            path = place.root / f"plain-{number}"
            began = time.perf_counter()
            place.git("worktree", "add", "-q", "-b", f"plain-{number}", str(path))
            plain.append(time.perf_counter() - began)
            place.git("worktree", "remove", "--force", str(path))
            events = place.run(Model(1, 0))
            spawned, made = by_worker(events, "worker.spawned"), by_worker(events, "worker.worktree")
            if spawned and made:
                ours.append(at(*made.values()) - at(*spawned.values()))
        row("git worktree add", milliseconds(plain))
        row("swarm: spawned to worktree ready", milliseconds(ours))
        if ours:
            row("ratio of the medians", f"{percentile(ours, 0.5) / percentile(plain, 0.5):.2f}")
    finally:
        place.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, help="where swarm and swarm-worker are")
    parser.add_argument("--turns", type=int, default=1000, help="turns of the long run")
    parser.add_argument("--files", type=int, default=10_000, help="files of the large repository")
    parser.add_argument("--quick", action="store_true", help="fewer turns, files and rounds")
    arguments = parser.parse_args()
    bin_dir = arguments.bin
    if bin_dir is None:
        release = ROOT / "target" / "release"
        bin_dir = release if (release / "swarm").exists() else ROOT / "target" / "debug"
    bin_dir = bin_dir.resolve()
    for program in ("swarm", "swarm-worker"):
        if not (bin_dir / program).exists():
            sys.exit(f"{bin_dir / program} is missing: cargo build --release -p coordinator -p worker --bins")
    load = os.getloadavg()[0]
    print(f"binaries: {bin_dir.name} build; {os.cpu_count()} cores, load {load:.1f}; {subprocess.getoutput('git --version')}")
    if arguments.quick:
        arguments.turns, arguments.files = 200, 1000
    turns(bin_dir, 20)
    turns(bin_dir, arguments.turns)
    alone(bin_dir, 3 if arguments.quick else 10)
    many(bin_dir, 8, 20 if arguments.quick else 50)
    worktrees(bin_dir, 1000, 3 if arguments.quick else 5)
    if arguments.files > 1000:
        worktrees(bin_dir, arguments.files, 3 if arguments.quick else 5)


if __name__ == "__main__":
    main()
