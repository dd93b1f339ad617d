"""swarm against a small real model on this machine; see run.sh.

    check.py SWARM_BIN_DIR [--minutes N]

Asserts on the protocol only, never on what the model says: it is far too small to do the work.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).parent
# Silence of the model's server before its first byte is its reading of the prompt, slow on a busy machine.
PATIENCE = 900


def get(url: str):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return json.load(answer)


@contextlib.contextmanager
def service(*command: str):
    """A program that prints its address and ends with its standard input."""
    log = tempfile.TemporaryFile("w+")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        address = process.stdout.readline().strip()
        if not address:
            log.seek(0)
            sys.exit(f"{command[1]} did not start:\n{log.read()[-2000:]}")
        yield address
    finally:
        process.stdin.close()
        process.terminate()
        process.wait()


class Findings:
    def __init__(self):
        self.passed = self.failed = 0

    def expect(self, what: str, holds: bool, detail: object = "") -> None:
        self.passed, self.failed = self.passed + bool(holds), self.failed + (not holds)
        print(f"  {'ok  ' if holds else 'FAIL'} {what}{f': {detail}' if detail != '' else ''}", flush=True)


# ------------------------------------------------------------------------------- part 1: the wire


def stream(server: str, stop_after: int | None = None, max_tokens: int = 24) -> tuple[int, dict | None]:
    """Streams an answer; hangs up after some pieces. Gives pieces and usage."""
    at = urllib.parse.urlsplit(server)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=PATIENCE)
    body = {
        "model": "smollm2",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": "Tell me about the sea."}],
    }
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    pieces, usage = 0, None
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        usage = chunk.get("usage") or usage
        pieces += sum(bool(choice["delta"].get("content")) for choice in chunk["choices"])
        if stop_after and pieces >= stop_after:
            break
    connection.close()
    return pieces, usage


def is_idle(server: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(slot["is_processing"] for slot in get(server + "/slots")):
            return True
        time.sleep(0.2)
    return False


def status_of(server: str, body: object) -> tuple[int, dict]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(server + "/v1/chat/completions", data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def wire(server: str, findings: Findings) -> None:
    print("the model's server itself")
    pieces, usage = stream(server)
    findings.expect("an answer streams in pieces", pieces > 1, pieces)
    findings.expect("its usage comes with it", bool(usage) and usage["completion_tokens"] > 0, usage)
    cancelled, _ = stream(server, stop_after=3, max_tokens=2000)
    findings.expect("a request that is hung up on stops", is_idle(server, 20), f"after {cancelled} pieces")
    status, body = status_of(server, {"model": "smollm2", "messages": "no list"})
    findings.expect("a malformed request is refused", status == 400, body["error"].get("message"))
    long = [{"role": "user", "content": "hello " * 9000}]
    status, body = status_of(server, {"model": "smollm2", "messages": long})
    findings.expect("a prompt over the window is refused", status == 400, body["error"].get("type"))


# ------------------------------------------------------------------------------- part 2: swarm


class Swarm:
    """A home, a repository, and the programs under test."""

    def __init__(self, bin_dir: pathlib.Path, place: pathlib.Path, base_url: str):
        self.program = str(bin_dir / "swarm")
        self.repo = place / "repo"
        self.environment = {
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "HOME": str(place / "user"),
            "SWARM_HOME": str(place / "home"),
            "SWARM_COORDINATOR_MAX_TURNS": "6",
            "OPENAI_BASE_URL": base_url,
            "LANG": "C.UTF-8",
        }
        self.repo.mkdir(parents=True)
        (place / "user").mkdir()
        (self.repo / "README.md").write_text("A small repository.\n")
        self.git("init", "-q", "-b", "main")
        self.git("add", ".")
        self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "start")

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.repo), *arguments]
        return subprocess.run(command, check=True, text=True, capture_output=True, env=self.environment).stdout

    def start(self, prompt: str) -> subprocess.Popen:
        command = [self.program, "run", "--model", "openai/smollm2", "--json", "--unattended", "--max-turns", "6", prompt]
        return subprocess.Popen(
            command, cwd=self.repo, env=self.environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def follow(self, process: subprocess.Popen, seconds: float, stop_when=None) -> list[dict]:
        """All events. Interrupts the run when the time is over or an event asks for it, and once more later."""
        def interrupt() -> None:
            if process.poll() is None:
                self.interrupted = True
                process.send_signal(signal.SIGINT)

        self.interrupted = False
        timers = [threading.Timer(seconds, interrupt), threading.Timer(seconds + 90, interrupt)]
        for timer in timers:
            timer.daemon = True
            timer.start()
        events, stopped = [], False
        for line in process.stdout:
            events.append(json.loads(line))
            if stop_when and not stopped and stop_when(events[-1]):
                stopped = True
                interrupt()
        process.wait()
        for timer in timers:
            timer.cancel()
        return events

    def stop(self) -> None:
        subprocess.run([self.program, "serve", "--stop", "--workers"], cwd=self.repo, env=self.environment, capture_output=True)


def is_text(event: dict) -> bool:
    return event.get("kind") == "live" and event["data"].get("live") == "text_delta"


def result_of(events: list[dict]) -> dict:
    return events[-1] if events and events[-1].get("kind") == "session.result" else {}


def direct(swarm: Swarm, server: str, seconds: float, findings: Findings) -> None:
    print("swarm, straight to that server")
    process = swarm.start("Say hello in one sentence.")
    events = swarm.follow(process, seconds)
    result = result_of(events)
    deltas = sum(map(is_text, events))
    findings.expect("a run ends with a verdict", bool(result.get("verdict")), result.get("verdict") or events[-1:])
    findings.expect("the words stream", deltas > 1, f"{deltas} pieces")
    findings.expect("the usage is the server's", (result.get("usage") or {}).get("output_tokens", 0) > 0, result.get("usage"))

    process = swarm.start("Write a very long story about the sea.")
    events = swarm.follow(process, seconds, stop_when=is_text)
    findings.expect("an interrupt while words stream ends the run with 130", process.returncode == 130, process.returncode)
    findings.expect("the server works on nothing then", is_idle(server, 20))

    process = swarm.start("hello " * 9000)
    events = swarm.follow(process, seconds)
    result = result_of(events)
    findings.expect("a prompt over the window is an honest failure", result.get("verdict") == "failed", result.get("exit_reason"))


def through_shim(swarm: Swarm, shim: str, seconds: float, findings: Findings) -> None:
    print("swarm, through the shim that makes tool calls")
    process = swarm.start("Create the file hello.txt with one line: hello")
    events = swarm.follow(process, seconds)
    result = result_of(events)
    counts = get(shim + "/shim/counts")
    workers = result.get("workers") or []
    for name, number in counts.items():
        print(f"       {name.replace('_', ' ')}: {number}")
    print(f"       workers started: {len(workers)}")
    for worker in workers:
        print(f"       {worker['id']}: {worker['status']}, {worker['exit_reason']}, {worker['turns']} turns, {worker['commits']} commits")
    findings.expect("a run ends with a verdict", result.get("verdict") in ("complete", "degraded", "failed"), result.get("verdict") or events[-1:])
    # The time may run out on a busy machine; the session is stopped then, and that has a code of its own.
    code = 130 if swarm.interrupted else 0 if result.get("verdict") == "complete" else 1
    findings.expect("its exit code is the verdict's", process.returncode == code, process.returncode)
    findings.expect("requests went through the shim", counts["with_tools"] > 0, counts["with_tools"])
    swarm.git("fsck", "--strict")
    findings.expect("git finds the repository whole", True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=10, help="limit of each run of swarm")
    arguments = parser.parse_args()
    findings = Findings()
    place = pathlib.Path(tempfile.mkdtemp(prefix="swarm-real-"))
    swarms = []
    try:
        with service(sys.executable, str(HERE / "llama_server.py")) as server:
            wire(server, findings)
            bin_dir = arguments.bin_dir.resolve()
            swarms.append(Swarm(bin_dir, place / "direct", server + "/v1"))
            direct(swarms[-1], server, arguments.minutes * 60, findings)
            with service(sys.executable, str(HERE / "shim.py"), server) as shim:
                swarms.append(Swarm(bin_dir, place / "shim", shim + "/v1"))
                through_shim(swarms[-1], shim, arguments.minutes * 60, findings)
                swarms[-1].stop()
    finally:
        for swarm in swarms:
            swarm.stop()
        shutil.rmtree(place, ignore_errors=True)
    print(f"{findings.passed} passed, {findings.failed} failed")
    return 1 if findings.failed else 0


if __name__ == "__main__":
    sys.exit(main())
