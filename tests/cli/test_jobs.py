"""`headrace jobs`: looking, and the operator's moves."""

from __future__ import annotations

from uuid import uuid4

from cli.shell import Shell
from headrace.model.job import JobState


def test_list_filters(shell: Shell) -> None:
    shell.put(2, queue="billing", tenant="acme")
    shell.put(1, queue="mail", task="mail.send")
    shell.dead(1, queue="sad")

    def tasks(*given: str) -> list[str]:
        return [job["task"] for job in shell.json("jobs", "list", *given)["items"]]

    assert len(tasks()) == 4
    assert tasks("--queue", "billing") == ["shop.charge"] * 2
    assert tasks("--task", "mail.send") == ["mail.send"]
    assert tasks("--tenant", "acme") == ["shop.charge"] * 2
    assert tasks("--state", "dead") == ["shop.charge"]
    assert len(tasks("--state", "ready", "--state", "dead")) == 4
    assert tasks("--text", "no money") == ["shop.charge"]
    assert tasks("--text", "%") == []
    assert len(tasks("--since", "1h")) == 4
    assert tasks("--until", "1h") == []
    assert tasks("--since", "2099-01-01T00:00:00Z") == []


def test_list_finds_by_argument_and_never_by_a_masked_one(shell: Shell) -> None:
    shell.put(2)
    shell.put(1, queue="mail", task="mail.send")
    by_card = ("jobs", "list", "--text", "card=visa")
    assert len(shell.json(*by_card)["items"]) == 3
    assert (
        shell.json(*by_card, "--app", "shop:app")["items"] == shell.json("jobs", "list", "--task", "mail.send")["items"]
    )
    assert len(shell.json("jobs", "list", "--text", "acme", "--app", "shop:app")["items"]) == 3


def test_count(shell: Shell) -> None:
    shell.put(2, queue="billing", tenant="acme")
    shell.put(1, queue="mail", task="mail.send")
    shell.dead(1, queue="sad")
    number = shell.json("jobs", "count", "--text", "acme")
    assert number == {
        "count": 4,
        "looked_at": 4,
        "states": {"ready": 3, "dead": 1},
        "queues": {"billing": 2, "sad": 1, "mail": 1},
        "tasks": {"shop.charge": 3, "mail.send": 1},
        "tenants": {"acme": 2, "": 2},
    }
    assert shell.json("jobs", "count", "--queue", "mail")["count"] == 1
    assert shell("jobs", "count", "--state", "dead").stdout.startswith("1 job\n")
    assert shell("jobs", "count", "--text", "no such text").stdout == "0 jobs\n"


def test_a_move_by_text_looks_at_arguments(shell: Shell) -> None:
    shell.put(3)
    assert shell("jobs", "cancel", "--text", "card=visa").stdout == "cancelled 3\n"


def test_list_pages(shell: Shell) -> None:
    ids = [str(id) for id in shell.put(5)]
    first = shell.json("jobs", "list", "--limit", "3")
    rest = shell.json("jobs", "list", "--limit", "3", "--before", first["next"])
    assert [job["id"] for job in first["items"] + rest["items"]] == ids[::-1]
    assert rest["next"] is None
    assert "--before" in shell("jobs", "list", "--limit", "3").stderr


def test_list_for_people(shell: Shell) -> None:
    (id,) = shell.dead(1)
    lines = shell("jobs", "list").stdout.splitlines()
    assert lines[0].split() == ["id", "task", "queue", "state", "attempt", "age", "note"]
    assert lines[1].startswith(f"{id}  shop.charge  default  dead")


def test_show(shell: Shell) -> None:
    (id,) = shell.dead(1)
    page = shell("jobs", "show", str(id)).stdout
    assert "builtins.ValueError: no money" in page
    assert "Traceback" in page
    job = shell.json("jobs", "show", str(id))
    assert job["state"] == "dead"
    assert job["history"][0]["message"] == "no money"
    assert job["payload"] == {"args": [7, "acme"], "kwargs": {"card": "visa-4242"}}


