"""A real browser for tests: Chromium by its own driver, spoken to in plain WebDriver over HTTP."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
DRIVER = shutil.which("chromedriver")
ALONE = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"  # no name leads anywhere but here
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Down": "\ue015", "Up": "\ue013", "Left": "\ue012", "Right": "\ue014", "Enter": "\ue007", "Escape": "\ue00c",
        "PageDown": "\ue00f", "End": "\ue010", "Home": "\ue011", "Backspace": "\ue003"}  # fmt: skip


def needed() -> None:
    """Skips by name where there is no browser; `make test-browser` installs it and lets no such skip pass."""
    if CHROMIUM is None or DRIVER is None:
        told = "Chromium and its driver are not installed: make test-browser"
        if os.environ.get("REASONKNEE_BROWSER") == "required":
            pytest.fail(told)
        pytest.skip(told)


class Browser:
    """One window. Every request that it makes is in its log."""

    def __init__(self, folder: Path, wide: int = 1500, high: int = 900, webgl: bool = True) -> None:
        needed()
        self.log = (folder / "driver.log").open("w+b")
        self.driver = subprocess.Popen([str(DRIVER), "--port=0"], stdout=self.log, stderr=subprocess.STDOUT)
        self.base = f"http://127.0.0.1:{self._port()}"
        arguments = [
            "about:blank", "--headless=new", "--no-sandbox", "--no-first-run", "--disable-background-networking", "--hide-scrollbars",
            "--disable-component-update", "--disable-sync", f"--user-data-dir={folder / 'profile'}",
            f"--host-resolver-rules={ALONE}", f"--window-size={wide},{high}",
            *(["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"] if webgl else ["--disable-gpu", "--disable-3d-apis"]),
        ]  # fmt: skip
        wanted = {
            "goog:chromeOptions": {"binary": CHROMIUM, "args": arguments},
            "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
        }
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{session['sessionId']}"

    def _port(self) -> int:
        for _ in range(200):
            said = Path(self.log.name).read_text()
            if "on port " in said.split("\n", 1)[-1]:
                return int(said.rsplit("on port ", 1)[1].split(".")[0].split()[0])
            time.sleep(0.05)
        raise AssertionError(said)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(
            self.base + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"][:2000]) from None

    def open(self, address: str) -> None:
        self._call("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns; promises are waited for."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, condition: str, seconds: float = 60) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.run(f"return {condition}"):
                return value
            time.sleep(0.05)
        raise AssertionError(
            f"not within {seconds} s: {condition}; the page says {self.run('return document.body.innerText')[:800]}"
        )

    def press(self, *keys: str) -> None:
        actions = [
            {"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")
        ]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def drag(self, start: tuple[float, float], end: tuple[float, float], button: int = 0) -> None:
        move = {"type": "pointerMove", "duration": 0, "origin": "viewport"}
        spots = [{**move, "x": int(x), "y": int(y)} for x, y in (start, end)]
        actions = [
            spots[0],
            {"type": "pointerDown", "button": button},
            spots[1],
            {"type": "pointerUp", "button": button},
        ]
        self._call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]})

    def click(self, selector: str) -> None:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{found[_ELEMENT]}/click", {})

    def write(self, selector: str, text: str) -> None:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{found[_ELEMENT]}/value", {"text": text})

    def size(self, wide: int, high: int) -> None:
        """Of the page itself, whatever the window adds."""
        self._call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": wide, "height": high, "deviceScaleFactor": 1, "mobile": False}})  # fmt: skip

    def shot(self, path: Path | None = None, whole: bool = False) -> bytes:
        if whole:
            params = {"captureBeyondViewport": True, "format": "png"}
            picture = base64.b64decode(
                self._call("POST", "/goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": params})[
                    "data"
                ]
            )
        else:
            picture = base64.b64decode(self._call("GET", "/screenshot"))
        if path:
            path.write_bytes(picture)
        return picture

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last call; those of the browser's own pages do not count."""
        entries = [
            json.loads(e["message"])["message"]
            for e in self._call("POST", "/se/log", {"type": "performance"})
        ]
        asked = [e["params"]["request"]["url"] for e in entries if e["method"] == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith(("chrome", "data:", "about:"))]

    def complaints(self) -> list[str]:
        """What the page's console says of errors and refused things."""
        return [
            e["message"]
            for e in self._call("POST", "/se/log", {"type": "browser"})
            if e["level"] in ("SEVERE", "WARNING")
        ]

    def fresh(self) -> None:
        """As it was at first, for the next test: an empty page of the usual size, and no logs."""
        self.open("about:blank")
        self.size(1500, 900)
        self.requests()
        self.complaints()

    def close(self) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(20)
            self.log.close()
