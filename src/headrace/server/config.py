"""The server's own settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The server's settings. The app's own settings name the store."""

    host: str = "127.0.0.1"
    """The address that the server listens on. Any other than this machine's own needs a token first."""
    port: int = 8200
    """The port that the server listens on."""
    max_body: int = 1024 * 1024
    """The largest body of a request, in bytes."""
    max_depth: int = 64
    """The deepest nesting of JSON."""
    max_keys: int = 1000
    """The most keys of one JSON object."""
    max_headers: int = 100
    """The most headers of one request."""
    max_header_bytes: int = 32 * 1024
    """The largest size of all headers of a request together, in bytes."""
    read_timeout: float = 10.0
    """Seconds within which a request must have arrived, headers and body."""
    keep_alive: float = 65.0
    """Seconds that a connection may be idle between two requests."""
    drain: float = 25.0
    """Seconds in which requests may finish when the server stops."""
    access_log: bool = True
    """One line of JSON per request on the logger `headrace.access`."""
    tidy: bool = True
    """Whether the server promotes, reaps and prunes, because workers in other languages do not."""
    max_failures: int = 20
    """Wrong tokens per minute and address that are checked. Beyond it the server answers 429."""
    stats_ttl: float = 1.0
    """Seconds for which figures are kept in memory."""
    max_polls: int = 50
    """Reads of figures and lists per second and token (without tokens: address). Beyond it the server answers 429."""
    max_queues: int = 1000
    """Undeclared queues that one token (without tokens: all callers together) may create by enqueueing; then 429."""
