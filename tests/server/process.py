"""`headrace serve` as a process of its own, and the app that it serves."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

APP = """
from headrace import Headrace

app = Headrace()

@app.task(name="add")
async def add(a: int, b: int = 0) -> int:
    return a + b
"""


@asynccontextmanager
async def serving(
    folder: Path, url: str, port: int, *flags: str, command: str = "serve"
) -> AsyncGenerator[Process, None]:
    """A server process that answers."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.cli", command, "shop:app", "--port", str(port), *flags,
        cwd=folder, env={**os.environ, "HEADRACE_URL": url},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60), httpx2.AsyncClient(timeout=30, verify=False) as client:
            while True:
                try:
                    if (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                        break
                except httpx2.TransportError:
                    assert process.returncode is None, await process.communicate()
                    await asyncio.sleep(0.05)  # a process says nothing when it begins to listen
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
