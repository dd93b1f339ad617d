"""A language server for tests: knows `def NAME` and uses of NAME, and fails in the way its first argument says."""

import json
import os
import re
import sys
import time
from urllib.parse import unquote, urlparse

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
files = {}


def send(message):
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    sys.stdout.buffer.flush()


def read():
    length = 0
    while line := sys.stdin.buffer.readline().strip():
        name, value = line.split(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return json.loads(sys.stdin.buffer.read(length)) if length else None


def text_of(uri):
    if uri not in files:
        with open(unquote(urlparse(uri).path), encoding="utf-8") as file:
            files[uri] = file.read()
    return files[uri]


def project():
    """Every file of the project, the hidden one, too."""
    root = os.getcwd()
    return [f"file://{root}/{name}" for name in sorted(os.listdir(root)) if name.endswith(".toy")]


def at(line, start, end):
    return {"start": {"line": line, "character": start}, "end": {"line": line, "character": end}}


def units(text):
    return len(text.encode("utf-16-le")) // 2


def places(name, pattern):
    for uri in project():
        for number, line in enumerate(text_of(uri).splitlines()):
            for found in re.finditer(pattern % re.escape(name), line):
                start = units(line[: found.start("name")])
                yield {"uri": uri, "range": at(number, start, start + units(name))}


def word(params):
    line = text_of(params["textDocument"]["uri"]).splitlines()[params["position"]["line"]]
    before = line.encode("utf-16-le")[: params["position"]["character"] * 2].decode("utf-16-le")
    found = re.match(r"\w+", line[len(before) :])
    return found.group() if found else ""


def publish(uri, version):
    problems = []
    for number, line in enumerate(files[uri].splitlines()):
        if "BUG" in line:
            start = line.index("BUG")
            message = "a bug:" + line.split("BUG", 1)[1]
            problems.append({"range": at(number, start, start + 3), "severity": 1, "source": "toy", "code": "B1", "message": message})
    params = {"uri": uri, "version": version, "diagnostics": problems}
    send({"method": "textDocument/publishDiagnostics", "params": params})


if FAULT == "banner":
    print("Toy language server 1.0", flush=True)
if FAULT == "refuses":
    sys.exit("toy: no such component")
n_refused = 0
while message := read():
    method, params = message.get("method"), message.get("params", {})
    answer = None
    if method == "initialize":
        answer = {"capabilities": {"textDocumentSync": 1}}
        if FAULT == "child":
            os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1070")
    elif method == "initialized":
        send({"id": "c1", "method": "workspace/configuration", "params": {"items": [{}, {}]}})
    elif method == "textDocument/didOpen":
        document = params["textDocument"]
        files[document["uri"]] = document["text"]
        publish(document["uri"], document["version"])
    elif method == "textDocument/didChange":
        document = params["textDocument"]
        files[document["uri"]] = params["contentChanges"][0]["text"]
        publish(document["uri"], document["version"])
    elif method == "textDocument/didClose":
        files.pop(params["textDocument"]["uri"], None)
    elif method == "textDocument/definition":
        if FAULT == "dies":
            os._exit(3)
        if FAULT == "silent":
            time.sleep(1000)
        if FAULT == "lost":
            send({"id": message["id"], "error": {"code": -32603, "message": "the index is lost"}})
            continue
        answer = list(places(word(params), r"def (?P<name>%s)\b"))
    elif method == "textDocument/references":
        if FAULT == "behind" and n_refused < 2:
            n_refused += 1
            send({"id": message["id"], "error": {"code": -32801, "message": "content modified"}})
            send({"method": "$/progress", "params": {"token": 1, "value": {"kind": "report"}}})
            continue
        answer = list(places(word(params), r"\b(?P<name>%s)\b"))
    elif method == "textDocument/hover":
        answer = {"contents": {"kind": "markdown", "value": f"`{word(params)}` is a name"}}
    elif method == "textDocument/documentSymbol":
        lines = enumerate(text_of(params["textDocument"]["uri"]).splitlines())
        answer = [
            {"name": line.split()[1], "kind": 12, "range": at(number, 0, 9), "selectionRange": at(number, 4, 9)}
            for number, line in lines
            if line.startswith("def ")
        ]
    if "id" in message and method:
        send({"id": message["id"], "result": answer})
