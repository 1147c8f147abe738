"""A headless Chromium that opens pages, runs JavaScript in them and takes screenshots.

One browser serves all tests of a process. It is driven over a pipe by the Chrome DevTools Protocol, which needs no
further package and no port.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed; use apt-get install chromium to run the browser tests"
)

_PATIENCE = 60
"""Seconds to wait for an answer."""
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_COLLECT_FAULTS = """
window.faults = [];
window.addEventListener("error", (e) => faults.push("error: " + e.message));
window.addEventListener("unhandledrejection", (e) => faults.push("rejected: " + e.reason));
document.addEventListener("securitypolicyviolation", (e) => faults.push("policy: " + e.blockedURI + " " + e.violatedDirective));
for (const level of ["error", "warn"]) console[level] = (...words) => faults.push(level + ": " + words.join(" "));
"""
_FIGURES_DRAWN = "document.documentElement.dataset.drawn"
_QUESTIONS = """(async () => {
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const settled = async () => { do await pause(20); while (!(%s)); };
  const answer = {};
  try {
    await settled();
    %s
  } catch (error) { faults.push("probe: " + error); }
  answer.faults = faults;
  return JSON.stringify(answer);
})()"""


class Browser:
    """A Chromium process with one tab."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        commands, self._commands = os.pipe()
        self._replies, replies = os.pipe()

        def connect() -> None:  # Chromium reads from descriptor 3 and writes to 4
            kept = [os.dup(commands), os.dup(replies)]
            os.dup2(kept[0], 3)
            os.dup2(kept[1], 4)

        self._process = subprocess.Popen(
            [CHROMIUM, *_OPTIONS, f"--user-data-dir={self._profile}", "about:blank"],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(replies)
        self._number, self._unread, self._session = 0, b"", None
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Network.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=_COLLECT_FAULTS)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") == self._number:
                assert "error" not in reply, f"{method}: {reply['error']}"
                return reply["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._replies], [], [], _PATIENCE)
            assert ready, f"Chromium has not answered for {_PATIENCE} s"
            block = os.read(self._replies, 1 << 20)
            assert block, "Chromium has ended"
            self._unread += block
        block, self._unread = self._unread.split(b"\0", 1)
        message = json.loads(block)
        if message.get("method", "").startswith("Network."):
            self._events.append(message)
        return message

    def open(self, page: Path, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """Open a page in a window of the given size."""
        phone = width < 640
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while True:
            event = self._read()
            if event.get("method") == "Page.loadEventFired":
                return

    def ask(self, questions: str, ready: str = _FIGURES_DRAWN) -> dict[str, Any]:
        """Run JavaScript once the condition `ready` holds; return what it puts into `answer`, and the page's errors."""
        expression = _QUESTIONS % (ready, questions)
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return json.loads(found["result"]["value"])

    def bad_requests(self) -> list[str]:
        """Return the requests of the open page that have failed or that need the network."""
        sent = [event["params"] for event in self._events if event["method"] == "Network.requestWillBeSent"]
        failed = [event["params"] for event in self._events if event["method"] == "Network.loadingFailed"]
        urls = {one["requestId"]: one["request"]["url"] for one in sent}
        remote = [f"needs the network: {url}" for url in urls.values() if url.startswith(("http:", "https:"))]
        return remote + [f"{one['errorText']}: {urls.get(one['requestId'])}" for one in failed]

    def screenshot(self, file: Path, height: int | None = None) -> None:
        """Write what the window shows, or its first `height` pixels of the page, as PNG."""
        options: dict[str, Any] = {}
        if height is not None:
            width = self.call("Page.getLayoutMetrics")["cssLayoutViewport"]["clientWidth"]
            clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
            options = {"captureBeyondViewport": True, "clip": clip}
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **options)["data"]))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._commands)
        os.close(self._replies)
        shutil.rmtree(self._profile, ignore_errors=True)


_shared: list[Browser] = []


def browser() -> Browser:
    """Return the browser of this process; it ends with the process."""
    if not _shared:
        _shared.append(Browser())
        atexit.register(_shared[0].close)
    return _shared[0]


def ask(page: Path, questions: str, width: int = 1280, height: int = 800, dark: bool = False) -> dict[str, Any]:
    """Open a page and run JavaScript in it; see `Browser.ask`."""
    one = browser()
    one.open(page, width, height, dark)
    return one.ask(questions)


def seconds_to_draw(page: Path) -> float:
    """Return the time from the start of loading to the last figure."""
    return float(ask(page, "answer.drawn = document.documentElement.dataset.drawn;")["drawn"]) / 1000
