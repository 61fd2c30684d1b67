"""The server: an app's queue over HTTP, for producers, workers and operators in any language."""

from __future__ import annotations

from headrace.server.config import ServerSettings
from headrace.server.http.application import asgi, serve

__all__ = ["ServerSettings", "asgi", "serve"]
