"""The process of `clickhouse.py`: `clickhouse_engine.py PORT FOLDER [CERTIFICATE KEY]` answers ClickHouse's HTTP interface.

The engine is chdb, which is ClickHouse as a library. This file adds what a server has around it: the user and the password,
settings in the address, the body of an insert after its statement, and errors as a status with a number.
"""

from __future__ import annotations

import re
import signal
import ssl
import sys
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from chdb import session

_STATUS: Final = {"60": 404, "81": 404, "516": 403}
"""The status of some errors, by their number. Other errors are a 500, as with the server itself."""
_turn = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Any
    password: str

    def do_POST(self) -> None:  # the name that http.server calls
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if len(data) < int(self.headers["Content-Length"]):
            self.close_connection = True  # The client has gone in the middle of its request.
            return
        body = data.decode()
        parameters = dict(parse_qsl(urlsplit(self.path).query))
        known = b64encode(f"default:{self.password}".encode()).decode()
        if self.headers["Authorization"] != f"Basic {known}":
            self._answer("Code: 516. DB::Exception: default: Authentication failed: password is incorrect.")
            return
        statement = "\n".join(part for part in (parameters.pop("query", ""), body) if part)
        parameters.pop("wait_end_of_query", None)  # Of the server, which the engine answers in any case.
        try:
            with _turn:
                for name, value in parameters.items():
                    self.engine.query(f"SET {name} = '{value}'")
                try:
                    text = str(self.engine.query(statement, "TabSeparated"))
                finally:
                    for name in parameters:
                        self.engine.query(f"SET {name} = DEFAULT")
        except Exception as error:  # noqa: BLE001  # whatever it is, the client gets it
            self._answer(str(error))
        else:
            self._answer(text.strip("\n"), ok=True)

    def _answer(self, text: str, *, ok: bool = False) -> None:
        number = "" if ok else (re.match(r"Code: (\d+)", text) or ["", "1002"])[1]
        data = f"{text}\n".encode() if text else b""
        self.send_response(200 if ok else _STATUS.get(number, 500))
        if number:
            self.send_header("X-ClickHouse-Exception-Code", number)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    port, home = int(sys.argv[1]), Path(sys.argv[2])
    _Handler.password = (home / "password").read_text(encoding="utf-8")
    open_engine: Any = session.Session  # It has no types.
    _Handler.engine = open_engine(str(home / "data"))
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.daemon_threads = True
    if len(sys.argv) > 3:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[3], sys.argv[4])
        server.socket = context.wrap_socket(server.socket, server_side=True)

    def stop(*_: object) -> None:
        threading.Thread(target=server.shutdown).start()  # It waits for the loop, which runs in this thread.

    signal.signal(signal.SIGTERM, stop)
    server.serve_forever()
    _Handler.engine.close()


if __name__ == "__main__":
    main()
