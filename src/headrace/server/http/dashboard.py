"""`/`: the dashboard. `scripts/build_dashboard.py` builds its files into the package; a wheel contains them."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path
from typing import Final, NamedTuple

from starlette.responses import Response

from headrace.server.http import docs
from headrace.server.http.call import Call, HtmlPage
from headrace.server.http.endpoint import Endpoint
from headrace.server.http.problems import not_found

FOLDER: Final = Path(__file__).parent.parent / "page" / "dashboard"

POLICY: Final = f"{docs.POLICY}; require-trusted-types-for 'script'; trusted-types svelte-trusted-html"
"""As for every page. Besides, only the templates of the page's own framework may become HTML, and no value may."""

_MEDIA: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class _File(NamedTuple):
    """A file of the page, as it is and compressed."""

    data: bytes
    packed: bytes
    media: str


@functools.cache
def files(folder: Path) -> dict[str, _File]:
    """The files of the page by name. Empty: the dashboard is not built."""
    parts: dict[str, _File] = {}
    for path in (folder / "index.html", *sorted((folder / "dashboard").glob("*"))):
        if path.is_file() and (media := _MEDIA.get(path.suffix)) is not None:
            data = path.read_bytes()
            parts[path.name] = _File(data, gzip.compress(data, mtime=0), media)
    return parts


def _send(call: Call, file: _File, caching: str) -> Response:
    packs = "gzip" in call.request.headers.get("accept-encoding", "")
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": caching, "Vary": "Accept-Encoding"}
    if packs:
        headers["Content-Encoding"] = "gzip"
    return HtmlPage(file.packed if packs else file.data, media_type=file.media, headers=headers)


async def front(call: Call) -> Response:
    """GET /"""
    if "text/html" not in call.request.headers.get("accept", ""):
        raise not_found("there is no such path: /docs describes the API")
    page = files(FOLDER).get("index.html")
    if page is not None:
        return _send(call, page, "no-store")
    root: str = call.request.scope.get("root_path", "")
    return HtmlPage(status_code=303, headers={"Location": f"{root}/docs", "Cache-Control": "no-store"})


async def part(call: Call) -> Response:
    """GET /dashboard/{name}"""
    name = call.path["name"]
    file = None if name == "index.html" else files(FOLDER).get(name)
    if file is None:
        raise not_found("the dashboard has no such file: reload the page")
    # The name contains a hash of the content.
    return _send(call, file, "public, max-age=31536000, immutable")


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/",
        scope=None,
        does="Show the dashboard to a browser. Where it is not built, lead the browser to the web page of this API.",
        handler=front,
        answers={200: str, 303: None},
        problems=((404, "not_found"),),
        media="text/html",
    ),
    Endpoint(
        method="GET",
        path="/dashboard/{name}",
        scope=None,
        does="A file of the dashboard: its script, style or icon.",
        handler=part,
        answers={200: str},
        problems=((404, "not_found"),),
        media="text/javascript",
    ),
)
