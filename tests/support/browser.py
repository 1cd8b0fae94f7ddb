"""A headless Chromium, driven through its DevTools protocol over a pair of pipes.

It reports what a reader of a page would see go wrong: errors on the console, requests to a network,
and content that is wider than the window.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60.0
# Content wider than the window, outside of boxes that scroll by themselves.
TOO_WIDE = """
(() => {
  const wide = [];
  for (const element of document.querySelectorAll('body *')) {
    const box = element.getBoundingClientRect();
    if (box.right <= innerWidth + 1 || !box.width) continue;
    let inside = false;
    for (let up = element.parentElement; up; up = up.parentElement)
      inside ||= getComputedStyle(up).overflowX !== 'visible';
    if (!inside) wide.push(element.tagName + '.' + element.className + ' ' + Math.round(box.right));
  }
  const page = document.documentElement;
  if (page.scrollWidth > innerWidth) wide.push('page ' + page.scrollWidth);
  return wide.slice(0, 5);
})()
"""


def find_browser() -> str | None:
    """The path of a Chromium, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Seen:
    """What happened while a page was loaded and looked at."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)  # to anything but the page itself
    too_wide: list[str] = field(default_factory=list)


class Browser:
    """A context manager: one Chromium with one page."""

    def __enter__(self) -> Browser:
        program = find_browser()
        assert program is not None
        self._profile = tempfile.mkdtemp()
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        options = "--headless=new --no-sandbox --disable-gpu --no-first-run --hide-scrollbars"
        options += " --disable-dev-shm-usage --disable-background-networking"
        command = (
            f'exec "$0" {options} --remote-debugging-pipe --user-data-dir="$1" about:blank '
            f"3<&{to_browser} 4>&{from_browser}"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", command, program, self._profile],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._seen = Seen()
        self._url = ""
        self._session = ""
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def look(self, path: Path, width: int, *, scheme: str = "light", media: str = "screen") -> Seen:
        """Load a page in a window of this width, and return what went wrong."""
        self._seen = Seen()
        self._url = path.resolve().as_uri()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media=media, features=features)
        self._loaded = False
        self._call("Page.navigate", url=self._url)
        while not self._loaded:
            self._receive()
        answer = self._call("Runtime.evaluate", expression=TOO_WIDE, returnByValue=True)
        self._seen.too_wide = answer["result"]["value"]
        return self._seen

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def pdf(self, path: Path) -> int:
        """Print the page to a PDF file; returns its size in bytes."""
        printed = self._call("Page.printToPDF", printBackground=False, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(printed["data"]))
        return path.stat().st_size

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its result; events that come before it are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            block = os.read(self._read, 1 << 20)
            assert block, "the browser has ended"
            self._buffer += block
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, details: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Runtime.exceptionThrown":
            self._seen.errors.append(details["exceptionDetails"]["text"])
        elif event == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning"):
            self._seen.errors.append(str(details["args"]))
        elif event == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self._seen.errors.append(details["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            url = details["request"]["url"]
            if url != self._url and not url.startswith("data:"):
                self._seen.requests.append(url)
