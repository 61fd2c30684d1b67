"""The dashboard as the server delivers it: its files, what a browser may do with them, and where it is not built."""

from __future__ import annotations

import gzip
import re
import shutil
import sys
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from headrace import Headrace
from headrace.server import asgi
from headrace.server.http import dashboard
from server.running import Running

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
ROOT = Path(__file__).parents[3]
MOST = 100_000
"""Bytes of the first load, compressed."""


async def test_a_browser_gets_the_dashboard_and_a_program_does_not(server: Running) -> None:
    page = await server.http.get("/", headers=BROWSER)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["cache-control"] == "no-store"
    program = await server.http.get("/")
    assert (program.status_code, program.json()["code"]) == (404, "not_found")


async def test_where_it_is_not_built_a_browser_is_led_to_the_docs(
    server: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dashboard, "FOLDER", tmp_path)
    led = await server.http.get("/", headers=BROWSER)
    assert (led.status_code, led.headers["location"]) == (303, "/docs")
    page = await server.http.get("/", headers=BROWSER, follow_redirects=True)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert (await server.http.get("/dashboard/index.js")).status_code == 404


async def test_s44_the_page_loads_its_own_files_and_runs_nothing_inline(server: Running) -> None:
    page = await server.http.get("/", headers=BROWSER)
    assert page.headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types svelte-trusted-html"
    )
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.text.count("<script") == page.text.count('src="./dashboard/')
    assert "style=" not in page.text
    assert "//" not in page.text
    names = re.findall(r'(?:src|href)="\./dashboard/([^"]+)"', page.text)
    assert {Path(name).suffix for name in names} == {".css", ".js", ".svg"}
    for name in names:
        part = await server.http.get(f"/dashboard/{name}")
        assert part.status_code == 200
        assert part.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert part.headers["content-security-policy"] == page.headers["content-security-policy"]


async def test_the_first_load_is_small(server: Running) -> None:
    page = await server.http.get("/", headers={**BROWSER, "Accept-Encoding": "gzip"})
    assert page.headers["content-encoding"] == "gzip"
    names = re.findall(r'(?:src|href)="\./dashboard/([^"]+)"', page.text)
    size = 0
    for name in names:
        part = await server.http.get(f"/dashboard/{name}", headers={"Accept-Encoding": "gzip"})
        assert part.headers["vary"] == "Accept-Encoding"
        size += int(part.headers["content-length"])
        plain = await server.http.get(f"/dashboard/{name}", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert len(gzip.compress(plain.content, mtime=0)) == int(part.headers["content-length"])
    assert size <= MOST


@pytest.mark.parametrize("name", ["index.html", "nothing.js", "sources.sha256", "..%2Findex.html", "%2e%2e%2fdocs.css"])
async def test_s23_no_other_file_is_served(server: Running, name: str) -> None:
    assert (await server.http.get(f"/dashboard/{name}")).status_code == 404


async def test_it_works_under_a_prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    app = Headrace("memory://")
    outer = Starlette(routes=[Mount("/queue", app=asgi(app))])
    transport = httpx2.ASGITransport(app=outer, client=("127.0.0.1", 50000))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        page = await http.get("/queue", headers=BROWSER, follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, "/queue/")
        [script] = re.findall(r'src="\./(dashboard/[^"]+\.js)"', page.text)
        assert (await http.get(f"/queue/{script}")).status_code == 200
        monkeypatch.setattr(dashboard, "FOLDER", tmp_path)
        led = await http.get("/queue/", headers=BROWSER)
        assert led.headers["location"] == "/queue/docs"


def test_a_second_build_does_nothing_and_a_change_is_noticed(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import build_dashboard  # type: ignore[import-not-found] # pyright: ignore[reportMissingImports]
    finally:
        sys.path.pop(0)
    assert build_dashboard.is_built(ROOT), "make builds the dashboard before the tests"
    assert build_dashboard.build(ROOT) is False
    skipped = shutil.ignore_patterns("node_modules")
    shutil.copytree(ROOT / "dashboard", tmp_path / "dashboard", ignore=skipped)
    shutil.copytree(build_dashboard.target(ROOT), build_dashboard.target(tmp_path))
    assert build_dashboard.is_built(tmp_path)
    (tmp_path / "dashboard" / "src" / "new.ts").write_text("export {};\n")
    assert not build_dashboard.is_built(tmp_path)
