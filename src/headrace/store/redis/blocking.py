"""The enqueue of sync code: one script on a socket of its own, which the calling thread itself writes to and reads from."""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import hiredis

from headrace.errors import Unavailable
from headrace.model.job import Batch
from headrace.model.records import Enqueued
from headrace.store.redis.client import faults
from headrace.store.redis.client.connection import CONNECT_TIMEOUT, MORE, Reply
from headrace.store.redis.client.faults import Cut, Refused
from headrace.store.redis.client.handshake import greeting, keep_alive, tls_context, welcomed
from headrace.store.redis.client.packing import packed
from headrace.store.redis.client.url import Address
from headrace.store.redis.verbs.enqueue import Enqueue

_PATIENCE: Final = 3.0
"""Seconds to wait for an answer. After that the store's own connections repeat the batch, with the URL's timeout."""
_PORTION: Final = 65536

Spread = Callable[[Batch], Batch]
"""Places the jobs of a batch in the shards of their queues."""


class BlockingEnqueue:
    """See `contract.Blocking`. It connects when first used, and again after whatever breaks the connection."""

    waits_for_keys = False

    def __init__(self, address: Address, verb: Enqueue, spread: Spread | None) -> None:
        self._address = address
        self._verb = verb
        self._spread = spread
        self._line: _Line | None = None
        self._closed = False

    def enqueue(self, batch: Batch) -> Enqueued:
        if self._spread is not None:
            batch = self._spread(batch)
        answer = self._answer(self._verb.command(batch))
        if answer == 0:
            answer = self._answer(self._verb.general_command(batch))
        return self._verb.answered(batch, answer)

    def _answer(self, command: bytes | None) -> Reply:
        if command is None or self._closed:
            raise Unavailable("the store has to ask the server something first")
        try:
            answer = self._ask(command)
        except (Cut, Refused, OSError) as error:
            raise faults.translated(error, self._address.shown) from error
        if isinstance(answer, Refused):
            self._drop()  # the server may have become a replica, or may not know this script yet
            raise faults.translated(answer, self._address.shown)
        return answer

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _ask(self, command: bytes) -> Reply:
        line = self._line
        if line is None or not line.fit():
            self._drop()
            line = self._line = _Line(self._address)
        try:
            return line.ask_one(command)
        except BaseException:
            # Also an interrupt: what the server still answers must not be taken for the next call's answer.
            self._drop()
            raise

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


def blocking(address: Address, verb: Enqueue, spread: Spread | None = None) -> BlockingEnqueue | None:
    """For one server. Which server of several it is, or which replicas have a job, only the store's own connections find out."""
    if address.kind != "single" or address.replicas:
        return None
    return BlockingEnqueue(address, verb, spread)


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
            _bound(self._socket, min(_PATIENCE, address.timeout))
        except BaseException as error:
            self.close()
            if isinstance(error, Cut):
                error.sent = False  # the batch was not
            raise
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    def fit(self) -> bool:
        """Nothing to read before anything was asked: else the server hung up, or the answers are out of step."""
        return not self._reader.has_data() and not self._readable.poll(0)

    def ask_one(self, command: bytes) -> Reply:
        """The answer to a command that leaves the reader empty, in one piece in most cases. Raises Cut."""
        try:
            self._socket.sendall(command)
            while True:
                data = self._socket.recv(_PORTION)
                if not data:
                    raise Cut("the server hung up", sent=True)
                self._reader.feed(data)
                if (answer := self._reader.gets()) is not MORE:
                    return answer
        except (OSError, hiredis.ProtocolError) as error:
            raise Cut(str(error), sent=True) from error

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


def _bound(line: socket.socket, seconds: float) -> None:
    """Let a send or a read fail after so many seconds."""
    line.settimeout(seconds)
    if isinstance(line, ssl.SSLSocket) or os.name != "posix":
        return
    # A socket with a timeout of Python's own polls before each send and each read. The kernel's timeouts need no call.
    # Zero would mean no timeout at all.
    span = struct.pack("ll", *divmod(max(1, int(seconds * 1_000_000)), 1_000_000))
    with suppress(OSError):  # a system that has its times in another form keeps Python's timeout
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
        line.settimeout(None)


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
