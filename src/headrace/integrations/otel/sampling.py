"""Which spans are needed. What a sampler always decides in the same way is decided here, without a call of the SDK.

A span that the SDK drops takes longer than a short job. The samplers of the SDK that follow their parent, and those that draw
by the id of the trace, are known by their description. Every other sampler is asked, with all that it may want to know.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from random import getrandbits
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import trace

from headrace import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

NAME: Final = "headrace"
_OFF, _ON = "AlwaysOffSampler", "AlwaysOnSampler"
_WHOLE: Final = 1 << 64
"""A ratio is compared with the low 64 bits of the trace's id."""
_BY_PARENT = re.compile(
    r"ParentBased\{root:(?P<root>.*),remoteParentSampled:(?P<kept>.*),remoteParentNotSampled:(?P<remote>.*)"
    r",localParentSampled:.*,localParentNotSampled:(?P<local>.*)\}"
)
_BY_RATIO = re.compile(r"TraceIdRatioBased\{(?P<rate>[0-9.e-]+)\}")


class Rule(NamedTuple):
    """What a sampler decides whatever the span is about."""

    drops_remote: bool = False
    """No span follows a parent in another process that is not sampled."""
    drops_local: bool = False
    """No span follows a parent in this process that is not sampled."""
    root_bound: int | None = None
    """A trace that begins here is sampled if the low 64 bits of its id are below this. None: the sampler has to be asked."""
    has_sdk: bool = True
    """False: there are no spans and no traces."""
    keeps_remote: bool = False
    """A span follows every parent in another process that is sampled."""


ASK: Final = Rule()
NO_SDK: Final = Rule(drops_remote=True, drops_local=True, root_bound=0, has_sdk=False)


def rule_of(description: str) -> Rule:
    """The rule of a sampler that describes itself like this."""
    parts = _BY_PARENT.fullmatch(description)
    if parts is None or description.count("ParentBased{") > 1:
        return ASK
    return Rule(
        parts["remote"] == _OFF, parts["local"] == _OFF, _bound(parts["root"]), keeps_remote=parts["kept"] == _ON
    )


def _bound(description: str) -> int | None:
    if description in {_OFF, _ON}:
        return _WHOLE if description == _ON else 0
    ratio = _BY_RATIO.fullmatch(description)
    return None if ratio is None else round(float(ratio["rate"]) * _WHOLE)


class RootIds:
    """The ids of a tracer, but for the trace that begins in `begins`, whose id was drawn before."""

    def __init__(self, ids: Any) -> None:
        self._ids = ids
        self._next = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ids, name)

    def generate_trace_id(self) -> int:
        """The next id of a trace."""
        chosen: int | None = getattr(self._next, "id", None)
        return self._ids.generate_trace_id() if chosen is None else chosen

    @contextmanager
    def begins(self, trace_id: int) -> Generator[None]:
        """The trace that begins in this block has this id."""
        self._next.id = trace_id
        try:
            yield
        finally:
            self._next.id = None


class Sampling:
    """The tracer, and what is known of its sampler."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider
        self.tracer: Tracer = trace.get_tracer(NAME, __version__, provider)
        self._rule: Rule | None = None
        self.root_ids: RootIds | None = None
        """None: traces that begin here always get the id that the SDK draws."""

    @property
    def rule(self) -> Rule:
        """It is read once, when there is an SDK."""
        if self._rule is None:
            provider = self._provider or trace.get_tracer_provider()
            if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
                return NO_SDK  # Or there is none yet.
            self._rule = self._read(provider)
        return self._rule

    def _read(self, provider: TracerProvider) -> Rule:
        sampler: Any = getattr(provider, "sampler", None)
        if sampler is None:
            return ASK
        rule = rule_of(str(sampler.get_description()))
        # The SDK's own tracer instead of the one that stands for it until there is an SDK.
        tracer: Any = provider.get_tracer(NAME, __version__)
        self.tracer = tracer
        if rule.root_bound is not None and 0 < rule.root_bound < _WHOLE:
            ids: Any = getattr(tracer, "id_generator", None)
            if ids is None:
                return rule._replace(root_bound=None)
            if not isinstance(ids, RootIds):
                ids = tracer.id_generator = RootIds(ids)
            self.root_ids = ids
        return rule

    def draw(self) -> tuple[int, bool] | None:
        """The id of a trace that begins here, and whether it is sampled. None: the SDK has to be asked."""
        bound = self.rule.root_bound
        if bound is None or bound == _WHOLE:
            return None
        trace_id = getrandbits(128) or 1 if self.root_ids is None else self.root_ids.generate_trace_id()
        return trace_id, trace_id % _WHOLE < bound


def new_span_id() -> int:
    """A random id of a span."""
    return getrandbits(64) or 1
