"""The enqueue of sync code: one script on a socket of its own, which the calling thread itself writes to and reads from."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import hiredis

from headrace.errors import Unavailable
from headrace.model.job import Batch
from headrace.model.records import Enqueued
from headrace.store.redis.client import faults
from headrace.store.redis.client.connection import (
    CONNECT_TIMEOUT,
    MORE,
    Command,
    Reply,
    greeting,
    keep_alive,
    tls_context,
    welcomed,
)
from headrace.store.redis.client.faults import Cut, Refused
from headrace.store.redis.client.packing import packed
from headrace.store.redis.client.url import Address

_PATIENCE: Final = 3.0
"""Seconds to wait for an answer. After that the store's own connections repeat the batch, with the URL's timeout."""
_PORTION: Final = 65536

CommandOf = Callable[[Batch], Command | None]
AnswerOf = Callable[[Batch, Reply], Enqueued]


class BlockingEnqueue:
    """See `contract.Blocking`. It connects when first used, and again after whatever breaks the connection."""

    waits_for_keys = False

    def __init__(self, address: Address, command: CommandOf, answered: AnswerOf) -> None:
        self._address = address
        self._command = command
        self._answered = answered
        self._line: _Line | None = None
        self._closed = False

    def enqueue(self, batch: Batch) -> Enqueued:
        command = self._command(batch)
        if command is None or self._closed:
            raise Unavailable("the store has to ask the server something first")
        try:
            answer = self._ask(command)
        except (Cut, Refused, OSError) as error:
            raise faults.translated(error, self._address.shown) from error
        if isinstance(answer, Refused):
            self._drop()  # the server may have become a replica, or may not know this script yet
            raise faults.translated(answer, self._address.shown)
        return self._answered(batch, answer)

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _ask(self, command: Command) -> Reply:
        line = self._line
        if line is None or not line.fit():
            self._drop()
            line = self._line = _Line(self._address)
        try:
            [answer] = line.ask(packed(command), 1)
        except BaseException:
            # Also an interrupt: what the server still answers must not be taken for the next call's answer.
            self._drop()
            raise
        return answer

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


def blocking(address: Address, command: CommandOf, answered: AnswerOf) -> BlockingEnqueue | None:
    """For one server. Which server of several it is, or which replicas have a job, only the store's own connections find out."""
    if address.kind != "single" or address.replicas:
        return None
    return BlockingEnqueue(address, command, answered)


class _Line:
    """A connection that blocks its thread."""

    def __init__(self, address: Address) -> None:
        self._reader = hiredis.Reader(replyError=Refused, notEnoughData=MORE)
        seconds = min(CONNECT_TIMEOUT, address.timeout)
        self._socket = _connected(address, seconds)
        try:
            keep_alive(self._socket)
            commands = greeting(address)
            welcomed(self.ask(b"".join(map(packed, commands)), len(commands)), len(commands))
            self._socket.settimeout(min(_PATIENCE, address.timeout))
        except BaseException as error:
            self.close()
            if isinstance(error, Cut):
                error.sent = False  # the batch was not
            raise
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    def fit(self) -> bool:
        """Nothing to read before anything was asked: else the server hung up, or the answers are out of step."""
        return not self._readable.poll(0)

    def ask(self, words: bytes, count: int) -> list[Reply]:
        """So many answers to these commands. Raises Cut."""
        answers: list[Reply] = []
        reader = self._reader
        try:
            self._socket.sendall(words)
            while len(answers) < count:
                data = self._socket.recv(_PORTION)
                if not data:
                    raise Cut("the server hung up", sent=True)
                reader.feed(data)
                while (answer := reader.gets()) is not MORE:
                    answers.append(answer)
        except (OSError, hiredis.ProtocolError) as error:
            raise Cut(str(error), sent=True) from error
        return answers

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


def _connected(address: Address, seconds: float) -> socket.socket:
    [(host, port)] = address.hosts
    try:
        plain = socket.create_connection((host, port), timeout=seconds)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = tls_context(address)
            return plain if context is None else context.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
    except (OSError, ssl.SSLError) as error:
        raise Cut(str(error), sent=False) from error
