"""Chromium, told what to do over its debugging pipe: two file descriptors and Python's own JSON, no driver."""

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.docs.searching import BROWSER, QUIET


def _placed(read: int, write: int) -> None:
    os.dup2(read, 3)
    os.dup2(write, 4)


class Browser:
    """One page of one browser."""

    def __init__(self, profile: Path) -> None:
        read, self.out = os.pipe()
        self.input, write = os.pipe()
        # Out of the way first: the browser reads from descriptor 3 and writes to 4.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]
        command = [str(BROWSER), *QUIET, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, pass_fds=(3, 4), preexec_fn=partial(_placed, *high), **quiet)  # type: ignore[call-overload]
        for end in (read, write, *high):
            os.close(end)
        self.rest, self.number, self.session = b"", 0, None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]

    def call(self, method: str, **told: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": told}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            found = self._read(ends)
            if found.get("id") == self.number:
                assert "error" not in found, found
                return dict(found["result"])
        raise AssertionError(f"the browser did not answer {method}")

    def _read(self, ends: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.input], [], [], max(0.0, ends - time.monotonic()))
            assert ready, "the browser said nothing for a minute"
            got = os.read(self.input, 2**20)
            assert got, "the browser ended"
            self.rest += got
        line, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(line))

    def go(self, place: str) -> None:
        """Open a page."""
        self.call("Page.navigate", url=place)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def say(self, script: str) -> Any:
        """What an expression gives on the page."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str, seconds: float = 30) -> Any:
        """Wait until an expression is true on the page, whichever that is by then."""
        ends = time.monotonic() + seconds
        while True:
            try:
                if found := self.say(f"Boolean({script})"):
                    return found
            except AssertionError:
                pass  # a page was being left
            assert time.monotonic() < ends, (script, self.say("document.body.innerText"))
            time.sleep(0.1)

    def watch_policy(self) -> None:
        """Keep, from now on, what a page's content security policy forbade."""
        self.call("Page.enable")
        kept = "const kept = window.forbidden = JSON.parse(sessionStorage.getItem('forbidden') || '[]');"
        told = "kept.push(event.violatedDirective + ' ' + event.blockedURI + ' ' + location.pathname);"
        store = "sessionStorage.setItem('forbidden', JSON.stringify(kept));"
        script = (
            f"try {{ {kept} document.addEventListener('securitypolicyviolation', event => {{ {told} {store} }}); }}"
        )
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script + " catch (alone) {}")

    def violations(self) -> list[str]:
        """What was forbidden on the pages since then, but for those that may keep nothing."""
        return list(self.say("window.forbidden"))

    def type(self, text: str) -> None:
        """Write into what has the focus."""
        self.call("Input.insertText", text=text)

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press and let go of one key."""
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code, **more)

    def tab_to(self, wanted: str) -> None:
        """Reach an element by the keyboard alone."""
        for _ in range(40):
            if self.say(f"document.activeElement.matches({json.dumps(wanted)})"):
                return
            self.key("Tab", 9)
        raise AssertionError(f"the keyboard does not reach {wanted}")

    def enter(self) -> None:
        """Press Enter."""
        self.key("Enter", 13, "\r")

    def picture(self, path: Path) -> None:
        """What the page looks like."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """End the browser."""
        self.session = None
        try:
            self.call("Browser.close")
            self.process.wait(timeout=20)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        for end in (self.out, self.input):
            os.close(end)
