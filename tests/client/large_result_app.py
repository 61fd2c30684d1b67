"""An app whose process tasks have large results: the child imports this module."""

from __future__ import annotations

import os

from headrace import FolderResults, Headrace


class Folder:
    """The folder that the environment names when a result is written or read."""

    def put(self, name: str, data: bytes) -> None:
        FolderResults(os.environ["LARGE_RESULTS"]).put(name, data)

    def get(self, name: str) -> bytes:
        return FolderResults(os.environ["LARGE_RESULTS"]).get(name)


app = Headrace("memory://", poll="20ms", app="client.large_result_app:app")
app.large_results(Folder(), over=1000)


@app.task(executor="process")
def in_process(size: int) -> str:
    return "x" * size
