"""`spotless serve --demo` with the library behind it, in a real browser: submit, watch, report, approve, verify."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.docs.searching import BROWSER
from tests.serve.browser import Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: the pages were not looked at"),
]

FIRST_PAGE = 20
"""Seconds from the command to the first page."""

PATIENCE = 600
"""Seconds for one job with its audit, on a busy machine."""


@pytest.fixture
def demo(tmp_path):
    """The demo, started by its command; its address and how long the first page took."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    command = [sys.executable, "-m", "spotlessnet", "serve", "--demo", "--port", str(port)]
    said = tmp_path / "said"
    with said.open("w") as stream:
        process = subprocess.Popen(command, stderr=stream)
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/login", timeout=5) as answer:
                answer.read()
            break
        except OSError:
            assert process.poll() is None
            assert time.monotonic() - began < 120
            time.sleep(0.1)
    seconds = time.monotonic() - began
    ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    processor = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    [address] = re.findall(r"http://\S+/demo/\S+", said.read_text())
    yield address, seconds, processor
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=60)
    finally:
        process.kill()
    lines = [json.loads(line) for line in said.read_text().splitlines() if line.startswith("{")]
    assert lines, "calls are logged"
    assert [one for one in lines if one["level"] == "error"] == []
    assert "person-" not in said.read_text()


def approve(browser, place, request):
    """Wait for the audit, without loading the page again; look at the report; approve."""
    browser.go(place + request)
    browser.until("document.querySelector('#verdict')", PATIENCE)
    browser.go(browser.say("document.querySelector('#report').href"))
    browser.until("document.body.innerText.includes('orgotten')")
    browser.go(place + request)
    browser.say("document.querySelector('form[action$=\"/approve\"] button').click()")
    browser.until("document.querySelector('#seal')", PATIENCE)


def test_the_demo_from_its_command_to_a_verified_receipt(demo, tmp_path):
    address, seconds, processor = demo
    print(f"first page after {seconds:.1f} s, {processor:.1f} s of a processor; load {os.getloadavg()[0]:.1f}")
    assert seconds < FIRST_PAGE
    place = address.partition("/demo/")[0]
    browser = Browser(tmp_path / "profile")
    try:
        browser.watch_policy()
        browser.go(address)
        # Nobody loads the inbox again: the three requests of the demo come by themselves.
        browser.until("document.querySelectorAll('#list tbody tr').length === 2", PATIENCE)
        first = browser.say("document.querySelector('#list tbody a').getAttribute('href')")
        browser.go(f"{place}/requests/new")
        browser.say("document.querySelector('#key').value = 'mine'")
        browser.say("document.querySelector('#ids').value = 'person-20\\nperson-21'")
        browser.say("document.querySelector('main form button').click()")
        browser.until("document.querySelector('#state')")
        mine = browser.say("location.pathname")
        approve(browser, place, first)
        approve(browser, place, mine)
        assert browser.say("document.querySelector('#seal').innerText") == "✔ signed and in the ledger"
        assert browser.say("fetch('/nowhere').then(answer => answer.status)") == 404
        receipt = browser.say(f"fetch('{mine}/receipt').then(answer => answer.text())")
        browser.go(f"{place}/ledger")
        key = browser.say("document.querySelector('details pre').textContent")
        assert "person-2" not in browser.say("document.documentElement.outerHTML") + receipt
        assert browser.violations() == []
    finally:
        browser.close()
    bundle, public = tmp_path / "mine.bundle.json", tmp_path / "desk.pub"
    bundle.write_text(receipt, encoding="utf-8")
    public.write_text(key, encoding="utf-8")
    verify = [sys.executable, "-m", "spotlessnet", "verify", str(bundle), "--public-key", str(public)]
    ended = subprocess.run(verify, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    bundle.write_text(receipt.replace('"index":', '"index": 1'), encoding="utf-8")
    assert subprocess.run(verify, capture_output=True, timeout=120).returncode != 0
