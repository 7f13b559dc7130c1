"""A program that a webhook tells: it keeps what came, and answers as it is told to."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Heard:
    """What came, and what is answered to it."""

    def __init__(self) -> None:
        self.messages: list[tuple[dict[str, str], bytes]] = []
        self.answer: Callable[[], int] = lambda: 204
        self.url = ""

    @property
    def names(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.messages]


@contextmanager
def listening() -> Iterator[Heard]:
    heard = Heard()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the server's own name
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.messages.append(({name.lower(): value for name, value in self.headers.items()}, body))
            status = heard.answer()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", heard.url + "elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quietly."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    heard.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
