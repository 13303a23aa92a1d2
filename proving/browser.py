"""A headless Chromium, driven over its DevTools protocol through two pipes, so without port and package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "the status page in a browser needs Chromium, and none of "
    f"{', '.join(NAMES)} is on the PATH; run ./scripts/setup test --browser as root, or install it "
    "(Debian: apt-get install chromium)"
)
ANSWER_SECONDS = 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests also run as root, in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--lang=en-GB",
    "--remote-debugging-pipe",
)
# Chromium reads from descriptor 3 and writes to 4.
LAUNCHER = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def find() -> str:
    """The path of a Chromium. Raises AssertionError with the way to install one."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    assert found is not None, MISSING
    return found


class Browser:
    """One browser. Close it in the end."""

    def __init__(self, folder: Path) -> None:
        """``folder`` gets the browser's profile and its messages."""
        command_read, self._write = os.pipe()
        self._read, answer_write = os.pipe()
        os.set_blocking(self._read, False)
        self._log = (folder / "chromium.log").open("wb")
        command = [find(), *FLAGS, f"--user-data-dir={folder / 'profile'}"]
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", LAUNCHER, str(command_read), str(answer_write), *command],
            pass_fds=(command_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        os.close(command_read)
        os.close(answer_write)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        """The messages of the browser since the last page was opened."""

    def close(self) -> None:
        """End the browser and wait for that."""
        try:
            self.call("Browser.close")
            self._process.wait(ANSWER_SECONDS)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._log.close()

    def call(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Call a method of the DevTools protocol and return its result."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def open(self, url: str, **screen: Any) -> Page:
        """Open a page in a tab of its own, without the cookies of other pages."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        page = Page(self, context, session)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.screen(**screen)
        page.call("Page.navigate", url=url)
        page.wait("document.readyState === 'complete'")
        return page

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_SECONDS
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            assert left > 0, f"Chromium has not answered within {ANSWER_SECONDS:g} s"
            if select.select([self._read], [], [], left)[0]:
                data = os.read(self._read, 1 << 20)
                assert data, f"Chromium has ended; {self._log.name} says why"
                self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


class Page:
    """One tab."""

    def __init__(self, browser: Browser, context: str, session: str) -> None:
        self._browser = browser
        self._context = context
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol in this tab."""
        return self._browser.call(method, self._session, **parameters)

    def screen(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Set the size of the window, and whether the person has asked for dark pages."""
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The JSON-ready value of an expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> Any:
        """Wait until an expression is true in the page, and return its value."""
        script = f"""new Promise((done, fail) => {{
            const limit = Date.now() + {ANSWER_SECONDS * 500};
            const look = () => {{
                let value = null;
                try {{ value = {condition}; }} catch (error) {{ /* not yet */ }}
                if (value) return done(value);
                if (Date.now() > limit) return fail(new Error("still not so"));
                setTimeout(look, 20);
            }};
            look();
        }})"""
        try:
            return self.run(script)
        except AssertionError:
            raise AssertionError(f"still not so: {condition}; the page says: {self.text()[:2000]}") from None

    def text(self, selector: str = "body") -> str:
        """The text of an element as a person sees it."""
        found: str = self.run(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """Press a key; ``code`` is its number for Windows, such as 9 for Tab."""
        for kind in ("keyDown", "keyUp"):
            text = "\r" if key == "Enter" and kind == "keyDown" else ""
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a screenshot as PNG, of the whole page or of the window."""
        options: dict[str, Any] = {"captureBeyondViewport": whole}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **options)["data"]))

    def errors(self) -> list[str]:
        """Errors that the browser has logged for this page, violations of the content policy among them."""
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(str(event["params"]["entry"]["text"]))
        return found
