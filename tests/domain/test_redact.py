"""Masking: what is shown of a payload, and what is scrubbed from text."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from domain import shapes
from domain.shapes import Customer, Order, Packed, Renamed
from headrace.task import codec
from headrace.task.codec import Signature

MASK = "•••"
SECRET = Signature(shapes.secret)


def packed(login: Packed, key: Renamed) -> None: ...


def modelled(customer: Customer, orders: list[Order]) -> None: ...


def shown(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], redact: list[str]) -> dict[str, Any]:
    found = signature.show(signature.encode(args, kwargs), redact)
    assert "hunter2" not in json.dumps(found)
    return found


def test_parameters_by_place_and_by_name():
    expected = {"args": ["ada", MASK], "kwargs": {}}
    assert shown(SECRET, ("ada", "hunter2"), {}, ["password"]) == expected
    assert shown(SECRET, ("ada",), {"password": "hunter2"}, ["PASSWORD"]) == expected


def test_keys_at_any_depth_in_any_case():
    extra = {"nested": [{"Password": "hunter2", "ok": 1}], "password": {"old": "hunter2"}}
    found = shown(SECRET, ("ada", "hunter2", extra), {}, ["password"])
    assert found["args"][2] == {"nested": [{"Password": MASK, "ok": 1}], "password": MASK}


def test_fields_that_are_stored_without_their_names():
    found = shown(Signature(packed), (Packed("ada", "hunter2"), Renamed("hunter2", "ada")), {}, ["password", "api_key"])
    assert found["args"] == [{"user": "ada", "password": MASK}, {"api_key": MASK, "user_name": "ada"}]
    assert shown(Signature(packed), (Packed("ada", "hunter2"), Renamed("hunter2", "x")), {}, ["password", "apikey"])


def test_models_and_dataclasses():
    customer = Customer(
        name="Ada", since=datetime(2030, 1, 1, tzinfo=UTC), balance=Decimal("1.5"), token="hunter2", nickName="hunter2"
    )
    found = shown(
        Signature(modelled), (customer, [Order(UUID(int=1), password="hunter2")]), {}, ["token", "password", "nickname"]
    )
    assert found["args"][0]["token"] == MASK
    assert found["args"][0]["nick"] == MASK
    assert found["args"][0]["balance"] == "1.5"
    assert found["args"][1][0]["password"] == MASK


def test_what_is_shown_is_json():
    signature = Signature(shapes.loose)
    payload = signature.encode((b"\xff", datetime(2030, 1, 1, tzinfo=UTC), {1: [None, True, 1.5]}), {})
    assert json.loads(json.dumps(signature.show(payload, []))) == {
        "args": ["/w==", "2030-01-01T00:00:00+00:00", {"1": [None, True, 1.5]}],
        "kwargs": {},
    }


def test_a_payload_of_an_unknown_task_is_shown_by_its_keys():
    payload = b'{"args": [1], "kwargs": {"password": "hunter2", "x": {"PASSWORD": "hunter2"}}}'
    assert codec.show(payload, ["password"]) == {"args": [1], "kwargs": {"password": MASK, "x": {"PASSWORD": MASK}}}


def test_a_payload_that_no_longer_fits_is_shown_all_the_same():
    assert SECRET.show(b'{"args": [7, "hunter2"]}', ["password"]) == {"args": [7, MASK], "kwargs": {}}


@pytest.mark.parametrize("payload", [b"", b"hunter2", b"cos\nsystem\n(S'hunter2'\ntR.", b"{", b"[" * 5000])
def test_what_cannot_be_read_is_only_counted(payload):
    for found in (codec.show(payload, ["password"]), SECRET.show(payload, ["password"])):
        assert found == {"args": [], "kwargs": {}, "problem": f"{len(payload)} bytes that are not arguments"}
    assert SECRET.secrets(payload, ["password"]) == []


def test_s72_secrets_are_scrubbed_from_text_as_such_and_as_repr():
    payload = SECRET.encode(
        ("ada", "hun'ter\n2"), {"extra": {"password": ["abc", 12345, None, True, b"bytes!"], "x": "y"}}
    )
    secrets = SECRET.secrets(payload, ["password"])
    assert set(secrets) == {"hun'ter\n2", "hun'ter\\n2", "abc", "12345", "bytes!"}
    text = codec.scrub("login(\"hun'ter\\n2\"): hun'ter\n2, 12345", secrets)
    assert text == f'login("{MASK}"): {MASK}, {MASK}'


def test_the_longest_secret_goes_first():
    assert codec.scrub("abcdef abc", ["abc", "abcdef"]) == f"{MASK} {MASK}"
