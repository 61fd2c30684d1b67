"""A throw-away ClickHouse: the real engine (chdb) in a process of its own, behind the HTTP interface that the sink speaks."""

from __future__ import annotations

import http.client
import json
import secrets
import signal
import ssl
import sys
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

from headrace.errors import Unavailable
from servers.process import ServerProcess

_ENGINE: Final = Path(__file__).with_name("clickhouse_engine.py")


class ClickHouseServer(ServerProcess):
    """One engine with one user, whose password is in `url`."""

    product = "ClickHouse"
    start_timeout = 60.0
    stop_signal = signal.SIGKILL
    restart_signal = signal.SIGTERM
    crash_signal = signal.SIGKILL

    def __init__(self, tls: tuple[Path, Path] | None, ca: Path | None, password: str | None) -> None:
        super().__init__("headrace-clickhouse-")
        self.password = password or secrets.token_urlsafe(18)
        self._tls, self._ca = tls, ca
        (self._home / "password").write_text(self.password, encoding="utf-8")

    @classmethod
    def start(
        cls, *, tls: tuple[Path, Path] | None = None, ca: Path | None = None, password: str | None = None
    ) -> Self:
        """A running server. `tls`: its certificate and its key, and `ca` has signed the certificate."""
        return cls(tls, ca, password)._started()

    def url(
        self, database: str = "default", *, port: int | None = None, password: str | None = None, **options: str
    ) -> str:
        scheme = "clickhouse" if self._tls is None else "clickhouses"
        query = f"?{urlencode(options)}" if options else ""
        place = f"127.0.0.1:{port or self.port}/{database}"
        return f"{scheme}://default:{quote(password or self.password, safe='')}@{place}{query}"

    def query(self, statement: str) -> list[dict[str, Any]]:
        """The rows that a statement answers."""
        text = self._post(f"{statement.rstrip().rstrip(';')}\nFORMAT JSONEachRow")
        return [json.loads(line) for line in text.splitlines() if line]

    def run(self, statement: str) -> None:
        """Run a statement that answers nothing."""
        self._post(statement)

    @property
    def _program(self) -> str:
        return "chdb"

    def _command(self) -> Sequence[str | Path]:
        return [sys.executable, _ENGINE, str(self._port), self._home, *(self._tls or ())]

    def _answers(self, pid: int) -> bool:
        try:
            return self._post("SELECT 1", timeout=5).strip() == "1"
        except (OSError, Unavailable, http.client.HTTPException):
            return False

    def _post(self, body: str, timeout: float = 60) -> str:
        link = (
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
            if self._tls is None
            else http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=timeout, context=ssl.create_default_context(cafile=self._ca)
            )
        )
        try:
            secret = b64encode(f"default:{self.password}".encode()).decode()
            link.request("POST", "/", body.encode(), {"Authorization": f"Basic {secret}"})
            answer = link.getresponse()
            text = answer.read().decode()
        finally:
            link.close()
        if answer.status != 200:
            raise Unavailable(text)
        return text
