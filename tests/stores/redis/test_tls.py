"""TLS against a real server: the right certificate works, a wrong one is refused in clear words, nothing falls back."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from conformance.kit import put, settle_all, states, take
from headrace.errors import ConfigError, Unavailable
from headrace.model.job import JobState
from headrace.store.redis.store import RedisStore
from servers.process import free_port
from servers.redis import RedisServer


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def authority(folder: Path, name: str) -> None:
    """A key and a certificate that signs others."""
    subject = ("-subj", f"/CN={name}", "-days", "2", "-nodes")
    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-keyout", f"{name}.key", "-out", f"{name}.pem", *subject)


def certificate(folder: Path, name: str, signer: str, hosts: str) -> None:
    """A certificate for these hosts."""
    (folder / "hosts").write_text(f"subjectAltName={hosts}\n")
    wanted = ("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", "-nodes")
    openssl(folder, "req", "-newkey", "rsa:2048", *wanted)
    signed = ("-CA", f"{signer}.pem", "-CAkey", f"{signer}.key", "-CAcreateserial", "-extfile", "hosts", "-days", "2")
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority(folder, "ours")
    authority(folder, "stranger")
    certificate(folder, "server", "ours", "IP:127.0.0.1,DNS:localhost")
    certificate(folder, "elsewhere", "ours", "DNS:elsewhere.example")
    certificate(folder, "client", "ours", "DNS:client.example")
    return folder


def started(folder: Path, name: str, clients: str = "no") -> tuple[RedisServer, int]:
    port = free_port()
    settings = {
        "tls-port": str(port),
        "tls-cert-file": str(folder / f"{name}.pem"),
        "tls-key-file": str(folder / f"{name}.key"),
        "tls-ca-cert-file": str(folder / "ours.pem"),
        "tls-auth-clients": clients,
    }
    # The wheel's Valkey is built without TLS.
    return RedisServer.start("redis", settings), port


@pytest.fixture(scope="module")
def secured(folder: Path) -> Iterator[tuple[RedisServer, int]]:
    server, port = started(folder, "server")
    with server:
        yield server, port


def url(secured: tuple[RedisServer, int], options: Mapping[str, Path], scheme: str = "rediss") -> str:
    server, port = secured
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{scheme}://:{server.password}@127.0.0.1:{port}/0?{query}"


async def refused(url: str, password: str) -> Exception:
    """What opening a store there says."""
    store = RedisStore(url)
    try:
        with pytest.raises((ConfigError, Unavailable)) as caught:
            await store.open()
    finally:
        await store.close()
    assert password not in str(caught.value)
    return caught.value


async def test_the_right_authority_works(secured: tuple[RedisServer, int], folder: Path):
    store = RedisStore(url(secured, {"tls_ca": folder / "ours.pem"}))
    await store.open()
    made = await put(store, 3)
    await settle_all(store, await take(store))
    assert set(await states(store, made)) == {JobState.DONE}
    await store.close()


@pytest.mark.parametrize("options", [{"tls_ca": "stranger.pem"}, {}])
async def test_a_certificate_of_a_stranger_is_refused(
    secured: tuple[RedisServer, int], folder: Path, options: dict[str, str]
):
    paths = {name: folder / file for name, file in options.items()}
    error = await refused(url(secured, paths), secured[0].password)
    assert isinstance(error, ConfigError)
    assert "certificate" in str(error)
    assert "tls_ca" in str(error)


async def test_a_certificate_for_another_host_is_refused(folder: Path):
    server, port = started(folder, "elsewhere")
    with server:
        error = await refused(url((server, port), {"tls_ca": folder / "ours.pem"}), server.password)
    assert isinstance(error, ConfigError)
    assert "certificate" in str(error)


async def test_s75_nothing_falls_back_to_plain_text(secured: tuple[RedisServer, int], folder: Path):
    server, port = secured
    # TLS asked of the plain port, and plain text of the TLS port.
    for address in (url((server, server.port), {"tls_ca": folder / "ours.pem"}), url((server, port), {}, "redis")):
        assert isinstance(await refused(address, server.password), Unavailable)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tls_ca": "nowhere.pem"}, "tls_ca=.*nowhere.pem.*No such file"),
        ({"tls_ca": "ours.key"}, "tls_ca=.*ours.key"),
        ({"tls_ca": "ours.pem", "tls_cert": "nowhere.pem"}, "tls_cert=.*nowhere.pem.*No such file"),
        ({"tls_ca": "ours.pem", "tls_cert": "client.pem", "tls_key": "server.key"}, "tls_key=.*server.key"),
    ],
)
async def test_a_file_that_cannot_be_used_is_named(
    secured: tuple[RedisServer, int], folder: Path, options: dict[str, str], named: str
):
    error = await refused(url(secured, {name: folder / file for name, file in options.items()}), secured[0].password)
    assert isinstance(error, ConfigError)
    assert re.search(named, str(error))


async def test_a_server_that_asks_for_a_certificate_gets_one(folder: Path):
    server, port = started(folder, "server", clients="yes")
    with server:
        ours = {"tls_ca": folder / "ours.pem"}
        await refused(url((server, port), ours), server.password)
        mine = {"tls_cert": folder / "client.pem", "tls_key": folder / "client.key"}
        store = RedisStore(url((server, port), {**ours, **mine}))
        await store.open()
        assert len(await put(store, 1)) == 1
        await store.close()
