"""The store is put together from objects: each verb has one, and no verb is built on another by inheritance."""

from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import iter_modules

import pytest

from headrace.store.contract import Prompt, Store
from headrace.store.redis import verbs
from headrace.store.redis.sharded import ShardedRedisStore
from headrace.store.redis.store import RedisStore

URL = "redis://127.0.0.1:6379"
VERBS = [name for kind in (Store, Prompt) for name, _ in inspect.getmembers(kind, inspect.iscoroutinefunction)]
OWN = {"open", "close", "migrate", "now"}
"""Life and time, which belong to no verb."""


def test_no_verb_inherits_from_another():
    modules = [import_module(f"{verbs.__name__}.{module.name}") for module in iter_modules(verbs.__path__)]
    classes = [kind for module in modules for _, kind in inspect.getmembers(module, inspect.isclass)]
    ours = [kind for kind in classes if kind.__module__.startswith(verbs.__name__)]
    assert ours
    assert [kind for kind in ours if any(base in ours for base in kind.__bases__)] == []


@pytest.mark.parametrize("name", sorted(set(VERBS) - OWN))
def test_each_verb_is_bound_to_its_object(name: str):
    store = RedisStore(URL)
    assert getattr(store, name).__self__.__class__.__module__.startswith(verbs.__name__)


@pytest.mark.parametrize("name", VERBS)
def test_the_wrapper_has_every_verb_with_its_arguments(name: str):
    inside, outside = RedisStore(URL), ShardedRedisStore(URL)
    contract = Prompt if name == "wait_to_claim" else Store
    wanted = [*inspect.signature(getattr(contract, name)).parameters.values()][1:]
    for store in (inside, outside):
        assert [
            (one.name, one.kind, one.default) for one in inspect.signature(getattr(store, name)).parameters.values()
        ] == [(one.name, one.kind, one.default) for one in wanted]
