"""One POST to real receivers: to the address that was checked and to no other, bounded in time and size."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.webhooks import http_post
from headrace.webhooks.declare import Allow, DeliveryFailed, UnsafeWebhook
from headrace.webhooks.http_post import MAX_ANSWER, PostAnswer, Poster
from webhooks.receiver import Got, Receiver, answer, receiver

HERE = Allow.of(["127.0.0.0/8"])
NAME = "hooks.example.test"
SOON = timedelta(milliseconds=300)
NOT_TOO_SOON = timedelta(seconds=3)
"""Long enough for the slowest machine to hear a status."""
HEADERS = {"Content-Type": "application/json", "webhook-id": "1"}


@pytest.fixture
async def there() -> AsyncIterator[Receiver]:
    async with receiver() as made:
        yield made


async def test_a_post_as_a_receiver_sees_it(there: Receiver):
    assert await Poster(HERE).post(there.url("/a/b?c=d"), HEADERS, b"{}") == PostAnswer(200, None, "ok")
    [got] = there.got
    assert got.line == "POST /a/b?c=d HTTP/1.1"
    assert got.headers == {
        "host": f"127.0.0.1:{there.port}",
        "content-length": "2",
        "connection": "close",
        "content-type": "application/json",
        "webhook-id": "1",
    }
    assert got.body == b"{}"


# ── where it goes ────────────────────────────────────────────────────────────


class Names:
    """A resolver whose answers change from call to call."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        return self.answers.pop(0)


async def test_s58_a_name_that_leads_inside_is_not_followed(there: Receiver):
    for addresses in (
        ["127.0.0.1"],
        ["93.184.216.34", "::1"],
        ["::ffff:127.0.0.1"],
        ["169.254.169.254"],
        ["93.184.216.34", "10.0.0.1"],
    ):
        poster = Poster(resolve=Names(addresses))
        with pytest.raises(UnsafeWebhook) as caught:
            await poster.post("http://rebinding.example:8080/", HEADERS, b"{}")
        assert caught.value.code == "unsafe_callback_url"
    assert there.connections == 0


async def test_s58_the_checked_address_is_the_one_connected_to(there: Receiver, monkeypatch: pytest.MonkeyPatch):
    """A name with a time to live of 0: public when it is checked, this machine a moment later."""
    names = Names(["93.184.216.34"], ["127.0.0.1"])
    connected: list[Any] = []

    async def connect(host: str, port: int, **_: Any) -> Any:
        connected.append((host, port))
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(http_post.asyncio, "open_connection", connect)
    poster = Poster(resolve=names)
    with pytest.raises(DeliveryFailed, match=r"http://rebinding\.example/… cannot be reached: Connection refused"):
        await poster.post("http://rebinding.example/", HEADERS, b"{}")
    assert connected == [("93.184.216.34", 80)]
    assert names.asked == [("rebinding.example", 80)]
    with pytest.raises(UnsafeWebhook):
        await poster.post("http://rebinding.example/", HEADERS, b"{}")
    assert len(connected) == 1


async def test_s58_whom_we_really_talk_to_is_checked_again(there: Receiver, monkeypatch: pytest.MonkeyPatch):
    """Whatever rewrites addresses below us."""
    connect = asyncio.open_connection

    async def rerouted(host: str, port: int, **options: Any) -> Any:
        return await connect("127.0.0.1", there.port, **options)

    monkeypatch.setattr(http_post.asyncio, "open_connection", rerouted)
    with pytest.raises(UnsafeWebhook):
        await Poster(resolve=Names(["93.184.216.34"])).post("http://example.com/", HEADERS, b"{}")
    assert there.got == []


async def test_a_permitted_name_and_the_header_it_gets(there: Receiver):
    poster = Poster(Allow.of(["hooks.internal"]), resolve=Names(["127.0.0.1"]))
    await poster.post(there.url(host="hooks.internal"), HEADERS, b"{}")
    assert there.got[0].headers["host"] == f"hooks.internal:{there.port}"


async def test_the_next_address_is_tried(there: Receiver):
    poster = Poster(Allow.of(["hooks.internal"]), resolve=Names(["127.0.0.2", "127.0.0.1"]))
    assert (await poster.post(there.url(host="hooks.internal"), HEADERS, b"{}")).status == 200


@pytest.fixture
def cert(tmp_path: Path) -> Path:
    """A key and its certificate in one file, signed by itself and for `NAME` only."""
    made = tmp_path / "receiver.pem"
    wanted = ["-keyout", made, "-out", tmp_path / "signed.pem", "-subj", f"/CN={NAME}", "-nodes", "-days", "2"]
    also = ["-addext", f"subjectAltName=DNS:{NAME}"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", *wanted, *also], check=True, capture_output=True)
    made.write_text(made.read_text() + (tmp_path / "signed.pem").read_text())
    return made


async def test_s58_tls_with_the_name_kept(cert: Path):
    name = NAME
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert)
    asked: list[str] = []
    server.sni_callback = lambda _, name, __: asked.append(name)
    async with receiver(server) as there:

        async def resolve(host: str, port: int) -> list[str]:
            return ["127.0.0.1"]

        trusting = Poster(HERE, resolve=resolve, tls=ssl.create_default_context(cafile=cert))
        # A port of its own needs a permit by name; the address is permitted by its network.
        named = Poster(Allow.of([name]), resolve=resolve, tls=ssl.create_default_context(cafile=cert))
        assert (await named.post(there.url(host=name, scheme="https"), HEADERS, b"{}")).status == 200
        assert asked == [name]
        assert there.got[0].headers["host"] == f"{name}:{there.port}"
        with pytest.raises(UnsafeWebhook):
            await trusting.post(there.url(host=name, scheme="https"), HEADERS, b"{}")
        with pytest.raises(DeliveryFailed, match="certificate is not valid"):
            await Poster(Allow.of([name]), resolve=resolve).post(there.url(host=name, scheme="https"), HEADERS, b"{}")
    assert len(there.got) == 1


