"""Limits written through the http store: a worker declares and reports, an operator sets figures.

A worker reports the outcomes of jobs and what its code declares. Both are in the rule's `state`, and the stored figures
follow from it. The server computes these figures itself, so a worker cannot write others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from headrace.errors import ConfigError
from headrace.model.lane import MAX_UNITS
from headrace.model.records import LimitRule
from headrace.model.scope import Scope
from headrace.operate.limits import base_of, check_figures, rule_from
from headrace.policy.recovery import LEAST_FACTOR, WELL, LimitHealth, State, unpack
from headrace.server.http.problems import missing_scope
from headrace.task.job_checks import check_time
from headrace.task.limit import LimitDeclaration

_MOST: Final = 2**31 - 1


def by_worker(rules: Mapping[str, LimitRule], name: str, rule: LimitRule | None) -> LimitRule | None:
    """The rule after a worker's report. Raises Problem or ConfigError if it is not a report."""
    known = _state(rules.get(name))
    if rule is None:
        # A recovered key has no rule of its own. Only an operator removes a whole limit.
        if ":" not in name or known.override is not None:
            raise missing_scope(Scope.OPERATE)
        return None
    state = unpack(rule.state)
    # Only an operator writes figures without a declaration, or removes a limit that no code declares.
    if state == State() or state.override != known.override or (known.declared and not state.declared):
        raise missing_scope(Scope.OPERATE)
    if ":" in name and state.declared is not None:
        raise ConfigError(f"limit {name}: code declares limits by name, without a key")
    base = state if ":" not in name else base_of(rules, name, state)
    if state.declared is not None:
        _check_declared(name, state.declared)
    if state.declared != known.declared:
        check_figures(name, state.declared, state.override)
    _check_health(name, state.health)
    return rule_from(state, base)


def _state(rule: LimitRule | None) -> State:
    return State() if rule is None else unpack(rule.state)


def _check_declared(name: str, declared: LimitDeclaration) -> None:
    figures = declared.figures
    counts = (figures.concurrency, figures.burst, declared.cost, declared.breaker)
    if any(count is not None and not 1 <= count <= MAX_UNITS for count in counts):
        raise ConfigError(f"limit {name}: concurrency, burst, cost and breaker are whole numbers up to {MAX_UNITS:,}")
    if figures.rate is not None and not 0 < figures.rate < math.inf:
        raise ConfigError(f"limit {name}: rate: units per second, more than 0")
    if not 0 < declared.cool_down <= _MOST:
        raise ConfigError(f"limit {name}: cool_down: seconds, more than 0")


def _check_health(name: str, health: LimitHealth) -> None:
    if health == WELL:
        return
    for at in (health.closed_at, health.closed_until, health.grown_at, health.failed_at):
        check_time(at)
    if not LEAST_FACTOR <= health.factor <= 1.0:
        raise ConfigError(f"limit {name}: a limit is never reduced below {LEAST_FACTOR} of its figures")
    if not (0 <= health.closings <= _MOST and 0 <= health.failures <= _MOST):
        raise ConfigError(f"limit {name}: closings and failures are counts")
