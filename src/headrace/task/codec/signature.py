"""One task's signature: checks a call, turns it into bytes and bytes into a call.

Arguments are stored as the MessagePack array `[args, kwargs]`, normalised: arguments are positional where possible, and
defaults stay out, so that a default that is changed later also counts for waiting jobs. Each payload is decoded once
with the worker's decoder before it is stored, unless its values are plain and have exactly the declared types. That
costs less than checking values one by one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

import msgspec

from headrace.errors import BadArguments, ConfigError, SerializationError, SerializerNotAllowed
from headrace.task.codec import problems, redact, types
from headrace.task.codec.hooks import HasPlaceholder, class_of, dec_hook, enc_hook, is_placeholder
from headrace.task.codec.references import is_key
from headrace.task.codec.result import MALFORMED, ResultCodec, encode, may_hold_non_finite

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_encode_sorted = msgspec.msgpack.Encoder(enc_hook=enc_hook, order="deterministic").encode
_raw_call = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw]])

_TWO, _EMPTY_ARRAY, _EMPTY_MAP = 0x92, 0x90, 0x80
_ARRAYS = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
"""The first bytes of MessagePack lists of any length."""
_EXACT = (str, int, bool, float, bytes)
_NO_NAMES: Kwargs = {}


def _reason(error: Exception) -> str:
    # How deep is too deep depends on the interpreter, and so does what it says.
    return problems.TOO_DEEP if isinstance(error, RecursionError) else str(error)


class _JsonCall(msgspec.Struct, forbid_unknown_fields=True):
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


_json_call = msgspec.json.Decoder(_JsonCall)
_json_args = msgspec.json.Decoder(list[msgspec.Raw])


class PlaceholderHook(Protocol):
    """Encodes the values that msgspec does not know, and placeholders of results."""

    @property
    def count(self) -> int:
        """The number of placeholders so far."""
        ...

    def __call__(self, value: Any, /) -> Any: ...


class Parameter:
    """One parameter: its type, and decoders made when they are first needed."""

    __slots__ = ("_json", "_msgpack", "keyword", "name", "required", "type")

    def __init__(self, name: str, kind: Any, *, required: bool, keyword: bool) -> None:
        self.name = name
        self.type = kind
        self.required = required
        self.keyword = keyword
        self._msgpack: msgspec.msgpack.Decoder[Any] | None = None
        self._json: msgspec.json.Decoder[Any] | None = None

    def decode(self, raw: msgspec.Raw, *, json: bool) -> Any:
        if json:
            if self._json is None:
                self._json = msgspec.json.Decoder(self.type, dec_hook=dec_hook)
            return self._json.decode(raw)
        if self._msgpack is None:
            self._msgpack = msgspec.msgpack.Decoder(self.type, dec_hook=dec_hook)
        return self._msgpack.decode(raw)


class Signature:
    """Built once per task from its function."""

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        self.name = name or str(getattr(function, "__name__", function))
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):
            raise ConfigError(f"{self.name}: a task needs a signature; wrap the builtin in a function") from None
        hints = types.hints(function, self.name)
        self._positional: list[Parameter] = []
        self._by_name: dict[str, Parameter] = {}
        self._more_args: Parameter | None = None
        self._more_kwargs: Parameter | None = None
        for parameter in signature.parameters.values():
            self._add(parameter, hints.get(parameter.name, Any))
        self._names = tuple(parameter.name for parameter in self._positional)
        self._needed = sum(parameter.required for parameter in self._positional)
        needs_names = any(
            parameter.required for parameter in self._by_name.values() if parameter.name not in self._names
        )
        # How many positional arguments make a complete call by themselves; an empty range when none do.
        self._plain = range(0) if needs_names else range(self._needed, len(self._positional) + 1)
        known = [*self._positional, *self._by_name.values(), self._more_args, self._more_kwargs]
        self._exact = tuple(
            parameter.type if any(parameter.type is kind for kind in _EXACT) else None for parameter in self._positional
        )
        # The types of complete calls whose values need no further look, as text and whole numbers do.
        self._sure = frozenset(self._exact[:n] for n in self._plain if not {None, float} & {*self._exact[:n]})
        self._vague = any(types.vague(parameter.type) for parameter in known if parameter is not None)
        self._by_arity: list[msgspec.msgpack.Decoder[tuple[Args, Kwargs]] | None]
        self._by_arity = [None] * (len(self._positional) + 1)
        results = ResultCodec(hints.get("return", Any), self.name)
        self.encode_result = results.encode
        self.decode_result = results.decode

    def _add(self, parameter: inspect.Parameter, hint: Any) -> None:
        kind = types.check(hint, f"{self.name}(): parameter {parameter.name!r}")
        required = parameter.default is parameter.empty
        keyword = parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
        ours = Parameter(parameter.name, kind, required=required, keyword=keyword)
        if parameter.kind is parameter.VAR_POSITIONAL:
            self._more_args = ours
        elif parameter.kind is parameter.VAR_KEYWORD:
            self._more_kwargs = ours
        else:
            if parameter.kind is not parameter.KEYWORD_ONLY:
                self._positional.append(ours)
            if keyword:
                self._by_name[parameter.name] = ours

    # ── a call → bytes ───────────────────────────────────────────────────────

    def encode(self, args: Args, kwargs: Mapping[str, Any], *, canonical: bool = False) -> bytes:
        """The arguments as bytes; raises BadArguments or SerializationError. `canonical`: equal for equal arguments."""
        if not kwargs and tuple(map(type, args)) in self._sure:
            try:
                return encode((args, _NO_NAMES))
            except Exception as error:  # noqa: BLE001 - as below
                self._refuse(args, kwargs, error)
        bound_args, bound_kwargs = self._bound(args, kwargs)
        try:
            payload = (_encode_sorted if canonical else encode)((bound_args, bound_kwargs))
        except HasPlaceholder:
            raise
        except Exception as error:  # noqa: BLE001 - a model's own code may raise anything; the walk finds where
            self._refuse(args, kwargs, error)
        if may_hold_non_finite(payload):
            for path, value in problems.called(args, kwargs):
                if problem := problems.find(path, value, problems.non_finite):
                    raise problem
        if not bound_kwargs and tuple(map(type, bound_args)) == self._exact[: len(bound_args)]:
            return payload  # Text or a number of exactly the declared type arrives unchanged.
        arrived = self._decode_msgpack(payload)
        if self._vague and arrived != (bound_args, bound_kwargs):
            self._compare(args, kwargs, arrived)
        return payload

    def encode_linked(
        self, args: Args, kwargs: Mapping[str, Any], marks: PlaceholderHook, *, canonical: bool = False
    ) -> bytes:
        """As `encode`, for arguments that may hold placeholders, which `marks` encodes. The worker checks those."""
        bound_args, bound_kwargs = self._bound(args, kwargs)
        known, exact = len(self._positional), self._exact
        raw_args = list(bound_args)
        for place, value in enumerate(bound_args):
            kind = class_of(value)
            if is_placeholder(kind):
                raw_args[place] = marks(value)
            elif place >= known or kind is not exact[place] or kind is float:
                parameter = self._positional[place] if place < known else self._more_args
                raw_args[place] = self._encode_one(parameter, f"args[{place}]", value, marks, canonical)
            # Else the value is text or a number of exactly the declared type, and arrives unchanged.
        for name, value in bound_kwargs.items():
            parameter = self._by_name.get(name) or self._more_kwargs
            bound_kwargs[name] = self._encode_one(parameter, f"kwargs[{name!r}]", value, marks, canonical)
        try:
            return (_encode_sorted if canonical else encode)((raw_args, bound_kwargs))
        except Exception as error:  # noqa: BLE001 - as in `encode`
            values = tuple(None if is_placeholder(class_of(value)) else value for value in bound_args)
            self._refuse(values, {}, error)

    def _encode_one(
        self, parameter: Parameter | None, path: str, value: Any, marks: PlaceholderHook, canonical: bool
    ) -> msgspec.Raw:
        """One argument, which is checked here unless it holds placeholders."""
        before = marks.count
        encoder = msgspec.msgpack.Encoder(enc_hook=marks, order="deterministic" if canonical else None)
        try:
            raw = msgspec.Raw(encoder.encode(value))
        except Exception as error:  # noqa: BLE001 - a model's own code may raise anything; the walk finds where
            problem = problems.find(path, value, problems.unstorable)
            raise problem or SerializationError(path, f"{type(error).__name__}: {error}") from None
        if marks.count == before:
            self._check_arrival(parameter, path, value, raw)
        elif is_key(bytes(raw)):
            raise SerializationError(path, "the result of another job is a key of a mapping: pass it as a value")
        return raw

    def _check_arrival(self, parameter: Parameter | None, path: str, value: Any, raw: msgspec.Raw) -> None:
        """One argument arrives as its parameter says, or an error."""
        if may_hold_non_finite(bytes(raw)) and (problem := problems.find(path, value, problems.non_finite)):
            raise problem
        arrived = self._decode_one(parameter, raw, path, json=False)
        if self._vague and arrived != value and (problem := problems.changed(path, value, arrived)):
            raise problem

    def _refuse(self, args: Args, kwargs: Mapping[str, Any], error: Exception) -> NoReturn:
        for path, value in problems.called(args, kwargs):
            if problem := problems.find(path, value, problems.unstorable):
                raise problem from None
        raise SerializationError("args", f"{type(error).__name__}: {error}") from error

    def _compare(self, args: Args, kwargs: Mapping[str, Any], arrived: tuple[Args, Kwargs]) -> None:
        got_args, got_kwargs = arrived
        by_name = {**dict(zip(self._names, got_args, strict=False)), **got_kwargs}
        for place, (before, after) in enumerate(zip(args, got_args, strict=False)):
            if problem := problems.changed(f"args[{place}]", before, after):
                raise problem
        for name, before in kwargs.items():
            if problem := problems.changed(f"kwargs[{name!r}]", before, by_name.get(name)):
                raise problem

    def _bound(self, args: Args, kwargs: Mapping[str, Any]) -> tuple[Args, Kwargs]:
        """The same for any call. Most of them need no look at the names."""
        return self._bind(args, kwargs) if kwargs or len(args) not in self._plain else (args, {})

    def _bind(self, args: Args, kwargs: Mapping[str, Any]) -> tuple[Args, Kwargs]:
        """The call normalised, or BadArguments."""
        given = len(args)
        if given > len(self._positional) and self._more_args is None:
            most = len(self._positional)
            raise self._bad(f"takes {most} positional argument{'' if most == 1 else 's'}, got {given}")
        names, placed = dict(kwargs), list(args)
        for parameter in self._positional[given:]:
            if not (parameter.keyword and parameter.name in names):
                break
            placed.append(names.pop(parameter.name))
        for name in names:
            self._check_name(name, given)
        reached = len(placed)
        missing = [
            parameter.name
            for parameter in self._positional[reached:]
            if parameter.required and parameter.name not in names
        ]
        missing += [
            parameter.name
            for parameter in self._by_name.values()
            if parameter.required and parameter.name not in self._names and parameter.name not in names
        ]
        if missing:
            raise self._bad("is missing " + ", ".join(map(repr, missing)))
        return tuple(placed), names

    def _check_name(self, name: str, given: int) -> None:
        parameter = self._by_name.get(name)
        if parameter is not None:
            if name in self._names[:given]:
                raise self._bad(f"got {name!r} twice: by place and by name")
        elif self._more_kwargs is None:
            from difflib import get_close_matches  # imported here, because only an error needs it

            close = get_close_matches(name, self._by_name, n=1)
            hint = f": did you mean {close[0]!r}?" if close else ""
            raise self._bad(f"has no parameter {name!r}{hint}")

    def _bad(self, problem: str) -> BadArguments:
        return BadArguments(f"{self.name}() {problem}")

    # ── bytes → a call ───────────────────────────────────────────────────────

    def decode(self, payload: bytes) -> tuple[Args, Kwargs]:
        """The call as the function takes it, from MessagePack or JSON; raises BadArguments, SerializerNotAllowed."""
        try:
            match payload[:1]:
                case b"{":
                    call = _json_call.decode(payload)
                    return self._decode_each(call.args, call.kwargs, json=True)
                case b"[":
                    return self._decode_each(_json_args.decode(payload), {}, json=True)
                case _:
                    return self._decode_msgpack(payload)
        except MALFORMED as error:
            raise BadArguments(
                f"the payload of a job of {self.name} is not a set of arguments: {_reason(error)}"
            ) from None

    def decode_linked(self, call: bytes, linked: Callable[[msgspec.Raw], Any]) -> tuple[Args, Kwargs]:
        """As `decode` for JSON. `linked` gives an argument that holds placeholders, and UNSET for the others."""
        try:
            given = _json_call.decode(call)
            return self._decode_each(given.args, given.kwargs, json=True, linked=linked)
        except MALFORMED as error:
            raise self._bad(f"cannot be called: {_reason(error)}") from None

    def _decode_msgpack(self, payload: bytes) -> tuple[Args, Kwargs]:
        # The common payload is [[…], {}] with fewer than 16 arguments. One typed decoder reads it whole.
        if payload[-1:] == b"\x80" and payload[0] == _TWO and (arity := payload[1] - _EMPTY_ARRAY) in self._plain:
            try:
                call = (self._by_arity[arity] or self._make_decoder(arity)).decode(payload)
            except MALFORMED:
                pass  # the slow way finds the parameter
            else:
                if not call[1]:
                    return call
        try:
            args, kwargs = _raw_call.decode(payload)
        except MALFORMED as error:
            what = f"the payload of a job of {self.name} is not a set of arguments"
            if payload and payload[0] not in _ARRAYS:
                raise SerializerNotAllowed(
                    f"{what}: it is neither MessagePack nor JSON, and nothing else is read"
                ) from None
            raise BadArguments(f"{what}: {_reason(error)}") from None
        return self._decode_each(args, kwargs, json=False)

    def _make_decoder(self, arity: int) -> msgspec.msgpack.Decoder[tuple[Args, Kwargs]]:
        hints = tuple(parameter.type for parameter in self._positional[:arity])
        decoder: msgspec.msgpack.Decoder[tuple[Args, Kwargs]]
        decoder = msgspec.msgpack.Decoder(types.call_type(hints), dec_hook=dec_hook)
        self._by_arity[arity] = decoder
        return decoder

    def _decode_each(
        self,
        args: list[msgspec.Raw],
        kwargs: dict[str, msgspec.Raw],
        *,
        json: bool,
        linked: Callable[[msgspec.Raw], Any] | None = None,
    ) -> tuple[Args, Kwargs]:
        self._bind(tuple(args), kwargs)
        known = len(self._positional)

        def each(parameter: Parameter | None, raw: msgspec.Raw, label: str) -> Any:
            if linked is not None and (value := linked(raw)) is not msgspec.UNSET:
                return value
            return self._decode_one(parameter, raw, label, json=json)

        found_args = [
            each(self._positional[place] if place < known else self._more_args, raw, f"{place}")
            for place, raw in enumerate(args)
        ]
        found_kwargs = {
            name: each(self._by_name.get(name) or self._more_kwargs, raw, name) for name, raw in kwargs.items()
        }
        return tuple(found_args), found_kwargs

    def _decode_one(self, parameter: Parameter | None, raw: msgspec.Raw, label: str, *, json: bool) -> Any:
        assert parameter is not None  # `_bind` has refused everything else.
        try:
            return parameter.decode(raw, json=json)
        except MALFORMED as error:
            problem, _, path = _reason(error).partition(" - at `$")
            where = f"{parameter.name}{path.rstrip('`')}"
            if parameter in (self._more_args, self._more_kwargs):
                where = f"{parameter.name}[{label}]{path.rstrip('`')}"
            raise self._bad(f"argument {where!r}: {problem[:1].lower()}{problem[1:]}") from None

    # ── for display ──────────────────────────────────────────────────────────

    def marks(self, hide: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What masks the same fields without this signature: field names, and names of positional arguments."""
        names = {name.casefold() for name in hide}
        others = (self._more_args, self._more_kwargs)
        known = [
            *self._positional,
            *self._by_name.values(),
            *(parameter for parameter in others if parameter is not None),
        ]
        stored = sorted({alias for parameter in known for alias in types.aliases(parameter.type, names)})
        # The fields of a NamedTuple are stored without names, so the whole argument is masked without the signature.
        whole = {parameter.name for parameter in known if types.unnamed(parameter.type, names)}
        masked = [name if name.casefold() in names or name in whole else "" for name in self._names]
        while masked and not masked[-1]:
            masked.pop()
        return tuple(dict.fromkeys((*hide, *stored, *sorted(whole)))), tuple(masked)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters that positional arguments are for."""
        return self._names

    def show(self, payload: bytes, hide: Iterable[str] = ()) -> dict[str, Any]:
        """`{"args": […], "kwargs": {…}}` as JSON values, with the fields named in `hide` masked. Never raises."""
        try:
            return redact.masked(self.decode(payload), hide, self._names)
        except BadArguments:
            return redact.show(payload, hide, self._names)

    def secrets(self, payload: bytes, hide: Iterable[str]) -> list[str]:
        """The values that `show` masks, as text, longest first. They are removed from tracebacks."""
        try:
            return redact.hidden(self.decode(payload), hide, self._names)
        except BadArguments:
            return redact.secrets(payload, hide, self._names)
