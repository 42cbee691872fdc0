"""Headless browser, and a server of pages for it: driven over two pipes by the DevTools protocol.

Source: https://chromedevtools.github.io/devtools-protocol/; messages end with a null byte
(`--remote-debugging-pipe`: the browser reads from file 3 and writes to file 4).
"""

from __future__ import annotations

import base64
import functools
import http.server
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
PATIENCE = 60.0  # seconds that an answer of the browser may take, unless a caller knows better

_AS_3_AND_4 = """import os, sys
for wanted, fd in zip((3, 4), sys.argv[1:3]):
    os.dup2(int(fd), wanted)
os.execv(sys.argv[3], sys.argv[3:])"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Hands out the files of a folder, and is quiet."""

    def __init__(self, *args: Any, isolates: bool, **words: Any) -> None:
        self._isolates = isolates
        super().__init__(*args, **words)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def end_headers(self) -> None:
        if self._isolates:
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


class Browser:
    """Process of the browser; `open_page` opens files in it."""

    def __init__(self, read: int, write: int, patience: float = PATIENCE) -> None:
        self._read, self._write, self._patience = read, write, patience
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Return the browser's answer; events that come before it are kept in `events`."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        for answer in self._read_messages():
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)
        raise AssertionError("the browser has ended")

    def wait(self, method: str) -> None:
        """Wait until an event of this kind comes, or has come since the last `events.clear()`."""
        if any(e.get("method") == method for e in self.events):
            return
        for event in self._read_messages():
            self.events.append(event)
            if event.get("method") == method:
                return

    def _read_messages(self) -> Iterator[dict[str, Any]]:
        end = time.monotonic() + self._patience
        while True:
            while b"\0" in self._buffer:
                text, _, self._buffer = self._buffer.partition(b"\0")
                yield json.loads(text)
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            if not data:
                return
            self._buffer += data

    def open_page(
        self,
        file: Path,
        width: int = 1280,
        height: int = 900,
        *,
        dark: bool = False,
        scripts: bool = True,
    ) -> Page:
        """Open a file in a page of its own, and wait until it is drawn."""
        address = file.resolve().as_uri()
        return self.open_address(address, width, height, dark=dark, scripts=scripts)

    def open_address(
        self,
        address: str,
        width: int = 1280,
        height: int = 900,
        *,
        dark: bool = False,
        scripts: bool = True,
    ) -> Page:
        """Open an address in a page of its own, and wait until it is drawn."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        page = Page(self, session, target)
        page.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", session, features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", session, value=not scripts)
        self.events.clear()
        self.call("Page.navigate", session, url=address)
        self.wait("Page.loadEventFired")
        return page


class Page:
    """Open page."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window another size, in pixels."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def ask(self, script: str) -> Any:
        """Return the value of an expression of JavaScript; of a promise, what it resolves to."""
        answer = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Move the mouse to a place of the window."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def complaints(self) -> list[str]:
        """Return errors and messages of the console, and requests of other files."""
        self.ask("1")  # what was sent before it has arrived after it
        lines = []
        for event in self._browser.events:
            params, method = event.get("params", {}), event.get("method")
            if method == "Runtime.consoleAPICalled":
                lines.append(f"console: {params['args']}")
            elif method == "Runtime.exceptionThrown":
                lines.append(f"exception: {params['exceptionDetails']}")
            elif method == "Log.entryAdded":
                lines.append(f"log: {params['entry']['text']}")
            elif method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith("data:") and params["type"] != "Document":
                    lines.append(f"request: {url}")
        return lines

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write what the page looks like as a PNG file; `whole`: all of it, not the window."""
        params: dict[str, Any] = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self._call("Page.getLayoutMetrics")["cssContentSize"]
            params["clip"] = {"x": 0, "y": 0, "scale": 1} | {
                k: size[k] for k in ("width", "height")
            }
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", **params)["data"]))

    def close(self) -> None:
        """Close the page."""
        self._browser.call("Target.closeTarget", targetId=self._target)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)


@contextmanager
def serve(folder: Path, *, isolates: bool = False) -> Iterator[str]:
    """Yield the address at which a folder can be read.

    isolates: its pages are isolated from other origins, so that they may share memory.
    """
    handler = functools.partial(_Handler, directory=str(folder), isolates=isolates)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def browser(*flags: str, patience: float = PATIENCE) -> Iterator[Browser]:
    """Yield a browser, until the end of the context.

    flags: more words of its command.
    patience: seconds that an answer may take.
    """
    assert PROGRAM is not None
    to_browser, from_browser = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [
            PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
            f"--user-data-dir={profile}", *flags,
        ]  # fmt: skip
        fds = (to_browser[0], from_browser[1])
        process = subprocess.Popen(
            [sys.executable, "-c", _AS_3_AND_4, *map(str, fds), *words],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile},
        )
        for fd in fds:
            os.close(fd)
        running = Browser(from_browser[0], to_browser[1], patience)
        try:
            yield running
        finally:
            os.close(to_browser[1])  # the browser ends when its pipe does
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(from_browser[0])
