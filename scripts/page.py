#!/usr/bin/env python3
"""Takes a picture of a page with headless Chromium, over its debugging pipe. Standard library only.

    page.py URL OUT.png [--wait-for TEXT] [--width 1440] [--height 900] [--scale 1] [--theme dark|light]
"""

import argparse
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

FLAGS = [
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
]


class Browser:
    """Chromium, spoken to over file descriptors 3 and 4: JSON with a NUL behind each message."""

    def __init__(self, profile: str):
        program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if not program:
            sys.exit("page.py: chromium is missing")
        to_read, self.to = os.pipe()
        self.source, to_write = os.pipe()
        # Its own sandbox needs another user than root.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []

        def place_pipes() -> None:
            # Copies first: one of them may be 3 or 4 already.
            copies = os.dup(to_read), os.dup(to_write)
            os.dup2(copies[0], 3)
            os.dup2(copies[1], 4)

        self.process = subprocess.Popen(
            [program, *FLAGS, *sandbox, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=place_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.number = b"", 0

    def call(self, method: str, session: str | None = None, **params) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next_message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"page.py: {method}: {answer['error']['message']}")
                return answer["result"]

    def next_message(self) -> dict:
        while b"\0" not in self.buffer:
            chunk = os.read(self.source, 1 << 20)
            if not chunk:
                sys.exit("page.py: chromium ended")
            self.buffer += chunk
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--wait-for", default="", help="a text of the page")
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--theme", choices=["dark", "light"], default="dark")
    parser.add_argument("--seconds", type=float, default=30, help="how long the text may take")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            size = {"width": arguments.width, "height": arguments.height, "deviceScaleFactor": arguments.scale}
            browser.call("Emulation.setDeviceMetricsOverride", session, mobile=False, **size)
            theme = [{"name": "prefers-color-scheme", "value": arguments.theme}]
            browser.call("Emulation.setEmulatedMedia", session, features=theme)
            browser.call("Page.navigate", session, url=arguments.url)
            deadline = time.monotonic() + arguments.seconds
            text = ""
            while time.monotonic() < deadline:
                # Fonts and what streams get a moment more below.
                shown = browser.call("Runtime.evaluate", session, expression="document.body ? document.body.innerText : ''")
                text = shown["result"].get("value", "")
                if text and arguments.wait_for in text:
                    break
                time.sleep(0.1)
            else:
                sys.exit(f"page.py: {arguments.wait_for!r} did not appear; the page says:\n{text[:1000]}")
            time.sleep(0.7)
            picture = browser.call("Page.captureScreenshot", session, format="png")["data"]
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_bytes(base64.b64decode(picture))
        finally:
            browser.process.terminate()
            browser.process.wait()


if __name__ == "__main__":
    main()
