"""The model of the benchmark: Anthropic Messages over loopback, with the time of every request and response.

It parses nothing but which agent asks, so that what is measured is the harness: the moment a request's first bytes
arrive, and the moment a response is handed to the kernel. Coordinators are told by their tools,
workers by `bench worker N` in their prompt.
"""

import json
import re
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

COORDINATOR = re.compile(rb'"name"\s*:\s*"TaskStop"')
WORKER = re.compile(rb"bench worker (\d+)")


@dataclass
class Agent:
    """What one worker's requests looked like."""

    arrivals: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    request_bytes: list[int] = field(default_factory=list)
    first_wall: float = 0.0

    def gaps(self) -> list[float]:
        """Seconds from the end of a response to the next request."""
        return [arrival - end for arrival, end in zip(self.arrivals[1:], self.ends)]


class Model:
    def __init__(self, n_workers: int, n_turns: int, hold_turn: int = 0, hold_seconds: float = 0.0):
        self.n_workers, self.n_turns = n_workers, n_turns
        self.hold_turn, self.hold_seconds = hold_turn, hold_seconds
        self.held = threading.Semaphore(0)
        # Called at the request of a turn, before it is answered.
        self.at_turn: dict[int, object] = {}
        self.agents: dict[int, Agent] = {number: Agent() for number in range(n_workers)}
        self.spawn_end_wall = 0.0
        self.coordinator_turns = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        # Eight agents share this process: threads change over often enough not to distort milliseconds.
        sys.setswitchinterval(0.0002)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        self.listener.close()

    def serve(self, connection: socket.socket) -> None:
        rest = b""
        try:
            while True:
                arrived, data = None, rest
                while b"\r\n\r\n" not in data:
                    chunk = connection.recv(1 << 16)
                    if not chunk:
                        return
                    arrived = arrived or time.perf_counter()
                    data += chunk
                arrived_wall = time.time()
                head, _, body = data.partition(b"\r\n\r\n")
                length = int(re.search(rb"(?i)content-length: *(\d+)", head)[1])
                parts = [body]
                missing = length - len(body)
                while missing > 0:
                    chunk = connection.recv(1 << 20)
                    if not chunk:
                        return
                    parts.append(chunk)
                    missing -= len(chunk)
                body = b"".join(parts)
                body, rest = body[:length], body[length:]
                self.answer(connection, body, arrived or time.perf_counter(), arrived_wall)
        except (ConnectionError, TimeoutError):
            return

    def answer(self, connection: socket.socket, body: bytes, arrived: float, arrived_wall: float) -> None:
        if COORDINATOR.search(body):
            first = self.coordinator_turns == 0
            self.coordinator_turns += 1
            if first:
                calls = [
                    ("Agent", {"description": f"bench {n}", "prompt": f"bench worker {n}: read files.", "expects": "report"})
                    for n in range(self.n_workers)
                ]
                connection.sendall(response([("text", "Started.")] + [("tool", call) for call in calls]))
                self.spawn_end_wall = time.time()
            else:
                connection.sendall(response([("text", "Noted.")]))
            return
        found = WORKER.search(body)
        if not found:
            connection.sendall(response([("text", "A summary.")]))
            return
        agent = self.agents[int(found[1])]
        agent.arrivals.append(arrived)
        agent.request_bytes.append(len(body))
        agent.first_wall = agent.first_wall or arrived_wall
        turn = len(agent.arrivals)
        if turn in self.at_turn:
            self.at_turn[turn]()
        if turn == self.hold_turn:
            self.held.release()
            time.sleep(self.hold_seconds)
        if turn <= self.n_turns:
            name = f"d{turn % 10}/f{turn % 1000:05}.txt"
            data = response([("tool", ("Read", {"file_path": name}))])
        else:
            data = response([("text", "All read.")])
        # Before the call: the agent may act before this thread runs again. What sending takes counts for the agent.
        agent.ends.append(time.perf_counter())
        connection.sendall(data)


_next_id = iter(range(1, 1 << 60))


def response(parts: list, input_tokens: int = 1000) -> bytes:
    """A whole streamed answer as HTTP bytes."""
    usage = {"input_tokens": input_tokens, "output_tokens": 30, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    message = {
        "id": f"msg_{next(_next_id)}", "type": "message", "role": "assistant", "model": "bench", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }
    events = [{"type": "message_start", "message": message}]
    for index, (kind, what) in enumerate(parts):
        if kind == "text":
            block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": what}
        else:
            name, arguments = what
            block = {"type": "tool_use", "id": f"toolu_{next(_next_id):024}", "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    stop = "tool_use" if any(kind == "tool" for kind, _ in parts) else "end_turn"
    events.append({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 30}})
    events.append({"type": "message_stop"})
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
