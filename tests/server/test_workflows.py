"""Groups and graphs over HTTP: what is shown, what is cancelled, and what a bound token may name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest
from click.testing import CliRunner

from headrace import Handle, Headrace, group
from headrace.cli.root import root
from headrace.client.groups import OpenGroup
from headrace.model.gate import Edge, GateId, NewGate, Wait, new_gate_id
from headrace.model.job import Batch, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.store.http import wire
from headrace.task.codec import JobOptions, encode_options
from server.running import Running

NOTHING = b"\x92\x90\x80"


@pytest.fixture
def add(app: Headrace) -> Any:
    return app.tasks["add"]


async def tell(client: httpx2.AsyncClient, verb: str, *arguments: Any) -> httpx2.Response:
    return await client.post(f"/v1/store/{verb}", content=wire.encode(arguments), headers={"Content-Type": wire.MEDIA})


async def opened(app: Headrace, add: Any, tenant: str = "acme") -> tuple[OpenGroup[Any], list[Handle[Any]]]:
    async with app.open_group("import 7", on_done=add.job(1), tenant=tenant) as rows:
        handles = await rows.aenqueue_many([add.job(1), add.job(2)])
    return rows, list(handles)


async def until_blocked(handle: Handle[Any]) -> None:
    async with asyncio.timeout(60):
        while True:
            if (await handle.astatus()).state is JobState.BLOCKED:
                return
            await asyncio.sleep(0.01)


async def test_groups_are_listed_shown_and_cancelled(server: Running, app: Headrace, add: Any):
    rows, handles = await opened(app, add)
    page = (await server.http.get("/v1/groups")).json()
    [item] = page["items"]
    assert (item["id"], item["label"], item["size"], item["left"], item["sealed"]) == (
        str(rows.id),
        "import 7",
        2,
        2,
        True,
    )
    assert page["next"] is None
    assert (await server.http.get(f"/v1/groups/{rows.id}")).json() == item
    assert (await server.http.get("/v1/groups", params={"tenant": "b"})).json()["items"] == []
    answer = await server.http.post(f"/v1/groups/{rows.id}/cancel", json={"reason": "wrong file"})
    assert answer.json() == {"id": str(rows.id), "cancelled": 2}
    assert [(await handle.astatus()).note for handle in handles] == ["wrong file"] * 2
    assert (await rows.astatus()).cancelled == 2
    entries = (await server.http.get("/v1/audit")).json()["items"]
    assert ("groups.cancel", "import 7", 2) in [(entry["action"], entry["what"], entry["jobs"]) for entry in entries]
    assert (await server.http.get("/v1/groups/x")).status_code == 422
    assert (await server.http.get(f"/v1/groups/{new_gate_id()}")).status_code == 404


async def test_the_command_line_lists_shows_and_cancels_groups(server: Running, app: Headrace, add: Any):
    rows, _ = await opened(app, add)

    async def cli(*words: str) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, root, [*words, "--url", server.url])
        assert result.exit_code == 0, result.output
        return result.output

    [item] = json.loads(await cli("groups", "list", "--json"))["items"]
    assert (item["id"], item["size"]) == (str(rows.id), 2)
    assert "import 7" in await cli("groups", "list")
    assert json.loads(await cli("groups", "show", str(rows.id), "--json")) == item
    assert "to go" not in (text := await cli("groups", "show", str(rows.id)))
    assert "sealed     True" in text
    assert "2 jobs cancelled" in await cli("groups", "cancel", str(rows.id), "--reason", "wrong file")
    assert (await rows.astatus()).cancelled == 2
    page = await cli("jobs", "list", "--state", "cancelled")
    assert "wrong file" in page
    for verb in ("show", "cancel"):
        unknown = CliRunner().invoke, root, ["groups", verb, str(new_gate_id()), "--url", server.url]
        assert "there is no group" in (await asyncio.to_thread(*unknown)).output


async def test_the_command_line_shows_both_sides_of_a_job(server: Running, app: Headrace, add: Any):
    middle = add.job(add.job(1).out, add.job(2).out)
    last = await app.aenqueue(add.using(after=group([middle], "pair"), when="ended").job(4))
    first, second, joined = (job_id(UUID(int=last.id.int & ~0xFFFF), place) for place in range(3))
    [gate] = await server.store.groups()

    async def show(id: UUID, *words: str) -> str:
        result = await asyncio.to_thread(
            CliRunner().invoke, root, ["jobs", "show", str(id), *words, "--url", server.url]
        )
        assert result.exit_code == 0, result.output
        return result.output

    async def sides(id: UUID) -> list[str]:
        text = await show(id)
        return [line.strip() for line in text[text.index("arguments") :].splitlines()[1:] if line]

    pair = f"open       group pair  {gate.id}  0 of 1 done"
    assert await sides(joined) == [
        "follows",
        f"ready      add  {first}",
        f"ready      add  {second}",
        "followed by",
        pair,
    ]
    assert await sides(first) == ["followed by", f"blocked    add  {joined}"]
    assert await sides(last.id) == ["follows", f"{pair}  (until ended)"]
    assert await sides((await add.aenqueue(7)).id) == []
    graph = json.loads(await show(last.id, "--json"))["workflow"]
    assert {"from": str(gate.id), "to": str(last.id), "needs": "ended"} in graph["edges"]


async def test_a_graph_is_walked_both_ways(server: Running, app: Headrace, add: Any):
    first = add.job(1)
    last = await app.aenqueue(add.job(first.then(add).out, first.then(add, 2).out))
    batch = UUID(int=last.id.int & ~0xFFFF)
    graph = (await server.http.get(f"/v1/jobs/{job_id(batch, 0)}/workflow")).json()
    jobs = [node for node in graph["nodes"] if node["kind"] == "job"]
    assert {node["id"] for node in jobs} == {str(job_id(batch, place)) for place in range(4)}
    [gate] = [node for node in graph["nodes"] if node["kind"] == "group"]
    assert (gate["size"], gate["done"]) == (2, 0)
    pairs = {(edge["from"], edge["to"], edge["needs"]) for edge in graph["edges"]}
    assert (str(job_id(batch, 0)), str(job_id(batch, 1)), "done") in pairs
    assert (gate["id"], str(last.id), "done") in pairs
    assert graph["more"] is False
    near = (await server.http.get(f"/v1/jobs/{last.id}/workflow", params={"depth": 1})).json()
    assert near["more"] is True


async def test_the_jobs_of_a_group_are_one_node(server: Running, app: Headrace, add: Any):
    @app.task(name="add_up")
    async def add_up(numbers: Sequence[int]) -> int:
        return sum(numbers)

    last = await app.aenqueue(group((add.job(n) for n in range(50)), "many").then(add_up))
    graph = (await server.http.get(f"/v1/jobs/{last.id}/workflow")).json()
    assert [node["label"] for node in graph["nodes"] if node["kind"] == "group"] == ["many"]
    assert len(graph["nodes"]) == 2


async def test_the_jobs_of_a_group_are_listed_in_pages_and_by_state(server: Running, app: Headrace, add: Any):
    async with app.open_group("import 7") as rows:
        first = await rows.aenqueue_many(add.job(n) for n in range(3))
        async with rows.open_group("part") as part:
            more = await part.aenqueue_many(add.job(n) for n in range(4))
    await server.http.post(f"/v1/jobs/{first[1].id}/cancel", json={})
    path, ids = f"/v1/groups/{rows.id}/jobs", [str(handle.id) for handle in (*first, *more)]
    pages, offset = [], 0
    while offset is not None:
        page = (await server.http.get(path, params={"offset": offset, "limit": 2})).json()
        pages.append([job["id"] for job in page["items"]])
        offset = page["next"]
    assert sorted(id for page in pages for id in page) == sorted(ids)
    assert [len(page) for page in pages] == [2, 2, 2, 1]
    stopped = (await server.http.get(path, params={"state": "cancelled"})).json()
    assert ([job["id"] for job in stopped["items"]], stopped["next"]) == ([ids[1]], None)
    assert (await server.http.get(path, params={"state": "dead"})).json() == {"items": [], "next": None}
    assert (await server.http.get(path, params={"offset": 7})).json() == {"items": [], "next": None}
    assert (await server.http.get(path, params={"offset": -1})).status_code == 422
    assert (await server.http.get(f"/v1/groups/{new_gate_id()}/jobs")).status_code == 404


async def test_a_page_of_a_group_reads_a_bounded_number_of_members(server: Running, app: Headrace, add: Any):
    async with app.open_group("many") as rows:
        await rows.aenqueue_many(add.job(n) for n in range(2100))
    path = f"/v1/groups/{rows.id}/jobs"
    page = (await server.http.get(path, params={"state": "dead"})).json()
    assert page == {"items": [], "next": 2000}
    assert (await server.http.get(path, params={"state": "dead", "offset": 2000})).json()["next"] is None


async def test_the_graph_of_a_group_names_its_callbacks(server: Running, app: Headrace, add: Any):
    rows, _ = await opened(app, add)
    graph = (await server.http.get(f"/v1/groups/{rows.id}/workflow")).json()
    [callback] = [node for node in graph["nodes"] if node["kind"] == "job"]
    assert [(edge["from"], edge["to"], edge["needs"]) for edge in graph["edges"]] == [
        (str(rows.id), callback["id"], "done")
    ]
    assert (await server.http.get(f"/v1/groups/{new_gate_id()}/workflow")).status_code == 404


async def test_an_event_is_named_where_a_job_waits_for_it(server: Running, app: Headrace):
    approved = app.event("payout.approved", str)

    @app.task(name="payout")
    async def payout() -> str:
        return await approved.wait(("acme", 42))

    handle = await payout.aenqueue()
    async with app.worker():
        await until_blocked(handle)
        graph = (await server.http.get(f"/v1/jobs/{handle.id}/workflow")).json()
        [event] = [node for node in graph["nodes"] if node["kind"] == "event"]
        assert (event["label"], event["state"]) == ('payout.approved of ["acme",42]', "open")
        [job] = [node for node in graph["nodes"] if node["kind"] == "job"]
        assert (job["state"], job["attempt"]) == ("blocked", 1)
        why = (await server.http.get(f"/v1/jobs/{handle.id}/explain")).json()
        assert why["sentence"] == 'suspended until event payout.approved of ["acme",42] is signalled'
        shown = await asyncio.to_thread(CliRunner().invoke, root, ["jobs", "show", str(handle.id), "--url", server.url])
        assert f'open       event payout.approved of ["acme",42]  {event["id"]}' in shown.output
        assert "group" not in shown.output
        await approved.asignal(("acme", 42), "ann")
        assert await handle.aresult(timeout=60) == "ann"
    [step] = (await server.http.get(f"/v1/jobs/{handle.id}/steps")).json()["items"]
    assert (step["name"], step["value"]) == ('event payout.approved[["acme",42]]', "ann")


async def test_a_job_shows_what_it_waits_for_and_its_inputs(server: Running, app: Headrace, add: Any):
    first = await add.aenqueue(1)
    last = await first.athen(add)
    shown = (await server.http.get(f"/v1/jobs/{last.id}")).json()
    assert shown["state"] == "blocked"
    assert shown["waits"] == [{"id": str(first.id), "needs": "done"}]
    assert shown["inputs"] == [str(first.id)]
    assert shown["arguments"]["args"] == [{"$out": str(first.id)}]
    assert "inputs" not in shown["options"]
    why = (await server.http.get(f"/v1/jobs/{last.id}/explain")).json()
    assert why["reason"] == "blocked"
    assert why["details"]["waits"][0]["id"] == str(first.id)
    [page] = [(await server.http.get("/v1/jobs", params={"state": "blocked"})).json()["items"]]
    assert [job["id"] for job in page] == [str(last.id)]
    assert (await server.http.get("/v1/stats")).json()["blocked"] == 1
    assert 'headrace_jobs_blocked{queue="default"} 1' in (await server.http.get("/metrics")).text


# ── a token that is bound to a tenant ────────────────────────────────────────


@pytest.fixture
async def bound(server: Running) -> AsyncIterator[httpx2.AsyncClient]:
    token = await server.token("enqueue", "read", "work", "operate", tenant="b")
    async with server.client(token) as client:
        yield client


def job(tenant: str = "b", **fields: Any) -> NewJob:
    return NewJob("add", NOTHING, Lane("default", 0, tenant), **fields)


async def test_a_bound_token_cannot_name_what_belongs_to_others(
    server: Running, app: Headrace, add: Any, bound: httpx2.AsyncClient
):
    rows, [theirs, _] = await opened(app, add)
    gate = NewGate(id=new_gate_id(), queue="default", tenant="b")
    other = NewGate(id=new_gate_id(), queue="default", tenant="acme")
    id = new_batch()
    refused = [
        Batch(new_batch(), [job(wait=Wait(theirs.id))]),
        Batch(new_batch(), [job(wait=Wait(rows.id))]),
        Batch(id, [job()], edges=(Edge(job_id(id, 0), job_id(id, 0), rows.id),)),
        Batch(new_batch(), [job()], (gate,), (Edge(theirs.id, theirs.id, gate.id),)),
        Batch(new_batch(), [], seals=(rows.id,)),
        Batch(new_batch(), [job()], (other,)),
        Batch(new_batch(), [job()], (NewGate(id=rows.id, queue="default", tenant="b"),)),
        Batch(new_batch(), [job(options=encode_options(JobOptions(inputs=(theirs.id,))))]),
        Batch(new_batch(), [job(options=encode_options(JobOptions(inputs=(rows.id,))))]),
    ]
    for batch in refused:
        answer = await tell(bound, "enqueue", wire.pack_batch(batch))
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), batch
    signal = NewGate(id=GateId(rows.id), queue="default", signalled=True, tenant="b")
    assert (await tell(bound, "signal", signal, b"v", timedelta(days=1))).status_code == 404
    assert wire.read_answer(wire.VERBS["gates"], (await tell(bound, "gates", [rows.id])).content) == [None]
    links = wire.read_answer(wire.VERBS["links"], (await tell(bound, "links", rows.id, None, 10)).content)
    assert (links.members, links.into, links.blocked) == ((), (), ())
    assert wire.read_answer(wire.VERBS["groups"], (await tell(bound, "groups", None, None, 10)).content) == []
    assert (await bound.get("/v1/groups")).json()["items"] == []
    for what in ("jobs", "workflow"):
        assert (await bound.get(f"/v1/groups/{rows.id}/{what}")).status_code == 404
    assert (await bound.post(f"/v1/groups/{rows.id}/cancel", json={})).status_code == 404
    assert (await rows.astatus()).cancelled == 0


async def test_a_bound_token_uses_gates_of_its_own_tenant(bound: httpx2.AsyncClient):
    id, gate = new_batch(), NewGate(id=new_gate_id(), queue="default", label="mine", tenant="b")
    batch = Batch(id, [job(), job(wait=Wait(gate.id))], (gate,), (Edge(job_id(id, 0), job_id(id, 0), gate.id),))
    assert (await tell(bound, "enqueue", wire.pack_batch(batch))).is_success
    [item] = (await bound.get("/v1/groups")).json()["items"]
    assert (item["label"], item["size"]) == ("mine", 1)
    graph = (await bound.get(f"/v1/jobs/{job_id(id, 1)}/workflow")).json()
    assert {node["id"] for node in graph["nodes"]} == {str(job_id(id, 1)), str(gate.id)}
    assert (await bound.get(f"/v1/groups/{gate.id}/workflow")).json()["nodes"] == graph["nodes"][::-1]
    [member] = (await bound.get(f"/v1/groups/{gate.id}/jobs")).json()["items"]
    assert member["id"] == str(job_id(id, 0))
