"""The example of the README: declare a task, enqueue a job, wait for its result."""

from __future__ import annotations

import asyncio

from headrace import Headrace, Retry

app = Headrace()  # HEADRACE_URL, else sqlite:///headrace.db: a file, no set-up


@app.task(retry=Retry(max_attempts=3), timeout="10s")
async def greet(name: str, *, times: int = 1) -> str:
    return " ".join([f"Hello {name}!"] * times)


async def main() -> None:
    async with app.worker():  # in production: headrace worker examples.hello:app
        handle = await greet.aenqueue("world", times=2)
        print(handle.id, await handle.aresult(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
