"""Types that the codec's tests pass around."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic

T = TypeVar("T")
OrderId = NewType("OrderId", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict, total=False):
    verbose: bool
    tags: list[str]


@dataclass
class Item:
    sku: str
    price: Decimal
    made: date | None = None


@dataclass
class Order:
    id: UUID
    items: list[Item] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    password: str = ""


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


class Packed(msgspec.Struct, array_like=True):
    user: str
    password: str


class Renamed(msgspec.Struct, rename="camel"):
    api_key: str
    user_name: str


class Box(msgspec.Struct, Generic[T]):
    inside: T


class Address(pydantic.BaseModel):
    street: str
    number: int = 1


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)

    name: str
    since: datetime
    balance: Decimal
    key: bytes = b""
    addresses: list[Address] = []
    nick: str = pydantic.Field(default="", alias="nickName")
    token: str = ""


class Measured(pydantic.BaseModel):
    metres: float


class Secretive(pydantic.BaseModel):
    password: pydantic.SecretStr


@dataclass
class Shipment:
    customer: Customer
    others: dict[str, Address]


Everything = tuple[
    int, float, bool, str, bytes, None, datetime, date, time, timedelta, UUID, Decimal, Colour, Level, Point
]


def everything(
    a: int,
    b: float,
    c: bool,
    d: str,
    e: bytes,
    f: None,
    g: datetime,
    h: date,
    i: time,
    j: timedelta,
    k: UUID,
    m: Decimal,
    n: Colour,
    o: Level,
    p: Point,
) -> Everything: ...


def containers(
    a: list[int],
    b: set[str],
    c: frozenset[UUID],
    d: tuple[int, ...],
    e: dict[int, datetime],
    f: dict[UUID, list[Decimal]],
    g: Mapping[str, int],
    h: Sequence[str],
    i: int | str | None,
    j: Literal["x", "y"],
    k: OrderId,
    m: Options,
    n: Annotated[int, msgspec.Meta(ge=0)],
    o: Box[int],
    p: Iterable[int],
    q: Path,
    r: object,
) -> None: ...


def rich(
    order: Order, tree: Tree | None = None, *, customer: Customer | None = None, shipment: Shipment | None = None
) -> Order: ...


def loose(a, b=2, *rest, c=3, **more): ...


def plain(order_id: int, shop: str) -> None: ...


def defaults(a: int, b: int = 2, c: int = 3, /, d: int = 4, *, e: int, f: int = 6) -> None: ...


def secret(user: str, password: str, extra: dict[str, Any] | None = None) -> None: ...
