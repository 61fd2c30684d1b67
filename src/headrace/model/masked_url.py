"""URLs for display, without their secrets."""

from __future__ import annotations

import re


def mask_url(url: str) -> str:
    """A URL without its secrets, for messages, logs and `doctor`. In doubt it hides more."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return "•••" if "@" in url or "=" in url else url
    # A query begins with ?name=; any other "?" is an unescaped one in the password.
    match = re.search(r"\?[^?@/=]+=", rest)
    address, query = (rest[: match.start()], rest[match.start() :]) if match else (rest, "")
    if "@" not in address and "@" in rest and ":" in address:
        address, query = rest, ""
    userinfo, at, place = address.rpartition("@")
    if scheme in {"http", "https"} and userinfo:
        userinfo = ":"  # A server's token may be in place of the user.
    user, colon, _ = userinfo.partition(":")
    query = re.sub(r"(?i)([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&]*", r"\1•••", query)
    return f"{scheme}://{user}{':•••' if colon else ''}{at}{place}{query}"
