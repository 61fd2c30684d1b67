"""The server's own settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What can be set of the server; the app's own settings say where the jobs live."""

    host: str = "127.0.0.1"
    port: int = 8200
    max_body: int = 1024 * 1024
    """Bytes of one request's body."""
    max_depth: int = 64
    """Of nested JSON."""
    max_keys: int = 1000
    """Of one JSON object."""
    max_headers: int = 100
    max_header_bytes: int = 32 * 1024
    """Of all headers of a request together."""
    read_timeout: float = 10.0
    """Seconds within which a request must have arrived, headers and body."""
    keep_alive: float = 65.0
    """Seconds that a connection may be idle between two requests."""
    drain: float = 25.0
    """Seconds that requests get to finish when the server is told to stop."""
    access_log: bool = True
    """One line of JSON per request on the logger `headrace.access`."""
    tidy: bool = True
    """Promote, reap and prune here: workers in other languages do not."""
    max_failures: int = 20
    """Wrong tokens per minute and address that are looked at; beyond that they are answered 429."""
    stats_ttl: float = 1.0
    """Seconds for which figures are answered from memory."""
    max_polls: int = 50
    """Looks at figures and lists per second and token (or address, without tokens); beyond that they are answered 429."""
    max_queues: int = 1000
    """Queues that one token (or all callers together, without tokens) may make by enqueueing to them, beyond those that the app declares; beyond that they are answered 429."""