# ── what comes back ──────────────────────────────────────────────────────────


async def test_s59_redirects_are_not_followed(there: Receiver):
    async with receiver() as elsewhere:
        there.answers = [answer(302, f"Location: {elsewhere.url()}")]
        assert (await Poster(HERE).post(there.url(), HEADERS, b"{}")).status == 302
        assert elsewhere.connections == 0


async def test_s60_an_answer_without_end(there: Receiver):
    sent = 0

    async def pour(got: Got, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
        while sent < 50_000_000:
            writer.write(b"x" * 65_536)
            sent += 65_536
            await writer.drain()

    there.behave = pour
    assert await Poster(HERE).post(there.url(), HEADERS, b"{}") == PostAnswer(200, None, "x" * 200)
    assert sent < 50_000_000


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"y" * MAX_ANSWER, "headers are over 64 KiB"),
        (b"", "closed without an answer"),
        (b"HTTP/1.1 200 O", "closed without an answer"),
        (b"220 smtp ready\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 999 X\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 103 Early\r\n\r\n" * 20, "is incomplete"),
    ],
)
async def test_s60_no_answer_at_all(there: Receiver, said: bytes, problem: str):
    there.answers = [said]
    with pytest.raises(DeliveryFailed, match=problem):
        await Poster(HERE).post(there.url(), HEADERS, b"{}")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", PostAnswer(204, None, "")),
        (answer(429, "Retry-After: 17", body=b"slow\x00\ndown"), PostAnswer(429, 17, "slow down")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno length", PostAnswer(200, None, "")),
        (answer(503, "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT"), PostAnswer(503, None, "")),
        (b"HTTP/1.0 500\r\n\r\nit broke", PostAnswer(500, None, "it broke")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", PostAnswer(200, None, "ok")),
    ],
)
async def test_answers_of_every_kind(there: Receiver, said: bytes, expected: PostAnswer):
    there.answers = [said]
    assert await Poster(HERE).post(there.url(), HEADERS, b"{}") == expected


async def test_s60_one_that_never_answers(there: Receiver):
    async def hang(got: Got, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    there.behave = hang
    assert timedelta(seconds=10) == http_post.TIMEOUT
    with pytest.raises(DeliveryFailed, match=r"did not answer within 0\.3 s"):
        await Poster(HERE, timeout=SOON).post(there.url(), HEADERS, b"{}")


async def test_a_status_counts_though_the_body_never_ends(there: Receiver):
    async def drip(got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.Event().wait()

    there.behave = drip
    assert await Poster(HERE, timeout=NOT_TOO_SOON).post(there.url(), HEADERS, b"{}") == PostAnswer(200, None, "")


async def test_names_that_cannot_be_found():
    async def nowhere(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    async def nothing(host: str, port: int) -> list[str]:
        return []

    for resolve in (nowhere, nothing):
        with pytest.raises(DeliveryFailed, match="is not found"):
            await Poster(resolve=resolve).post("https://nowhere.example/", HEADERS, b"{}")


async def test_s60_a_name_that_is_slow_to_find_is_asked_for_once():
    asked = 0
    answered = asyncio.Event()

    async def slow(host: str, port: int) -> list[str]:
        nonlocal asked
        asked += 1
        await answered.wait()
        raise OSError(-3, "Temporary failure in name resolution")

    poster = Poster(timeout=SOON, resolve=slow)
    posts = [poster.post("https://slow.example/", HEADERS, b"{}") for _ in range(5)]
    found = await asyncio.gather(*posts, return_exceptions=True)
    assert [type(each) for each in found] == [DeliveryFailed] * 5
    assert asked == 1
    answered.set()


async def test_s60_names_that_are_never_found_hold_nobody_elses_threads(monkeypatch: pytest.MonkeyPatch):
    go_on = threading.Event()
    asked: list[str] = []

    def stuck(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        go_on.wait(60)
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(http_post.socket, "getaddrinfo", stuck)
    names = [asyncio.create_task(http_post.look_up(f"n{number}.example", 80)) for number in range(http_post.NAMES)]
    try:
        await asyncio.sleep(0)  # all of them have begun
        # The threads that the loop shares with other code are free.
        assert await asyncio.to_thread(lambda: "here") == "here"
        # And there is an end to it.
        with pytest.raises(DeliveryFailed, match="64 names are being resolved"):
            await Poster().post("http://one-more.example/", HEADERS, b"{}")
    finally:
        go_on.set()
    assert await asyncio.gather(*names) == [["127.0.0.1"]] * http_post.NAMES
    assert await http_post.look_up("again.example", 80) == ["127.0.0.1"]
    assert len(asked) == http_post.NAMES + 1


async def test_a_name_that_the_system_does_not_know():
    with pytest.raises(OSError, match=r".+"):
        await http_post.look_up("no-such-name.invalid", 80)
    assert await http_post.look_up("127.0.0.1", 80) == ["127.0.0.1"]