def test_show_prints_the_steps_of_a_job(shell: Shell) -> None:
    (id,) = shell.put(1)
    shell.steps(id, "charge", "sleep")
    page = shell("jobs", "show", str(id)).stdout
    assert [line.split()[1:] for line in page.partition("steps\n")[2].splitlines()] == [["charge", "7"], ["sleep", "7"]]
    assert [step["name"] for step in shell.json("jobs", "show", str(id))["steps"]] == ["charge", "sleep"]


def test_an_app_masks_what_it_redacts(shell: Shell) -> None:
    (id,) = shell.put(1)
    shown = shell("jobs", "show", str(id), "--app", "shop:app").stdout
    assert "visa-4242" not in shown
    assert "acme" in shown
    assert "visa-4242" not in shell("jobs", "list", "--json", "--app", "shop:app").stdout


def test_a_look_without_the_app_masks_what_its_tasks_redact(shell: Shell) -> None:
    arguments = ("shop.charge", "7", '"acme"', "--kwargs", '{"card": "visa-4242"}', "--app", "shop:app")
    id = shell("enqueue", *arguments).stdout.strip()
    shell.end("billing", JobState.DEAD, message="no money")
    for command in (("jobs", "show", id), ("dead", "show", id)):
        shown = shell(*command).stdout
        assert "acme" in shown
        assert "visa-4242" not in shown
        assert "visa-4242" not in shell(*command, "--json").stdout
    assert "visa-4242" not in shell("dead", "discard", id, "--reason", "r", "--json").stdout


def test_nothing_from_a_store_moves_the_cursor(shell: Shell) -> None:
    shell.put(1)
    shell.end("default", JobState.DEAD, message="\x1b[2Jgone\r\n\x85")
    for command in (("jobs", "list"), ("dead", "list"), ("dead", "discard", "--everything", "--yes", "--reason", "r")):
        assert "\x1b" not in shell(*command).stdout


def test_show_of_no_job(shell: Shell) -> None:
    assert "no job" in shell.error("jobs", "show", str(uuid4()), code=1)


def test_cancel(shell: Shell) -> None:
    first, second = shell.put(2)
    assert "cancelled" in shell("jobs", "cancel", str(first), "--reason", "not needed").stdout
    assert shell.json("jobs", "show", str(first))["note"] == "not needed"
    assert shell.json("jobs", "cancel", str(first), code=1)["items"] == [{"id": str(first), "answer": "finished"}]
    assert shell.json("jobs", "cancel", str(uuid4()), code=1)["items"][0]["answer"] == "unknown"
    assert shell("jobs", "cancel", "--queue", "default", "--state", "ready").stdout == "cancelled 1\n"
    assert shell.json("jobs", "show", str(second))["state"] == "cancelled"


def test_retry_and_delete(shell: Shell) -> None:
    ids = [str(id) for id in shell.dead(3)]
    assert [each["answer"] for each in shell.json("jobs", "retry", *ids[:2])["items"]] == ["ready", "ready"]
    assert shell.states() == {"ready": 2, "dead": 1}
    assert [each["answer"] for each in shell.json("jobs", "delete", ids[2])["items"]] == ["deleted"]
    assert shell.states() == {"ready": 2}
    assert shell("jobs", "delete", "--everything", "--yes").stdout == "deleted 2\n"
    assert shell.states() == {}


def test_a_bulk_move_needs_a_choice(shell: Shell) -> None:
    (id,) = shell.put(1)
    assert "no jobs are selected" in shell.error("jobs", "cancel", code=2)
    assert "not both" in shell.error("jobs", "cancel", str(id), "--queue", "default", code=2)
    shell("jobs", "delete", "--everything", code=1, input="n\n")
    assert shell.states() == {"ready": 1}
    shell("jobs", "delete", "--everything", input="y\n")
    assert shell.states() == {}
