"""Debian's Chromium without a window, over its debugging pipe: JSON messages, each ended by a zero
byte, on file descriptors 3 and 4. Nothing but the standard library."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

PROGRAM = shutil.which("chromium")
PATIENCE = 120  # seconds until a page counts as hung; nothing is measured by it


def _pipe(child_end):
    """Both ends of a pipe, that of the child with a number above 9."""
    ends = list(os.pipe())
    low = ends[child_end]
    ends[child_end] = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(low)
    return ends


class Chromium:
    """One page in one browser. ``messages`` has what the page complained of, ``requests`` what it
    asked for."""

    def __init__(self, profile, width=1200, height=900, dark=False):
        # The child's ends are above 9, so that neither is 3 or 4 before it is moved there.
        to_child, self._out = _pipe(child_end=0)
        self._in, from_child = _pipe(child_end=1)
        command = [  # dash knows descriptors of one digit only
            *("bash", "-c", f'exec "$@" 3<&{to_child} 4>&{from_child}', "bash", PROGRAM),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage"),
            *(f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"),
        ]
        self._process = subprocess.Popen(
            command,
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._buffer, self._next, self._session = b"", 0, None
        self.messages, self.requests = [], []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def _read(self):
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], deadline - time.monotonic())[0]:
                raise TimeoutError("chromium does not answer")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("chromium has ended")
            self._buffer += part
        text, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(text)

    def _note(self, message):
        method, what = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.messages.append(what["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning"):
            self.messages.append([a.get("value", a.get("description")) for a in what["args"]])
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.messages.append(what["entry"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])

    def send(self, method, **params):
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def run(self, script):
        """The value of an expression in the page, also of a promise."""
        answer = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def open(self, path, ready="document.documentElement?.dataset.drawn === 'yes'"):
        """Until the page has drawn all figures, or what else ``ready`` asks."""
        self.send("Page.navigate", url=path.absolute().as_uri())
        deadline = time.monotonic() + PATIENCE
        while not self.run(ready):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} is not drawn; {self.messages}")
            time.sleep(0.1)

    def picture(self, path, clip=None):
        """Of the whole page, or of a part of it."""
        if clip is None:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"]}
        data = self.send(
            "Page.captureScreenshot", captureBeyondViewport=True, clip={**clip, "scale": 1}
        )
        path.write_bytes(base64.b64decode(data["data"]))

    def close(self):
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self._session = None
            self.send("Browser.close")
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
