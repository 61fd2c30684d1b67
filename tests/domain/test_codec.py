"""The codec: exact round trips, JSON from elsewhere, and bad input refused by the path where it sits."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain import shapes
from domain.shapes import Address, Box, Colour, Customer, Item, Level, Order, Point, Shipment, Tree
from headrace.errors import BadArguments, ConfigError, SerializationError
from headrace.task.codec import JobOptions, Signature, decode_options, encode_options

PLAIN = Signature(shapes.plain)
LOOSE = Signature(shapes.loose)
RICH = Signature(shapes.rich)

# ── round trips ──────────────────────────────────────────────────────────────

EVERYTHING = (
    2**64 - 1,
    0.1,
    True,
    "nul \x00, ünï, 🌊",
    b"\x00\xff",
    None,
    datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    date(1, 1, 1),
    time(23, 59, 59, 999999),
    timedelta(days=-3, microseconds=1),
    UUID(int=2**128 - 1),
    Decimal("-0.00010"),
    Colour.BLUE,
    Level.HIGH,
    Point(1, 2.5),
)


def test_every_type_survives_exactly():
    signature = Signature(shapes.everything)
    args, kwargs = signature.decode(signature.encode(EVERYTHING, {}))
    assert (args, kwargs) == (EVERYTHING, {})
    assert [type(one) for one in args] == [type(one) for one in EVERYTHING]
    assert str(args[11]) == "-0.00010"


def test_every_type_survives_as_a_result():
    signature = Signature(shapes.everything)
    data = signature.encode_result(EVERYTHING)
    assert signature.decode_result(data) == EVERYTHING


def test_naive_datetimes_stay_naive_and_zones_become_utc():
    def when(at: datetime) -> None: ...

    signature = Signature(when)
    naive = datetime.fromisoformat("2030-01-01T12:00")
    zoned = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert signature.decode(signature.encode((naive,), {}))[0][0].tzinfo is None
    assert signature.decode(signature.encode((zoned,), {}))[0][0] == zoned


def test_containers_survive():
    signature = Signature(shapes.containers)
    values = (
        [1, 2],
        {"a", "b"},
        frozenset({UUID(int=1)}),
        (1, 2, 3),
        {7: datetime(2030, 1, 1, tzinfo=UTC)},
        {UUID(int=2): [Decimal("1.10")]},
        {"a": 1},
        ["x"],
        None,
        "y",
        7,
        {"verbose": True},
        0,
        Box(7),
        [1],
        Path("/tmp/x"),
        {"any": [1, "two", b"three"]},
    )
    args, _ = signature.decode(signature.encode(values, {}))
    assert args == values
    assert [type(one) for one in args] == [type(one) for one in values]


def test_objects_survive_at_any_depth():
    order = Order(UUID(int=7), [Item("a", Decimal("9.99"), date(2030, 1, 1))], {"gift": True})
    tree = Tree(1, [Tree(2, [Tree(3)])])
    customer = Customer(
        name="Ada",
        since=datetime(2030, 1, 1, tzinfo=UTC),
        balance=Decimal("0.10"),
        key=b"\xff",
        addresses=[Address(street="s")],
        nickName="a",
    )
    shipment = Shipment(customer, {"home": Address(street="x", number=2)})
    payload = RICH.encode((order,), {"tree": tree, "customer": customer, "shipment": shipment})
    args, kwargs = RICH.decode(payload)
    assert args == (order, tree)
    assert kwargs == {"customer": customer, "shipment": shipment}
    assert RICH.decode_result(RICH.encode_result(order)) == order


def test_plain_data_may_stand_for_an_object():
    args, _ = RICH.decode(RICH.encode(({"id": str(UUID(int=7)), "items": [{"sku": "a", "price": "1"}]},), {}))
    assert args == (Order(UUID(int=7), [Item("a", Decimal(1))]),)


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-(2**63), 2**63), inner),
    max_leaves=20,
)


@given(json_like, st.lists(json_like, max_size=3), st.dictionaries(st.text(), json_like, max_size=3))
def test_any_plain_data_survives_without_annotations(first, rest, more):
    more = {name: value for name, value in more.items() if name not in {"a", "b"}}
    args, kwargs = LOOSE.decode(LOOSE.encode((first, *rest), more))
    assert repr((args, kwargs)) == repr(((first, *rest), more))


@given(
    st.builds(
        Order,
        st.uuids(),
        st.lists(
            st.builds(Item, st.text(), st.decimals(allow_nan=False, allow_infinity=False), st.none() | st.dates())
        ),
        st.dictionaries(st.text(), json_like),
    )
)
def test_any_object_survives(order):
    assert RICH.decode(RICH.encode((order,), {})) == ((order,), {})


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_raise_bad_arguments(payload):
    for signature in (PLAIN, LOOSE, RICH):
        with contextlib.suppress(BadArguments):
            signature.decode(payload)
        signature.show(payload, ["password"])
        signature.secrets(payload, ["password"])


# ── the call ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("args", "kwargs"), [((7, "acme"), {}), ((7,), {"shop": "acme"}), ((), {"shop": "acme", "order_id": 7})]
)
def test_one_call_has_one_payload_however_it_is_written(args, kwargs):
    payload = PLAIN.encode(args, kwargs)
    assert payload == PLAIN.encode((7, "acme"), {})
    assert PLAIN.decode(payload) == ((7, "acme"), {})
    assert payload[:1] not in {b"{", b"["}


def test_defaults_stay_out_so_that_later_defaults_hold():
    signature = Signature(shapes.defaults)
    assert signature.decode(signature.encode((1,), {"e": 5})) == ((1,), {"e": 5})
    assert signature.decode(signature.encode((1, 2, 3), {"d": 9, "e": 5, "f": 7})) == ((1, 2, 3, 9), {"e": 5, "f": 7})


def test_a_gap_is_passed_by_name():
    def gap(a: int, b: int = 2, c: int = 3) -> None: ...

    signature = Signature(gap)
    assert signature.decode(signature.encode((1,), {"c": 5})) == ((1,), {"c": 5})


def test_more_than_fifteen_arguments():
    def many(*numbers: int) -> None: ...

    signature = Signature(many)
    assert signature.decode(signature.encode(tuple(range(40)), {})) == (tuple(range(40)), {})


def test_canonical_payloads_are_equal_for_equal_arguments():
    one = LOOSE.encode(({"a": 1, "b": 2},), {"x": 1, "y": 2}, canonical=True)
    other = LOOSE.encode(({"b": 2, "a": 1},), {"y": 2, "x": 1}, canonical=True)
    assert one == other


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "message"),
    [
        (shapes.plain, (7,), {}, "plain() is missing 'shop'"),
        (shapes.plain, (), {}, "plain() is missing 'order_id', 'shop'"),
        (shapes.plain, (7, "a", 3), {}, "plain() takes 2 positional arguments, got 3"),
        (shapes.plain, (7,), {"shpo": "a"}, "plain() has no parameter 'shpo': did you mean 'shop'?"),
        (shapes.plain, (7, "a"), {"shop": "b"}, "plain() got 'shop' twice: by place and by name"),
        (shapes.plain, ("7", "a"), {}, "plain() argument 'order_id': expected `int`, got `str`"),
        (shapes.plain, (True, "a"), {}, "plain() argument 'order_id': expected `int`, got `bool`"),
        (shapes.plain, (7.5, "a"), {}, "plain() argument 'order_id': expected `int`, got `float`"),
        (shapes.plain, (7,), {"shop": None}, "plain() argument 'shop': expected `str`, got `None`"),
        (shapes.plain, (7,), {"shop": b"a"}, "plain() argument 'shop': expected `str`, got `bytes`"),
        (shapes.defaults, (1,), {}, "defaults() is missing 'e'"),
        (shapes.defaults, (), {"a": 1, "e": 5}, "defaults() has no parameter 'a'"),
        (shapes.defaults, (1,), {"e": 5, "f": "x"}, "defaults() argument 'f': expected `int`, got `str`"),
        (
            shapes.rich,
            (Order(UUID(int=1), [Item("a", Decimal(1)), {"sku": "b", "price": "x"}]),),  # type: ignore[list-item]
            {},
            "rich() argument 'order.items[1].price': invalid decimal string",
        ),
        (shapes.rich, (None,), {}, "rich() argument 'order': expected `object`, got `None`"),
    ],
)
def test_wrong_calls_say_which_parameter_and_why(function, args, kwargs, message):
    with pytest.raises(BadArguments) as caught:
        Signature(function).encode(args, kwargs)
    assert str(caught.value) == message


def test_constraints_of_annotations_hold():
    def bounded(n: Annotated[int, msgspec.Meta(ge=0)]) -> None: ...

    with pytest.raises(BadArguments, match=r"bounded\(\) argument 'n': expected `int` >= 0"):
        Signature(bounded).encode((-1,), {})


def test_a_pydantic_model_says_what_is_wrong():
    customer = {"name": "Ada", "since": "2030-01-01T00:00:00Z", "balance": "hunter2", "token": "hunter2"}
    with pytest.raises(BadArguments, match=r"argument 'customer': balance: .*decimal") as caught:
        RICH.encode((Order(UUID(int=1)),), {"customer": customer})
    assert "hunter2" not in str(caught.value)


# ── values that cannot be stored ─────────────────────────────────────────────


@dataclass
class Holder:
    x: Any = None


def circular_list() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def circular_dict() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


UNSTORABLE = [
    (object(), "", "object"),
    (Holder(object()), ".x", "object"),
    ([1, {"a": (0, Holder([lambda: 1]))}], "[1]['a'][1].x[0]", "function"),
    (Point(1, object()), ".y", "object"),  # type: ignore[arg-type]
    (Tree(1, [Tree(2), Tree(object())]), ".children[1].value", "object"),  # type: ignore[arg-type]
    (2**64, "", "64 bits"),
    ([-(2**63) - 1], "[0]", "64 bits"),
    (math.nan, "", "finite"),
    ({"a": [math.inf]}, "['a'][0]", "finite"),
    (Holder(-math.inf), ".x", "finite"),
    (shapes.Measured(metres=math.nan), ".metres", "finite"),
    ("\ud800", "", "surrogate"),
    ({"a": ["ok", "\udfff"]}, "['a'][1]", "surrogate"),
    (circular_list(), "[0]", "contains itself"),
    (circular_dict(), "['self'][0]", "contains itself"),
    (set(), "", "set would arrive as a list"),
    ([{"a": {1}}], "[0]['a']", "set would arrive as a list"),
    (UUID(int=1), "", "UUID would arrive as a str"),
    (Decimal(1), "", "Decimal would arrive as a str"),
    ({"a": datetime.fromisoformat("2030-01-01T12:00")}, "['a']", "datetime would arrive as a str"),
    (Holder(1), "", "Holder would arrive as a dict"),
    ([Colour.RED], "[0]", "Colour would arrive as a str"),
    (Path("/"), "", "PosixPath would arrive as a str"),
    (range(3), "", "range"),
    ((n for n in ()), "", "generator"),
    (1j, "", "complex"),
    (shapes.Secretive(password="hunter2"), ".password", "SecretStr hides its value"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("value", "path", "problem"), UNSTORABLE, ids=[f"{p or '.'}-{w}" for _, p, w in UNSTORABLE])
def test_s12_what_cannot_be_stored_is_named_by_its_path(value, path, problem):
    for args, kwargs, start in [
        ((value,), {}, "args[0]"),
        (("fine", value), {}, "args[1]"),
        ((), {"a": value}, "kwargs['a']"),
        (("fine",), {"order": value}, "kwargs['order']"),
    ]:
        with pytest.raises(SerializationError, match=problem) as caught:
            LOOSE.encode(args, kwargs)
        assert caught.value.path == start + path
        assert "hunter2" not in str(caught.value)


def test_a_bad_key_is_named():
    with pytest.raises(SerializationError, match="surrogate") as caught:
        LOOSE.encode(({"a": {"\ud800": 1}},), {})
    assert caught.value.path == "the key '\\ud800' of args[0]['a']"


def test_nesting_beyond_reason_is_refused():
    # How deep is too deep is the interpreter's to say, and whether encoding or decoding finds it first.
    with pytest.raises((SerializationError, BadArguments), match=r"nested .*deep"):
        LOOSE.encode((deep(100_000),), {})


def test_plain_values_that_only_look_suspicious_pass():
    # These bytes look like a NaN to a search; they are none.
    assert LOOSE.encode((b"\xcb\x7f\xf8", "\u02ff\u07f8"), {})
    assert LOOSE.encode((1.5,), {})


def test_subclasses_of_plain_types_are_stored_as_those():
    class Text(str):
        __slots__ = ()

    class Number(float):
        pass

    assert LOOSE.decode(LOOSE.encode((Text("a"), Number(1.5)), {})) == (("a", 1.5), {})


# ── JSON from elsewhere ──────────────────────────────────────────────────────


def test_json_payloads_are_read_by_the_same_types():
    order = {"id": str(UUID(int=7)), "items": [{"sku": "a", "price": "9.99", "made": "2030-01-01"}]}
    customer = {"name": "Ada", "since": "2030-01-01T00:00:00Z", "balance": "1.5", "nickName": "a"}
    payload = json.dumps({"args": [order], "kwargs": {"customer": customer}}).encode()
    args, kwargs = RICH.decode(payload)
    assert args == (Order(UUID(int=7), [Item("a", Decimal("9.99"), date(2030, 1, 1))]),)
    assert kwargs["customer"].nick == "a"
    assert kwargs["customer"].since == datetime(2030, 1, 1, tzinfo=UTC)


def test_json_keys_become_the_annotated_type():
    def keyed(ages: dict[int, str]) -> None: ...

    assert Signature(keyed).decode(b'{"args": [{"7": "x"}]}') == (({7: "x"},), {})


@pytest.mark.parametrize(
    "payload", [b'{"args": [7, "acme"]}', b'{"kwargs": {"shop": "acme", "order_id": 7}}', b'[7, "acme"]']
)
def test_json_calls(payload):
    args, kwargs = PLAIN.decode(payload)
    assert {**dict(zip(("order_id", "shop"), args, strict=False)), **kwargs} == {"order_id": 7, "shop": "acme"}


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b'{"args": ["7", "acme"]}', "argument 'order_id': expected `int`, got `str`"),
        (b'{"args": [7]}', "is missing 'shop'"),
        (b'{"args": [7, "a"], "extra": 1}', "unknown field `extra`"),
        (b'{"args": 7}', "Expected `array`"),
        (b'{"args": [NaN, "a"]}', "malformed"),
        (b'{"args": [1e999, "a"]}', "out of range"),
        (b'{"args": [7, "\\ud800"]}', "shop|truncated"),
        (b'{"args": [7, "a"]', "truncated"),
        ("{}".encode("utf-16"), "not a set of arguments"),
        (b"\xff\xfe", "not a set of arguments"),
        (b"[" * 10_000_000 + b"]" * 10_000_000, "nested too deeply"),
        (b"\x92" + b"\x91" * 10_000_000, "nested too deeply"),
        (b"\x92\xdd\xff\xff\xff\xff", "truncated"),
        (b"", "truncated"),
        (b"cos\nsystem\n(S'id'\ntR.", "not a set of arguments"),
        (b"\x80\x04\x95", "not a set of arguments"),
        (b"\x93\x90\x80\x80", "not a set of arguments"),
    ],
)
def test_unreadable_payloads(payload, message):
    with pytest.raises(BadArguments, match=f"(?i){message}"):
        PLAIN.decode(payload)


# ── results ──────────────────────────────────────────────────────────────────


def test_no_result_is_no_bytes():
    assert PLAIN.encode_result(None) is None
    assert PLAIN.decode_result(None) is None


def test_a_result_that_is_not_as_annotated_says_so():
    data = LOOSE.encode_result(["not an order"])
    with pytest.raises(SerializationError, match=r"result: is not what rich\(\) is annotated to return"):
        RICH.decode_result(data)


def test_a_function_annotated_to_return_nothing_may_return_something():
    assert PLAIN.decode_result(PLAIN.encode_result({"rows": 7})) == {"rows": 7}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), "result"),
        ({"a": [math.nan]}, "result['a'][0]"),
        (["\ud800"], "result[0]"),
        (circular_list(), "result[0]"),
    ],
)
def test_results_that_cannot_be_stored(value, path):
    with pytest.raises(SerializationError) as caught:
        LOOSE.encode_result(value)
    assert caught.value.path == path


# ── declarations ─────────────────────────────────────────────────────────────


class Session:
    pass


def takes_session(session: Session) -> None: ...
def takes_sessions(sessions: list[Session]) -> None: ...
def takes_either(at: str | datetime) -> None: ...
def gives_session() -> Session: ...
def takes_unknown(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - that is the point


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (takes_session, "parameter 'session': Session cannot be stored"),
        (takes_sessions, "parameter 'sessions': Session cannot be stored"),
        (takes_either, "parameter 'at': Type unions may not contain"),
        (gives_session, r"gives_session\(\) returns: Session cannot be stored"),
        (takes_unknown, "annotation 'Nowhere' cannot be resolved"),
    ],
)
def test_signatures_that_cannot_be_stored_are_refused_at_once(function, message):
    with pytest.raises(ConfigError, match=message):
        Signature(function)


# ── options ──────────────────────────────────────────────────────────────────


def test_no_options_are_no_bytes():
    assert encode_options(JobOptions()) is None
    assert decode_options(None) == JobOptions()


def test_options_survive():
    options = JobOptions(timeout=1.5, max_attempts=3)
    assert decode_options(encode_options(options)) == options
    assert decode_options(b'{"timeout": 1.5, "max_attempts": 3}') == options


@pytest.mark.parametrize("data", [b"\xc1", b"{", b'{"retries": 3}', b"\x81\xa1x\x01", b'{"timeout": "soon"}'])
def test_bad_options(data):
    with pytest.raises(BadArguments, match="options cannot be read"):
        decode_options(data)
