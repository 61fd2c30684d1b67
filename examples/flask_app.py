"""Flask: orders and the jobs for them in one transaction; tasks run in the application's context.

pip install headrace flask sqlalchemy
flask --app examples.flask_app run
flask --app examples.flask_app headrace worker        # in another terminal
curl -X POST localhost:5000/orders -H 'Content-Type: application/json' -d '{"item": "tea", "count": 2}'
flask --app examples.flask_app headrace jobs list
"""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, abort, current_app, request
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from headrace import JobNotFound
from headrace.integrations.flask import FlaskHeadrace

FILE = os.environ.get("SHOP_DB", "shop.db")

queue = FlaskHeadrace()
engine = create_engine(f"sqlite:///{FILE}")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    count: Mapped[int]
    shipped: Mapped[bool] = mapped_column(default=False)


@queue.task(queue="shipping")
def ship(order: int) -> str:
    with Session(engine) as session, session.begin():
        found = session.get_one(Order, order)
        found.shipped = True
        return f"{current_app.config['SHOP']}: {found.count} × {found.item} shipped"


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["HEADRACE_URL"] = f"sqlite:///{FILE}"
    app.config["SHOP"] = "the tea shop"
    queue.init_app(app)
    Base.metadata.create_all(engine)

    @app.post("/orders")
    def order() -> tuple[dict[str, Any], int]:
        asked = request.get_json()
        with Session(engine) as session, session.begin():
            made = Order(item=asked["item"], count=asked["count"])
            session.add(made)
            session.flush()
            # Committed or rolled back with the order itself.
            job = ship.using(tx=session).enqueue(made.id)
            if made.item == "nothing":
                abort(409)
            return {"order": made.id, "job": str(job.id)}, 201

    @app.get("/jobs/<uuid:id>")
    def job(id: Any) -> dict[str, Any]:
        try:
            return {"state": ship.handle(id).status().state}
        except JobNotFound:
            abort(404)

    return app
