"""What a person does at the desk, in a real browser: submit, watch, look at the report, approve, see the seal."""

import socket
import threading

import pytest
import uvicorn

from spotlessnet.serve.app import make_app
from spotlessnet.serve.desk import Desk
from tests.docs.searching import BROWSER
from tests.serve.browser import Browser
from tests.serve.conftest import BY_PERSON, model_of, new_tenant, until
from tests.serve.stand_in import StandIn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: the pages were not looked at"),
]


@pytest.fixture
def address(tmp_path):
    """A desk that listens, and a token."""
    desk = Desk.at(tmp_path / "desk", engine=StandIn())
    tenant = new_tenant(desk, "one", BY_PERSON)
    model_of(desk, tenant, tmp_path / "run")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(make_app(desk), port=port, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    yield f"http://127.0.0.1:{port}", tenant.tokens["all"]
    server.should_exit = True
    thread.join(timeout=30)
    desk.close()


def test_a_person_submits_watches_approves_and_sees_the_seal_without_a_mouse(address, tmp_path):
    place, token = address
    browser = Browser(tmp_path / "profile")
    try:
        browser.watch_policy()
        # A phone, in the dark.
        browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        browser.call("Emulation.setEmulatedMedia", features=dark)
        browser.go(f"{place}/login")
        browser.tab_to("#token")
        browser.type(token)
        browser.enter()
        browser.until("document.querySelector('h1').innerText === 'Inbox'")
        browser.tab_to("a[href='/requests/new']")
        browser.enter()
        browser.until("document.querySelector('#ids')")
        browser.tab_to("#key")
        browser.type("letter")
        browser.tab_to("#ids")
        browser.type("ann")
        browser.tab_to("main button")
        browser.enter()
        # Nobody loads the page again: it keeps itself fresh.
        browser.until("document.querySelector('#verdict')?.innerText === 'forgotten'")
        request = browser.say("location.pathname")
        browser.tab_to("#report")
        browser.enter()
        browser.until("document.body.innerText.includes('what is left')")
        browser.go(place + request)
        browser.tab_to("form[action$='/approve'] button")
        browser.enter()
        browser.until("document.querySelector('#seal')?.innerText === '✔ signed and in the ledger'")
        for page in (request, "/", "/?kind=all", "/models", "/ledger", "/settings", "/requests/new"):
            browser.go(place + page)
            assert browser.say("document.documentElement.scrollWidth") <= 390, page
        browser.go(f"{place}/ledger")
        assert "every one checked: whole" in browser.say("document.querySelector('#seal').innerText")
        assert browser.violations() == []
        colours = [browser.say("getComputedStyle(document.body).backgroundColor")]
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        colours.append(browser.say("getComputedStyle(document.body).backgroundColor"))
        assert colours == ["rgb(20, 23, 26)", "rgb(255, 255, 255)"]
    finally:
        browser.close()
