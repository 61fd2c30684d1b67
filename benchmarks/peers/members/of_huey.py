"""Huey: `huey` is for its consumer; as a program it produces. Results are off."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from benchmarks.peers.members.body import body
from benchmarks.peers.members.producer import serve

_peer: Any = import_module("huey")
_url = os.environ["PEERS_URL"]
huey: Any = (
    _peer.RedisHuey("peers", url=_url, results=False)
    if _url.startswith("redis:")
    else _peer.SqliteHuey("peers", filename=_url.removeprefix("sqlite:///"), fsync=True, results=False)
)
task: Any = huey.task()(body)


def _bulk(texts: Sequence[str]) -> None:
    for text in texts:
        task(text)


if __name__ == "__main__":
    serve(task, _bulk)
