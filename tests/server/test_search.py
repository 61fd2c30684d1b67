"""Finding jobs by a text in their arguments or failures, counting them, and moving all that match."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import JobDead
from headrace.operate import search
from server.running import Running


async def enqueue(server: Running, task: str, *args: Any, **kwargs: Any) -> str:
    answer = await server.http.post("/v1/jobs", json={"task": task, "args": list(args), "kwargs": kwargs})
    assert answer.is_success, answer.text
    return str(answer.json()["id"])


async def matches(server: Running, **params: Any) -> list[str]:
    """The ids of every page."""
    ids: list[str] = []
    before: dict[str, str] = {}
    while True:
        answer = await server.http.get("/v1/jobs", params=params | before)
        assert answer.is_success, answer.text
        page = answer.json()
        ids += [job["id"] for job in page["items"]]
        if page["next"] is None:
            return ids
        before = {"before": page["next"]}


@pytest.mark.parametrize(
    "text", ["8812", "order=8812", "north quay", "city=north quay", "shop=acme", 'it\'s "here"', "true", "ключ"]
)
async def test_a_text_is_found_in_arguments(server: Running, text: str) -> None:
    place = {"address": {"city": "north quay"}, "notes": ['it\'s "here"', "ключ"], "express": True}
    job = await enqueue(server, "echo", order=8812, shop="acme", more=place)
    await enqueue(server, "echo", order=7, shop="other")
    await enqueue(server, "charge", order=13, shop="other")
    assert await matches(server, text=text) == [job]
    assert await matches(server, text=text, queue="billing") == []


async def test_names_of_the_encoding_match_nothing(server: Running) -> None:
    await enqueue(server, "add", 1)
    assert await matches(server, text="kwargs") == []


async def test_positional_arguments_and_keys_are_found(server: Running) -> None:
    positional = await enqueue(server, "add", 4711, 2)
    answer = await server.http.post("/v1/jobs", json={"task": "add", "args": [1], "key": "invoice-4712"})
    assert await matches(server, text="4711") == [positional]
    assert await matches(server, text="invoice-4712") == [answer.json()["id"]]


async def test_masked_arguments_never_match(server: Running) -> None:
    job = await enqueue(server, "login", user="ann", password="hunter2")
    assert await matches(server, text="ann") == [job]
    assert await matches(server, text="hunter2") == []
    assert await matches(server, text="password=h") == []
    # A positional argument is masked by its parameter's name.
    await enqueue(server, "login", "bob", "swordfish")
    assert await matches(server, text="swordfish") == []


async def test_failures_are_found_also_after_a_retry(server: Running) -> None:
    job = await enqueue(server, "fail", "no route to the bank")
    async with server.app.worker(queues=["broken"]):
        with pytest.raises(JobDead):
            await server.app.tasks["fail"].handle(job).aresult(timeout=60)
    assert await matches(server, text="RuntimeError") == [job]
    assert await matches(server, text="RuntimeError", state="dead") == [job]
    await server.http.post(f"/v1/jobs/{job}/retry")
    assert await matches(server, text="RuntimeError", state="ready") == [job]


async def test_a_call_reads_a_bounded_number_of_jobs_and_says_how_many(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_STEP", 10)
    monkeypatch.setattr(search.Search.page, "__kwdefaults__", {"before": None, "limit": 50, "look": 30})
    job = await enqueue(server, "echo", order=1)
    for number in range(40):
        await enqueue(server, "echo", order=1000 + 2 * number)
    first = (await server.http.get("/v1/jobs", params={"text": "order=1001"})).json()
    assert (first["items"], first["looked_at"]) == ([], 30)
    second = (await server.http.get("/v1/jobs", params={"text": "order=1", "before": first["next"]})).json()
    assert (second["items"][-1]["id"], second["looked_at"], second["next"]) == (job, 11, None)


async def test_a_page_ends_at_its_limit_and_the_next_one_goes_on(server: Running) -> None:
    ids = [await enqueue(server, "echo", order=number, shop="acme") for number in range(7)]
    assert await matches(server, text="acme", limit=2) == ids[::-1]


async def test_a_bound_token_searches_its_own_jobs(server: Running) -> None:
    own = await enqueue(server, "charge", order=8812, shop="acme")
    await enqueue(server, "charge", order=8812, shop="other")
    async with server.client(await server.token("read", tenant="acme")) as client:
        page = (await client.get("/v1/jobs", params={"text": "8812"})).json()
        assert [job["id"] for job in page["items"]] == [own]
        number = (await client.get("/v1/jobs/count", params={"text": "8812"})).json()
        assert (number["count"], number["exact"], number["tenants"]) == (1, True, {"acme": 1})


async def test_a_count_names_states_queues_tasks_and_tenants(server: Running) -> None:
    for shop in ("acme", "acme", "other"):
        await enqueue(server, "charge", order=8812, shop=shop)
    await enqueue(server, "add", 8812)
    number = (await server.http.get("/v1/jobs/count", params={"text": "8812"})).json()
    assert number == {
        "count": 4,
        "exact": True,
        "looked_at": 4,
        "states": {"ready": 4},
        "queues": {"billing": 3, "default": 1},
        "tasks": {"charge": 3, "add": 1},
        "tenants": {"acme": 2, "other": 1, "": 1},
        "next": None,
    }
    narrow = (await server.http.get("/v1/jobs/count", params={"queue": "billing", "tenant": "acme"})).json()
    assert (narrow["count"], narrow["tasks"]) == (2, {"charge": 2})


async def test_the_count_of_more_jobs_than_a_call_reads_comes_from_the_figures(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = {"before": None, "look": 5, "figures": False}
    for number in range(12):
        await enqueue(server, "echo", order=number)
    monkeypatch.setattr("headrace.server.api.jobs.LOOK", 5)
    known = (await server.http.get("/v1/jobs/count", params={"state": "ready"})).json()
    assert (known["count"], known["exact"], known["looked_at"]) == (12, True, 5)
    part = (await server.http.get("/v1/jobs/count", params={"task": "echo"})).json()
    assert (part["count"], part["exact"]) == (5, False)
    monkeypatch.setattr(search.Search.count, "__kwdefaults__", defaults)
    rest = (await server.http.get("/v1/jobs/count", params={"task": "echo", "before": part["next"]})).json()
    assert (rest["count"], rest["exact"]) == (5, False)


async def test_a_bulk_action_moves_what_the_text_matches(server: Running) -> None:
    chosen = [await enqueue(server, "echo", order=8812) for _ in range(3)]
    other = await enqueue(server, "echo", order=7)
    body = {"action": "cancel", "filter": {"text": "order=8812"}}
    answer = (await server.http.post("/v1/jobs/bulk", json=body)).json()
    assert (answer["found"], answer["changed"], answer["more"]) == (3, 3, False)
    assert await matches(server, state="cancelled") == chosen[::-1]
    assert await matches(server, state="ready") == [other]


async def test_python_finds_by_argument(server: Running) -> None:
    job = await enqueue(server, "login", user="ann", password="hunter2")
    assert [str(one.id) for one in (await server.app.afind(text="user=ann")).jobs] == [job]
    assert (await server.app.afind(text="hunter2")).jobs == []
