"""FastAPI: orders and the jobs for them in one transaction, a worker in the same process, the queue's own HTTP API mounted.

pip install 'headrace[server]' fastapi 'sqlalchemy[asyncio]' aiosqlite
uvicorn examples.fastapi_app:web
curl -X POST localhost:8000/orders -H 'Content-Type: application/json' -d '{"item": "tea", "count": 2}'
curl localhost:8000/receipts/<the job's id>
curl localhost:8000/queue/v1/queues
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from headrace import Headrace, JobNotFound, ResultTimeout
from headrace.integrations.starlette import lifespan
from headrace.server import asgi

FILE = os.environ.get("SHOP_DB", "shop.db")

queue = Headrace(f"sqlite:///{FILE}")
engine = create_async_engine(f"sqlite+aiosqlite:///{FILE}")
sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    count: Mapped[int]
    shipped: Mapped[bool] = mapped_column(default=False)


@queue.task(queue="shipping")
async def ship(order: int) -> str:
    async with sessions.begin() as session:
        found = await session.get_one(Order, order)
        found.shipped = True
        return f"{found.count} × {found.item} shipped"


@asynccontextmanager
async def tables(_: FastAPI) -> AsyncGenerator[None, None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


web = FastAPI(lifespan=lifespan(queue, worker=True, within=tables))
web.mount("/queue", asgi(queue))


class NewOrder(BaseModel):
    item: str = Field(min_length=1, max_length=40)
    count: int = Field(ge=1, le=100)


@web.post("/orders", status_code=201)
async def order(new: NewOrder) -> dict[str, Any]:
    async with sessions.begin() as session:
        made = Order(item=new.item, count=new.count)
        session.add(made)
        await session.flush()
        # Committed or rolled back with the order itself.
        job = await ship.using(tx=session).aenqueue(made.id)
        if new.item == "nothing":
            raise HTTPException(409, "we have sold out of nothing")
    return {"order": made.id, "job": str(job.id)}


@web.get("/receipts/{job}")
async def receipt(job: str) -> dict[str, str]:
    try:
        return {"receipt": await ship.handle(job).aresult(timeout=10)}
    except JobNotFound:
        raise HTTPException(404, "no such job") from None
    except ResultTimeout:
        raise HTTPException(504, "not shipped yet") from None
