"""The app of worker processes that die between telling and settling."""

from __future__ import annotations

import os

from crash.crash_app import tell
from headrace.app import Headrace

app = Headrace()
app.webhook(os.environ["TEST_RECEIVER"])


@app.task(name="quick")
async def quick(number: int) -> int:
    tell("start", number)
    return number
