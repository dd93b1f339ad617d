"""Tool calls for a model that makes none: a shim between swarm and an OpenAI-compatible server.

A request with `tools` becomes a request for one JSON object under a grammar (`response_format`: one of the tools, or
"final"), after three example turns; the object goes back as `tool_calls`, or as text. The first answer of a
conversation has to be a call, as with `tool_choice: required`. Requests without tools pass as they are. This tests the wire, not the model: the prompt is cut to what a model of 135M parameters can follow.

    shim.py UPSTREAM        prints its address; GET /shim/counts; ends with its standard input
"""

import http.client
import json
import select
import socket
import sys
import threading
import time
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TASK_CHARS = 600
RESULT_CHARS = 400
MAX_TOKENS = 220
TEXT_CHARS = 160
KEEP_ALIVE_SECONDS = 5

counts = dict.fromkeys(
    ("requests", "with_tools", "streamed_tokens", "tool_calls", "final_texts", "cut_objects", "cancelled", "refused"), 0
)
lock = threading.Lock()
upstream = urllib.parse.urlsplit("http://127.0.0.1:1")

COORDINATOR = [
    ("Task: Add a file hello.txt\nResult: running", "final", {"text": "One worker adds hello.txt."}),
    ("Task: Add a file hello.txt\nResult: completed", "final", {"text": "The worker added hello.txt."}),
    ("Task: Add a file bye.txt", "Agent", {"description": "Add bye.txt", "prompt": "Create bye.txt with the line bye."}),
]
WORKER = [
    ("Task: Create notes.txt with the word test\nResult: written", "final", {"text": "notes.txt has the word test."}),
    ("Task: Say which files there are", "Bash", {"command": "ls"}),
    ("Task: Create notes.txt with the word test", "Write", {"file_path": "notes.txt", "content": "test\n"}),
]


class ClientGone(Exception):
    pass


def count(name: str, by: int = 1) -> None:
    with lock:
        counts[name] += by


def small_schema(schema: dict) -> dict:
    """What must be given, with short texts: a small model fills in all that it may."""
    kind = schema.get("type", "string")
    if kind == "object":
        required = schema.get("required", [])
        properties = {name: small_schema(schema["properties"][name]) for name in required}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        return {"type": "array", "items": small_schema(schema.get("items", {})), "maxItems": 2}
    if "enum" in schema:
        return {"enum": schema["enum"]}
    return {"type": "string", "maxLength": TEXT_CHARS} if kind == "string" else {"type": kind}


def call_schema(tools: list, may_end: bool) -> dict:
    final = {"name": "final", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}
    one_of = [
        {
            "type": "object",
            "properties": {"tool": {"const": tool["name"]}, "arguments": small_schema(tool["parameters"])},
            "required": ["tool", "arguments"],
            "additionalProperties": False,
        }
        for tool in [*tools, *([final] if may_end else [])]
    ]
    return {"oneOf": one_of}


