"""What a body may be: its form, its size, its signs; S3 to S16."""

from __future__ import annotations

import json
import os
import time

import pytest

from headrace.server import ServerSettings
from headrace.server.http import boundary
from headrace.server.http.problems import Problem
from server.running import Running
from server.security.sent import JSON, POST, jobs, post, pumped, raw, refused, status_of

pytestmark = pytest.mark.usefixtures("unharmed")
EVERY_STORE = pytest.mark.parametrize("store_name", ["memory", "sqlite", "postgres", "redis", "valkey"], indirect=True)


async def test_s3_no_task_is_imported_by_its_name(server: Running) -> None:
    refused(await server.http.post("/v1/jobs", json={"task": "os.system", "args": ["id"]}), 422, "unknown_task")
    assert await jobs(server) == []


async def test_s4_deep_json_is_refused_at_once(server: Running) -> None:
    refused(await post(server, b"[" * 100_000 + b"]" * 100_000), 400, "json_too_deep")
    refused(await post(server, b'{"task":"echo","args":' + b"[" * 400_000), 400, "json_too_deep")
    refused(await post(server, b'{"a":' * 100_000 + b"1" + b"}" * 100_000), 400, "json_too_deep")


async def test_s4_it_takes_no_time() -> None:
    spent: list[float] = []
    for _ in range(5):
        began = time.thread_time()
        with pytest.raises(Problem, match="nested"):
            boundary.check_json(b"[" * 100_000 + b"]" * 100_000, ServerSettings())
        spent.append(time.thread_time() - began)
    assert min(spent) < 1  # of the processor, on any machine; some milliseconds are usual


async def test_s4_as_deep_as_allowed_is_taken(server: Running) -> None:
    body = b'{"task":"echo","args":' + b"[" * 63 + b"]" * 63 + b"}"
    assert (await post(server, body)).status_code == 201
    # Brackets inside a text are none.
    assert (await server.http.post("/v1/jobs", json={"task": "echo", "args": ["[" * 1000]})).status_code == 201


async def test_s5_an_object_has_at_most_a_thousand_names(server: Running) -> None:
    many = {f"k{n}": n for n in range(1001)}
    refused(await server.http.post("/v1/jobs", json={"task": "echo", "args": [many]}), 422, "too_many_keys")
    few = [{f"k{n}": n for n in range(600)}, {f"k{n}": n for n in range(600)}]
    assert (await server.http.post("/v1/jobs", json={"task": "echo", "args": [few]})).status_code == 201


@pytest.mark.parametrize("number", [b"NaN", b"1e999", b"-Infinity", b"Infinity", b"-1e999", b'{"x":[1e400]}'])
@pytest.mark.parametrize("queue", [b"", b',"queue":"foreign"'])
async def test_s6_numbers_are_finite(server: Running, number: bytes, queue: bytes) -> None:
    task = b"elsewhere" if queue else b"echo"
    body = b'{"task":"%b","args":[%b]%b}' % (task, number, queue)
    refused(await post(server, body), 400, "non_finite_number")
    assert await jobs(server) == []


@pytest.mark.parametrize("text", [rb"\ud800", rb"\udc00", rb"x\ud800y", rb"\ud800\ud800"])
async def test_s8_half_a_surrogate_pair_is_no_text(server: Running, text: bytes) -> None:
    refused(await post(server, b'{"task":"echo","args":["%b"]}' % text), 422, "invalid_unicode")
    refused(await post(server, b'{"task":"%b"}' % text), 422, "invalid_unicode")


@EVERY_STORE
async def test_s9_nul_is_data_in_arguments_and_nothing_in_names(server: Running) -> None:
    made = await server.http.post("/v1/jobs", json={"task": "echo", "args": ["\0a\0"]})
    assert made.status_code == 201
    seen = await server.http.get(f"/v1/jobs/{made.json()['id']}")
    assert seen.json()["arguments"] == {"args": ["\0a\0"], "kwargs": {}}
    for field in ({"queue": "a\0b"}, {"tenant": "a\0b"}, {"key": "a\0b"}, {"task": "a\0b"}):
        answer = await server.http.post("/v1/jobs", json={"task": "echo", **field})
        assert answer.status_code == 422, answer.text


@pytest.mark.parametrize(
    "body",
    [
        '{"task":"echo"}'.encode("utf-16"),
        '{"task":"echo"}'.encode("utf-16-le"),
        '{"task":"echo"}'.encode("utf-32"),
        b"\xff\xfe",
        b'{"task":"echo","args":["\xff"]}',
        b'{"task":"\xc3\x28"}',
    ],
)
async def test_s10_a_body_is_utf_8(server: Running, body: bytes) -> None:
    refused(await post(server, body), 400, "invalid_utf8")


@pytest.mark.parametrize(
    "media",
    [
        "text/plain",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "application/json; charset=utf-16",
        "",
    ],
)
async def test_s11_only_json_is_read(server: Running, media: str) -> None:
    head = POST + b"Content-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % media.encode()
    answer, sent = await pumped(server.port, head, b"4000\r\n" + os.urandom(0x4000) + b"\r\n", 1 << 30)
    assert status_of(answer) == 415
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "content_type_not_allowed"
    assert sent < 32 * 1024 * 1024  # what the sockets' buffers hold


async def test_s11_the_answer_comes_before_the_body(server: Running) -> None:
    assert status_of(await raw(server, POST + b"Content-Type: text/plain\r\nContent-Length: 1000000\r\n\r\n")) == 415


async def test_s13_a_payload_has_its_limit(server: Running) -> None:
    limit = 256 * 1024
    most = limit - 8  # [[text], {}] in MessagePack: three bytes around a text, which has five of its own
    fits = await server.http.post("/v1/jobs", json={"task": "echo", "args": ["x" * most]})
    assert fits.status_code == 201
    over = await server.http.post("/v1/jobs", json={"task": "echo", "args": ["x" * (most + 1)]})
    refused(over, 422, "payload_too_large")
    far = {"task": "elsewhere", "queue": "foreign", "args": ["x" * (limit + 1)]}
    refused(await server.http.post("/v1/jobs", json=far), 422, "payload_too_large")
    assert len(await jobs(server)) == 1


async def test_s14_a_large_body_is_not_read(server: Running) -> None:
    answer = await raw(server, POST + b"Content-Type: application/json\r\nContent-Length: 10737418240\r\n\r\n")
    assert status_of(answer) == 413
    assert b"body_too_large" in answer
    assert b"connection: close" in answer.lower()


async def test_s14_an_endless_body_is_not_read(server: Running) -> None:
    head = POST + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer, sent = await pumped(server.port, head, b"10000\r\n" + b" " * 0x10000 + b"\r\n", 10 << 30)
    assert status_of(answer) == 413
    assert b"connection: close" in answer.lower()
    assert sent < 32 * 1024 * 1024  # what the sockets' buffers hold


async def test_s15_compressed_bodies_are_refused(server: Running) -> None:
    for encoding in ("gzip", "br", "deflate", "gzip, gzip"):
        answer = await server.http.post("/v1/jobs", content=b"\x1f\x8b", headers={**JSON, "Content-Encoding": encoding})
        refused(answer, 415, "content_encoding_not_allowed")


async def test_s16_prototype_keys_are_data(server: Running) -> None:
    arguments = {"__proto__": {"x": 1}, "constructor": 1}
    made = await server.http.post("/v1/jobs", json={"task": "echo", "args": [arguments]})
    assert made.status_code == 201
    seen = await server.http.get(f"/v1/jobs/{made.json()['id']}")
    assert seen.json()["arguments"]["args"] == [arguments]
