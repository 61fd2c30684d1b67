"""`headrace dead`: replay and discard, by id and by filter."""

from __future__ import annotations

from cli.shell import Shell


def test_list_and_show(shell: Shell) -> None:
    shell.put(1)
    (id,) = shell.dead(1, queue="sad")
    assert [job["id"] for job in shell.json("dead", "list")["jobs"]] == [str(id)]
    assert shell.json("dead", "list", "--queue", "other")["jobs"] == []
    assert shell.json("dead", "show", str(id))["history"][0]["kind"] == "builtins.ValueError"
    assert "no money" in shell("dead", "show", str(id)).stdout


def test_replay_by_id(shell: Shell) -> None:
    first, second = shell.dead(2)
    assert shell("dead", "replay", str(first)).stdout == "replayed 1 job\n"
    assert shell.states() == {"ready": 1, "dead": 1}
    assert "not dead" in shell.error("dead", "replay", str(first), code=1)
    assert shell.json("dead", "replay", str(second)) == {"replayed": [str(second)], "refused": []}


def test_replay_by_filter(shell: Shell) -> None:
    shell.dead(3, queue="sad")
    shell.dead(2, queue="worse")
    assert shell("dead", "replay", "--queue", "sad").stdout == "replayed 3 jobs\n"
    assert shell.states() == {"ready": 3, "dead": 2}


def test_replay_of_more_than_a_page(shell: Shell) -> None:
    shell.dead(1201)
    assert shell("dead", "replay", "--all", "--yes").stdout == "replayed 1,201 jobs\n"
    assert shell.states() == {"ready": 1201}


def test_all_asks_first(shell: Shell) -> None:
    shell.dead(2)
    shell("dead", "replay", "--all", code=1, input="n\n")
    assert shell.states() == {"dead": 2}
    shell("dead", "replay", "--all", input="y\n")
    assert shell.states() == {"ready": 2}
    assert "which jobs?" in shell.error("dead", "replay", code=2)


def test_discard_leaves_a_record(shell: Shell) -> None:
    first, second = shell.dead(2)
    lines = shell("dead", "discard", str(first)).stdout.splitlines()
    assert lines == [
        f"discarded {first} shop.charge (default): max_attempts: builtins.ValueError: no money",
        "discarded 1 job",
    ]
    gone = shell.json("dead", "discard", "--task", "shop.charge", "--app", "shop:app")["discarded"]
    assert [record["id"] for record in gone] == [str(second)]
    assert "4242" not in str(gone)
    assert shell.states() == {}


def test_discard_touches_only_the_dead(shell: Shell) -> None:
    (id,) = shell.put(1)
    assert "not dead" in shell.error("dead", "discard", str(id), code=1)
    assert shell.states() == {"ready": 1}
