"""The http store behind TLS: the right certificate works, a wrong one is refused in clear words, nothing falls back."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conftest import opened
from headrace.errors import Unavailable
from headrace.model.job import Batch, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.store.http.store import HttpStore
from server.running import Running


@pytest.fixture
def store_name() -> str:
    return "memory"


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def authority(folder: Path, name: str) -> None:
    """A key and a certificate that signs others."""
    subject = ("-subj", f"/CN={name}", "-days", "2", "-nodes", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-keyout", f"{name}.key", "-out", f"{name}.pem", *subject)


def certificate(folder: Path, name: str, hosts: str, *, days: int = 2) -> None:
    """A certificate of our authority for these hosts."""
    (folder / "hosts").write_text(f"subjectAltName={hosts}\n")
    wanted = ("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", "-nodes")
    openssl(folder, "req", "-newkey", "rsa:2048", *wanted)
    signed = ("-CA", "ours.pem", "-CAkey", "ours.key", "-CAcreateserial", "-extfile", "hosts", "-days", str(days))
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority(folder, "ours")
    authority(folder, "stranger")
    certificate(folder, "server", "IP:127.0.0.1,DNS:localhost")
    certificate(folder, "elsewhere", "DNS:elsewhere.example")
    certificate(folder, "over", "IP:127.0.0.1", days=-1)
    return folder


class Proxy:
    """What stands in front of a server: it takes TLS off and passes the rest on, and counts what it passed."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0
        self.passed = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        try:
            await asyncio.gather(self._pass(reader, back, count=True), self._pass(there, writer))
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            back.close()
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: bool = False) -> None:
        while some := await reader.read(65536):
            self.passed += len(some) if count else 0
            writer.write(some)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def secured(server: Running, folder: Path, name: str) -> AsyncGenerator[Proxy]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    proxy = Proxy(server.port)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=context) as listener:
        proxy.port = int(listener.sockets[0].getsockname()[1])
        yield proxy


@pytest.fixture
async def token(server: Running) -> str:
    return await server.token("work", "enqueue", "read")


async def refused(url: str, token: str) -> str:
    """What opening a store there says; it is the same the second time."""
    store = HttpStore(url)
    said: list[str] = []
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            await store.open()
        said.append(str(caught.value))
    await store.close()
    assert said[0] == said[1]
    assert token not in said[0]
    return said[0]


async def test_s75_the_right_authority_works(
    server: Running, folder: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ours.pem"))
    async with secured(server, folder, "server") as proxy:
        async with opened(HttpStore(f"https://{token}@127.0.0.1:{proxy.port}")) as store:
            batch = Batch(new_batch(), [NewJob("t", b"\x92\x90\x80", Lane())])
            await store.enqueue(batch)
            [job] = await store.get([job_id(batch.id, 0)])
            assert job is not None
            assert job.state is JobState.READY
        assert proxy.passed > 0


@pytest.mark.parametrize("trusted", ["stranger", ""])
async def test_s75_a_certificate_of_a_stranger_is_refused(
    server: Running, folder: Path, token: str, trusted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(folder / f"{trusted}.pem"))
    async with secured(server, folder, "server") as proxy:
        said = await refused(f"https://{token}@127.0.0.1:{proxy.port}", token)
        assert "its certificate is not valid" in said
        assert "SSL_CERT_FILE" in said
        assert proxy.passed == 0


@pytest.mark.parametrize(("name", "why"), [("elsewhere", "127.0.0.1"), ("over", "expired")])
async def test_s75_a_certificate_for_another_host_or_time_is_refused(
    server: Running, folder: Path, token: str, name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ours.pem"))
    async with secured(server, folder, name) as proxy:
        said = await refused(f"https://{token}@127.0.0.1:{proxy.port}", token)
        assert "its certificate is not valid" in said
        assert why in said
        assert proxy.passed == 0


async def test_s75_nothing_falls_back_to_plain_text(
    server: Running, folder: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ours.pem"))
    # TLS asked of the plain port, and plain text of the TLS port.
    said = await refused(f"https://{token}@127.0.0.1:{server.port}", token)
    assert "TLS fails" in said
    async with secured(server, folder, "server") as proxy:
        said = await refused(f"http://{token}@127.0.0.1:{proxy.port}", token)
        assert "https://" in said
        assert proxy.passed == 0
