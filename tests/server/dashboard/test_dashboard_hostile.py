"""What users send, in every place that the dashboard shows: markup stays text, and a masked value is on no page."""

from __future__ import annotations

from urllib.parse import quote

from playwright.async_api import Page, expect

from headrace import Headrace, Retry, current_job, step
from headrace.model.job import JobState
from headrace.model.rollup import USAGE_FROM
from server.dashboard.browsing import MARKUP, PAGES, sign_in
from server.running import Running

SECRET = "hunter2-4111-1111"


async def test_s41_markup_stays_text_wherever_it_comes_from(server: Running, app: Headrace, page: Page) -> None:
    """Tenants, keys, reasons, results, progress, lines of the log and notes. Queues, tasks and tokens cannot have such names."""

    @app.task(name="talk")
    async def talk(text: str) -> str:
        await current_job().progress(0.5, text)
        current_job().log(f"the text is {text}")
        return text

    @app.task(name="bad", queue="broken", retry=Retry(max_attempts=1))
    async def bad(text: str) -> None:
        raise RuntimeError(text)

    token = await server.token("admin", name="ann")
    async with server.client(token) as http:

        async def post(path: str, **body: object) -> str:
            answer = await http.post(path, json=body)
            assert answer.is_success, answer.text
            return str(answer.json().get("id", ""))

        done = await post("/v1/jobs", task="talk", args=[MARKUP], tenant=MARKUP, key=MARKUP)
        dead = await post("/v1/jobs", task="bad", args=[MARKUP], tenant=MARKUP)
        async with app.worker():
            for id, state in ((done, JobState.DONE), (dead, JobState.DEAD)):
                answer = await http.get(f"/v1/jobs/{id}/result", params={"wait": "30s"})
                assert answer.json()["state"] == state
        waiting = await post("/v1/jobs", task="add", args=[1], tenant=MARKUP, delay="1h")
        gone = await post("/v1/jobs", task="add", args=[1], tenant=MARKUP, delay="1h")
        await post(f"/v1/jobs/{gone}/cancel", reason=MARKUP)
        await post("/v1/pauses", tenant=MARKUP)
        await post("/v1/schedules", name="nightly", cron="0 2 * * *", job={"task": "talk", "args": [MARKUP]})
        await post("/v1/dead/discard", ids=[dead], reason=MARKUP)
        await post("/v1/jobs", task="bad", args=[MARKUP], tenant=MARKUP)
    await sign_in(page, server.url, token)
    places = (*PAGES, *(f"jobs/{id}" for id in (done, waiting, gone)), f"jobs?tenant={quote(MARKUP, safe='')}")
    for name in places:
        await page.goto(f"{server.url}/#/{name}")
        await expect(page.locator("main h1")).to_have_count(1)
        await expect(page.get_by_text("Reading…")).to_have_count(0)
        assert await page.locator("img, main script").count() == 0, name
    for name, texts in {
        f"jobs/{done}": (f"the text is {MARKUP}", MARKUP),
        f"jobs/{gone}": (MARKUP,),
        f"jobs/{waiting}": (f"tenant {MARKUP} is paused by ann",),
        "overview": (f"{MARKUP} is paused",),
        "audit": (MARKUP,),
    }.items():
        await page.goto(f"{server.url}/#/{name}")
        for text in texts:
            await expect(page.locator("main").get_by_text(text).first).to_be_visible()


async def test_s72_a_masked_value_is_on_no_page_and_in_no_rollup(server: Running, app: Headrace, page: Page) -> None:
    """Every page is opened. The pages and all that they ask for are searched."""

    @app.task(name="enter", redact=["password"], retry=Retry(max_attempts=2, base="1h"))
    async def enter(user: str, password: str) -> None:
        await current_job().progress(0.5, f"with {password}")
        current_job().log(f"the password of {user} is {password}")
        await step(str.upper, user)
        raise RuntimeError(f"wrong password {password}")

    ids: list[str] = []
    for attempts in (1, 2):
        body = {"task": "enter", "kwargs": {"user": "ann", "password": SECRET}, "max_attempts": attempts}
        ids.append((await server.http.post("/v1/jobs", json=body)).json()["id"])
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(request.url))
    seen: list[str] = []
    async with app.worker():
        answer = await server.http.get(f"/v1/jobs/{ids[0]}/result", params={"wait": "30s"})
        assert answer.json()["state"] == JobState.DEAD
        for name in (*PAGES, *(f"jobs/{id}" for id in ids), "queues/default", f"jobs?text={SECRET[:6]}"):
            await page.goto(f"{server.url}/#/{name}")
            await expect(page.locator("main h1")).to_have_count(1)
            await expect(page.get_by_text("Reading…")).to_have_count(0)
            seen.append(await page.content())
    await page.goto(f"{server.url}/#/jobs/{ids[0]}")
    await expect(page.locator("main")).to_contain_text("the password of ann is")
    paths = [url.removeprefix(server.url) for url in asked if "/v1/" in url and "/events" not in url]
    assert {path.partition("?")[0] for path in paths} >= {"/v1/jobs", f"/v1/jobs/{ids[0]}", "/v1/dead", "/v1/history"}
    bodies = [(await server.http.get(path)).text for path in (*paths, "/metrics")]
    now = int((await server.store.now()).timestamp() // 60)
    rollups = (await server.store.read_history(0, now + 1)).rollups
    rollups += (await server.store.read_history(USAGE_FROM, USAGE_FROM + now + 1)).rollups
    assert {rollup.task for rollup in rollups} >= {"enter"}
    assert [text for text in (*seen, *bodies, *map(repr, rollups)) if SECRET in text] == []
