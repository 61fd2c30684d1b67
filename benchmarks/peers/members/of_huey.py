"""Huey: `huey` is for its consumer; as a program it produces. Results are off."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from benchmarks.peers.members.body import body, fail_once
from benchmarks.peers.members.producer import once, serve

_peer: Any = import_module("huey")
_url = os.environ["PEERS_URL"]
huey: Any = (
    _peer.RedisHuey("peers", url=_url, results=False)
    if _url.startswith("redis:")
    else _peer.SqliteHuey("peers", filename=_url.removeprefix("sqlite:///"), fsync=True, results=False)
)
task: Any = huey.task()(body)
failing_task: Any = huey.task(retries=1)(fail_once)


def _bulk(texts: Sequence[str]) -> None:
    for text in texts:
        task(text)


def _failing(texts: Sequence[str]) -> None:
    for text in texts:
        failing_task(text)


if __name__ == "__main__":
    if sys.argv[1] == "once":
        once(task, sys.argv[2:])
    else:
        serve(task, _bulk, _failing)