def text_of(message: dict) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def small_request(body: dict) -> dict:
    tools = [tool["function"] for tool in body["tools"]]
    names = {tool["name"] for tool in tools}
    examples = COORDINATOR if "Agent" in names else WORKER
    said = [message for message in body["messages"] if message["role"] in ("user", "tool")]
    # The task stands at the end of the first message, behind surroundings and memory.
    now = "Task: " + text_of(said[0]).strip()[-TASK_CHARS:]
    if len(said) > 1:
        now += "\nResult: " + text_of(said[-1]).strip()[:RESULT_CHARS]
    system = 'Answer with one JSON object {"tool": ..., "arguments": ...}. Tools: ' + ", ".join(sorted(names)) + ", final."
    messages = [{"role": "system", "content": system}]
    for user, tool, arguments in examples:
        messages.append({"role": "user", "content": user})
        messages.append({"role": "assistant", "content": json.dumps({"tool": tool, "arguments": arguments})})
    messages.append({"role": "user", "content": now})
    schema = {"name": "call", "schema": call_schema(tools, len(said) > 1)}
    return {
        "model": body["model"],
        "messages": messages,
        "max_tokens": MAX_TOKENS,
        "temperature": 0.2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": schema},
    }


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/shim/counts":
            with lock:
                self.answer(200, json.dumps(counts).encode())
        else:
            self.forward("GET", None)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        count("requests")
        try:
            request = json.loads(body)
            if self.path.endswith("/chat/completions") and request.get("tools"):
                count("with_tools")
                self.call(request)
            else:
                self.forward("POST", body)
        except (ClientGone, BrokenPipeError, ConnectionResetError):
            count("cancelled")

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def is_gone(self) -> bool:
        """The client hung up: it sends nothing after its request, so readable means closed."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def ask(self, method: str, body):
        connection = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=900)
        path = self.path if self.path.startswith("/v1") else "/v1" + self.path
        connection.request(method, path, body, {"content-type": "application/json"})
        return connection, connection.getresponse()

    def forward(self, method: str, body) -> None:
        connection, response = self.ask(method, body)
        try:
            self.send_response(response.status)
            self.send_header("content-type", response.getheader("content-type", "application/json"))
            self.end_headers()
            while chunk := response.read1(65536):
                if self.is_gone():
                    raise ClientGone
                count("streamed_tokens", chunk.count(b'"delta":{"content"'))
                self.wfile.write(chunk)
        finally:
            connection.close()

    def call(self, request: dict) -> None:
        streams = bool(request.get("stream"))
        connection, response = self.ask("POST", json.dumps(small_request(request)))
        try:
            if response.status != 200:
                count("refused")
                self.answer(response.status, response.read())
                return
            if streams:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
            text, finish, usage = self.collect(response, streams)
        finally:
            connection.close()
        deltas, reason = self.said(text, finish)
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": request["model"]}
        if streams:
            self.stream(head, deltas, reason, usage)
        else:
            self.whole(head, deltas, reason, usage)

    def collect(self, response, streams: bool):
        text, finish, usage, quiet_since = "", "stop", None, time.monotonic()
        for line in response:
            if self.is_gone():
                raise ClientGone
            if streams and time.monotonic() - quiet_since > KEEP_ALIVE_SECONDS:
                self.wfile.write(b": the model writes\n\n")
                quiet_since = time.monotonic()
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", []):
                piece = choice["delta"].get("content") or ""
                text += piece
                count("streamed_tokens", bool(piece))
                finish = choice.get("finish_reason") or finish
        return text, finish, usage

    def said(self, text: str, finish: str):
        try:
            action = json.loads(text)
        except ValueError:
            # The output limit cut the object; a real server would send the part it has.
            count("cut_objects")
            return [{"content": text}], "length"
        if action["tool"] == "final":
            count("final_texts")
            return [{"content": action["arguments"]["text"]}], "stop"
        count("tool_calls")
        arguments = json.dumps(action["arguments"])
        half = len(arguments) // 2
        call = {"index": 0, "id": f"call_{uuid.uuid4().hex[:12]}", "type": "function"}
        first = {**call, "function": {"name": action["tool"], "arguments": ""}}
        rest = [{"index": 0, "function": {"arguments": part}} for part in (arguments[:half], arguments[half:])]
        return [{"tool_calls": [part]} for part in (first, *rest)], "tool_calls"

    def stream(self, head: dict, deltas: list, reason: str, usage) -> None:
        head = {**head, "object": "chat.completion.chunk"}
        choices = [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": reason})
        chunks = [{**head, "choices": [choice]} for choice in choices]
        chunks.append({**head, "choices": [], "usage": usage})
        for chunk in chunks:
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def whole(self, head: dict, deltas: list, reason: str, usage) -> None:
        message = {"role": "assistant", "content": None}
        if reason == "tool_calls":
            call = dict(deltas[0]["tool_calls"][0])
            call.pop("index")
            arguments = "".join(delta["tool_calls"][0]["function"]["arguments"] for delta in deltas)
            call["function"] = {"name": call["function"]["name"], "arguments": arguments}
            message["tool_calls"] = [call]
        else:
            message["content"] = deltas[0]["content"]
        choice = {"index": 0, "message": message, "finish_reason": reason}
        body = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        self.answer(200, json.dumps(body).encode())


def main() -> None:
    global upstream
    upstream = urllib.parse.urlsplit(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
