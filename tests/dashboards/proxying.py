"""A proxy such as JupyterHub's: it takes a prefix off each path and passes the rest on."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def stripping(prefix: str, port: int) -> Iterator[int]:
    """Serve what lies under `prefix` from a server on `port`, until the block ends; yields the proxy's port."""

    class Proxy(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            if not self.path.startswith(prefix):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            behind = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            behind.request(self.command, "/" + self.path.removeprefix(prefix), body or None, dict(self.headers))
            answer = behind.getresponse()
            data = answer.read()
            behind.close()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = pass_on  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(timeout=5)
