"""A real browser for tests of pages: headless Chromium or Chrome, controlled by its DevTools protocol.

The protocol runs over two pipes, so it needs no port and no package.
"""

import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
  "--remote-debugging-pipe", "--proxy-server=127.0.0.1:9",
)  # fmt: skip
SECONDS = 60.0  # for an answer


def installed() -> str | None:
  """Returns the path of the installed browser, or None."""
  return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
  """A context manager for a browser with one page."""

  def __init__(self):
    self._folder = tempfile.TemporaryDirectory(prefix="browser", ignore_cleanup_errors=True)
    commands, answers = os.pipe(), os.pipe()
    words = [installed(), *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]
    script = f'exec "$@" 3<&{commands[0]} 4>&{answers[1]}'
    self._process = subprocess.Popen(
      ["bash", "-c", script, "browser", *words], pass_fds=(commands[0], answers[1]), start_new_session=True,
      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(commands[0])
    os.close(answers[1])
    self._write, self._read, self._number, self._buffer = commands[1], answers[0], 0, b""
    self._session = None
    target = next(each for each in self.send("Target.getTargets")["targetInfos"] if each["type"] == "page")
    self._session = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]

  def __enter__(self):
    return self

  def __exit__(self, *error):
    os.close(self._write)
    os.close(self._read)
    os.killpg(self._process.pid, signal.SIGKILL)
    self._process.wait()
    self._folder.cleanup()

  def send(self, method: str, **parameters) -> dict:
    """Sends a command and returns its answer."""
    self._number += 1
    message = {"id": self._number, "method": method, "params": parameters}
    message |= {"sessionId": self._session} if self._session else {}
    os.write(self._write, json.dumps(message).encode() + b"\0")
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
      answer = self._next()
      if answer.get("id") == self._number:
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]
    raise TimeoutError(f"no answer to {method}")

  def _next(self):
    while b"\0" not in self._buffer:
      data = os.read(self._read, 2**16)
      assert data, "the browser has ended"
      self._buffer += data
    text, _, self._buffer = self._buffer.partition(b"\0")
    return json.loads(text)

  def open(self, page: pathlib.Path, width: int, dark: bool = False) -> None:
    """Opens a file in a window of `width` CSS pixels with a light or dark theme, and waits until it is loaded."""
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    self.send("Emulation.setEmulatedMedia", media="screen", features=[feature])
    self.send("Page.navigate", url=page.resolve().as_uri())
    self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(page.resolve().as_uri())}")

  def wait(self, condition: str) -> None:
    """Waits until an expression is true in the page."""
    until = time.monotonic() + SECONDS
    while not self.evaluate(f"Boolean({condition})"):
      assert time.monotonic() < until, condition
      time.sleep(0.05)

  def evaluate(self, script: str):
    """Returns the JSON value of an expression in the page."""
    answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
    assert "exceptionDetails" not in answer, answer["exceptionDetails"]
    return answer["result"].get("value")

  def picture(self, file: pathlib.Path) -> None:
    """Writes a PNG of the whole page for a person to view."""
    answer = self.send("Page.captureScreenshot", captureBeyondViewport=True)
    file.write_bytes(base64.b64decode(answer["data"]))
