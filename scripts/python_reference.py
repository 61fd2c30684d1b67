"""Writes `docs/reference/python/` from the docstrings. Run it after you change a public name or its docstring."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference" / "python"
WIDTH = 100
"""Signatures that are longer take one line for each parameter."""


@dataclass(frozen=True)
class Page:
    """One page, and what it shows in which order."""

    file: str
    title: str
    intro: str
    names: tuple[str, ...]
    """Public names of `headrace`, and paths below it that users import. `path as title`: users meet it by that title."""


PAGES = (
    Page(
        "app.md",
        "The app",
        "An app holds tasks, queues, schedules and the address of the store. [Tasks and arguments](../../guide/tasks.md) and\n"
        "[Workers](../../guide/workers.md) explain how to use it.",
        (
            "Headrace",
            "operate.dead.app.AppDeadLetters as app.dead",
            "operate.limits.AppLimits as app.limits",
            "operate.schedules.AppSchedules as app.schedules",
            "outbox.Outbox as Outbox",
            "settings.Settings as Settings",
            "QueueOptions",
            "DeadAlert",
            "ageing",
            "weighted",
            "Schedule",
            "__version__",
        ),
    ),
    Page(
        "tasks.md",
        "Tasks",
        "A task is a function with options. [Tasks and arguments](../../guide/tasks.md), [Limits](../../guide/limits.md) and\n"
        "[Unique jobs](../../guide/unique.md) explain them, and [Options](../options.md) lists every option.",
        ("Task", "task.task.Bound as Bound", "JobCall", "Retry", "Limit", "Unique"),
    ),
    Page(
        "jobs.md",
        "Jobs",
        "A handle stands for one enqueued job, and `Job` is what the store has about it.\n"
        "[Results, progress and events](../../guide/results.md) explains how to wait for a job.",
        (
            "Handle",
            "Handles",
            "group",
            "JobGroup",
            "OpenGroup",
            "GroupStatus",
            "Results",
            "Job",
            "JobId",
            "JobState",
            "Failure",
            "Page",
            "Explanation",
            "FolderResults",
            "S3Results",
            "ResultStorage",
        ),
    ),
    Page(
        "running.md",
        "Inside a task",
        "A running task can ask about its job, end it early, or guard its effects.\n"
        "[When things go wrong](../../guide/failures.md) and [Effects that happen once](../../guide/effects.md) explain how,\n"
        "and [Steps and sleeps](../../guide/steps.md) how a retry continues where the last attempt ended.",
        (
            "current_job",
            "JobContext",
            "JobLogFilter",
            "JobLogHandler",
            "NoCurrentJob",
            "gather",
            "gather_sync",
            "step",
            "step_sync",
            "undo",
            "undo_sync",
            "task.steps.StepCall as StepCall",
            "task.steps.SyncStepCall as SyncStepCall",
            "sleep",
            "sleep_sync",
            "Event",
            "StepChanged",
            "StepTooLarge",
            "RetryAfter",
            "Snooze",
            "Cancel",
            "Dead",
            "once as headrace.once",
            "Once",
        ),
    ),
    Page(
        "hooks.md",
        "Hooks and webhooks",
        "Workers call hooks at their start and end, around attempts and after failures. [Headrace](app.md#headrace) has the\n"
        "decorators, and [Hooks](../../guide/hooks.md) and [Webhooks](../../guide/webhooks.md) explain them.",
        (
            "WorkerInfo",
            "EnqueueCall",
            "FollowUp",
            "AsyncCall",
            "SyncCall",
            "webhook as headrace.webhook",
            "webhooks.declare.verify as webhook.verify",
            "webhooks.declare.new_secret as webhook.new_secret",
            "webhooks.declare.BadSignature as webhook.BadSignature",
        ),
    ),
)
ANSWERS = Page(
    "answers.md",
    "What calls return",
    "These values are answers of the [app](app.md). Programs read them and never make them, so `headrace` does not export their\n"
    "names.",
    (
        "model.records.Stats as Stats",
        "model.records.QueueStats as QueueStats",
        "model.lease.Presence as Presence",
        "model.records.Pause as Pause",
        "model.records.CancelAnswer as CancelAnswer",
        "operate.dead.letters.Group as Group",
        "operate.dead.letters.Letter as Letter",
        "operate.dead.moves.Replayed as Replayed",
        "operate.dead.moves.Discarded as Discarded",
        "operate.limits.LimitEntry as LimitEntry",
        "policy.schedule_entry.ScheduleEntry as ScheduleEntry",
        "outbox.Depth as Depth",
        "model.job.LogLine as LogLine",
        "policy.explain.answer.Reason as Reason",
    ),
)
ERRORS = Page(
    "errors.md",
    "Errors",
    "Every error that headrace raises on purpose is a `HeadraceError`. Its `code` is stable, and the HTTP server answers\n"
    "with the same code. Each message says what to do. `headrace` exports the errors that programs often catch, and\n"
    "`headrace.errors` has all of them.",
    (),
)
INTEGRATIONS = Page(
    "integrations.md",
    "Frameworks and the server",
    "[FastAPI and Starlette](../../guide/fastapi.md), [Flask](../../guide/flask.md) and [Django](../../guide/django.md)\n"
    "show complete programs, and [The server](../../operate/server.md) explains the settings of the server.",
    (
        "integrations.starlette.lifespan",
        "integrations.flask.FlaskHeadrace",
        "integrations.django.backend.HeadraceBackend",
        "integrations.otel.instrument as otel.instrument",
        "integrations.sentry.instrument as sentry.instrument",
        "server.asgi",
        "server.serve",
        "server.ServerSettings",
    ),
)
TESTING = Page(
    "testing.md",
    "Testing",
    "`headrace.testing` is for tests of programs that use headrace.",
    (),
)
INDEX = """# Python

These pages are made from the docstrings of the package. Verbs come in two: `x` for sync code, `ax` for async code.
[Compatibility](../compatibility.md) says which names stay as they are.
"""
INTERNAL: Mapping[str, frozenset[str]] = {
    "Handles": frozenset({"add", "stored"}),
    "JobCall": frozenset({"codec", "job", "links", "skips", "task"}),
    "OpenGroup": frozenset({"of"}),
    "Bound": frozenset({"in_code"}),
    "app.limits": frozenset({"declared"}),
    "app.schedules": frozenset({"declared"}),
    "FlaskHeadrace": frozenset({"task"}),
    "Headrace": frozenset(
        {
            "aenqueue_members",
            "aput_batch_in",
            "aput_in",
            "astop",
            "codec_of",
            "connect",
            "dead_alert_hooks",
            "duties",
            "enqueue_members",
            "has_outbox",
            "hooks",
            "put_batch_in",
            "put_in",
            "unfair",
            "webhooks",
        }
    ),
    "Limit": frozenset({"declared", "figures", "keys_for"}),
    "Task": frozenset({"codec", "home", "hooks", "in_code", "make", "make_job", "shape", "skips"}),
    "Outbox": frozenset({"aenqueue_in", "enqueue_in"}),
    "Presence": frozenset({"upkeep"}),
    "ScheduleEntry": frozenset({"cancel", "cursor", "digest", "pending"}),
    "Unique": frozenset({"delay", "lock_for", "skips"}),
}
"""Members without an underscore that other packages of headrace use. They are not part of the public interface."""
FIELDS_ARE_OPTIONS = {"Limit": "limit", "QueueOptions": "queue", "Schedule": "schedule"}
"""Classes whose fields are the options of a subject, which `options.md` explains."""
WITHOUT_MEMBERS = {"HeadraceBackend"}
"""Classes that users only name. Their members are what a framework calls."""
KEYWORDS = {
    "TaskKeywords": "task",
    "JobKeywords": "job",
    "QueueKeywords": "queue",
    "ScheduleKeywords": "schedule",
    "LimitKeywords": "limit",
}
"""Types of `**options`, and the subject whose table of options they are."""


@dataclass(frozen=True)
class Entry:
    """One thing that has a heading."""

    title: str
    thing: griffe.Object
    imported: str = ""
    """The line that imports it, if its name is not one of `headrace` itself."""


class Reference:
    """The pages, made from what the source says. Nothing of headrace is imported."""

    def __init__(self) -> None:
        package = griffe.load("headrace", search_paths=[str(ROOT / "src")])
        assert isinstance(package, griffe.Module)
        self._package = package
        self.public = [str(name) for name in package.exports or ()]
        self._entries = {page: self._of(page) for page in (*PAGES, ANSWERS, INTEGRATIONS)}
        self._entries[ERRORS] = [Entry(name, each) for name, each in package["errors"].classes.items()]
        self._entries[TESTING] = list(self._testing())
        self.places = {
            entry.title: f"{page.file}#{anchor(entry.title)}"
            for page, entries in self._entries.items()
            for entry in entries
        }
        """Where each heading is, by its title."""

    def files(self) -> dict[str, str]:
        """Every page by the name of its file."""
        return {"index.md": self._index()} | {page.file: self._page(page) for page in self._entries}

    def shown(self) -> Iterator[tuple[str, griffe.Object]]:
        """Everything that a page shows, with its name: what has a heading, and the members of classes."""
        for entries in self._entries.values():
            for entry in entries:
                yield entry.title, entry.thing
                if isinstance(entry.thing, griffe.Class) and not is_error(entry.thing):
                    for name, member in members(entry):
                        yield f"{entry.title}.{name}", member

    def _of(self, page: Page) -> list[Entry]:
        return [self._named(each) for each in page.names]

    def _named(self, name: str) -> Entry:
        path, _, title = name.partition(" as ")
        module, _, last = path.rpartition(".")
        imported = f"from headrace.{module} import {last}" if module and not title else ""
        return Entry(title or last, target(self._package[path]), imported)

    def _testing(self) -> Iterator[Entry]:
        testing = self._package["testing"]
        assert isinstance(testing, griffe.Module)
        for name in testing.exports or ():
            yield self._named(f"testing.{name}")
        for module in () if testing.exports else testing.modules.values():
            yield from (self._named(f"testing.{module.name}.{name}") for name in module.classes)

    def _index(self) -> str:
        parts = [INDEX]
        for page, entries in self._entries.items():
            rows = "\n".join(
                f"| [`{each.title}`]({self.places[each.title]}) | {self._summary(each)} |" for each in entries
            )
            parts.append(f"\n## {page.title}\n\n| name | what it is |\n| --- | --- |\n{rows}\n")
        return "".join(parts)

    def _summary(self, entry: Entry) -> str:
        return first_sentence(doc(entry.thing)).replace("|", "&#124;")

    def _page(self, page: Page) -> str:
        body = self._tree() if page is ERRORS else ""
        return f"# {page.title}\n\n{page.intro}\n{body}" + "".join(
            self._error(each) if is_error(each.thing) else self._entry(each) for each in self._entries[page]
        )

    def _tree(self) -> str:
        text = doc(self._package["errors"])
        return (
            "\n```text\n"
            + "\n".join(line[4:] for line in text.splitlines() if re.match(r" {4}(HeadraceError$|[│├└ ])", line))
            + "\n```\n"
        )

    def _error(self, entry: Entry) -> str:
        error = entry.thing
        assert isinstance(error, griffe.Class)
        code = member_value(error, "code")
        base = ", ".join(f"`{each}`" for each in error.bases)
        init = error.members.get("__init__")
        attributes = [
            f"`{each.name}: {each.annotation}`"
            for each in (init.parameters if isinstance(init, griffe.Function) else ())
            if each.name in error.attributes
        ]
        says = f"Code `{code}`, based on {base}." + (f" It has {', '.join(attributes)}." if attributes else "")
        return f"\n## {entry.title}\n\n{self._prose(doc(error))}\n\n{self._prose(says)}\n"

    def _entry(self, entry: Entry) -> str:
        thing = entry.thing
        # Underscores at both ends would make a heading bold.
        heading = f"`{entry.title}`" if entry.title.startswith("__") else entry.title
        parts = [f"\n## {heading}\n", *([code_block([entry.imported])] if entry.imported else [])]
        name = entry.title.rpartition(".")[2]
        if isinstance(thing, griffe.Function):
            parts.append(code_block(signatures(thing, name)))
        elif isinstance(thing, griffe.Attribute):
            parts.append(code_block([f"{name} = {thing.value}"]))
        elif isinstance(thing, griffe.Class):
            parts.append(self._constructor(entry))
        if text := doc(thing):
            parts.append(f"\n{self._prose(text)}\n")
        if isinstance(thing, griffe.Class):
            init = thing.members.get("__init__")
            if init is not None and not isinstance(init, griffe.Alias) and (text := doc(init)):
                parts.append(f"\n{self._prose(text)}\n")
            parts += self._members(entry)
        return "".join(parts)

    def _constructor(self, entry: Entry) -> str:
        """How a user makes one, where users do."""
        init = entry.thing.members.get("__init__")
        importable = entry.imported or entry.title in self.public
        if not importable or not isinstance(init, griffe.Function) or entry.title in MADE_BY_HEADRACE:
            return ""
        return code_block([signature(init, entry.title, method=True, returns=False)])

    def _members(self, entry: Entry) -> Iterator[str]:
        shown = dict(members(entry))
        fields = [self._field(each) for each in shown.values() if isinstance(each, griffe.Attribute)]
        if fields:
            yield "\n" + "\n".join(fields) + "\n"
        if subject := FIELDS_ARE_OPTIONS.get(entry.title):
            yield f"\n{options_sentence(subject)}\n"
        for name, each in shown.items():
            if isinstance(each, griffe.Function):
                yield self._method(entry, name, each)

    def _field(self, field: griffe.Attribute) -> str:
        kind = "" if field.annotation is None else f": {field.annotation}"
        value = f" = {field.value}" if field.value is not None and "class-attribute" in field.labels else ""
        if re.match(r" = ((msgspec|dataclasses)\.)?field\(| = \w+\(reason\)", value):
            value = ""  # It is made for each object.
        return f"- `{quoted(f'{field.name}{kind}{value}')}`" + (
            f": {self._prose(' '.join(doc(field).split()))}" if doc(field) else ""
        )

    def _method(self, entry: Entry, name: str, method: griffe.Function) -> str:
        lines = signatures(method, name)
        twin = entry.thing.all_members.get(f"a{name}")
        text = doc(method)
        if isinstance(twin := None if twin is None else target(twin), griffe.Function):
            # A sync verb that is made from its async twin has the twin's signature.
            lines = [*([] if method is twin else lines), *signatures(twin, f"a{name}")]
            if method is twin:
                lines = [
                    *(line.removeprefix("async ").replace(f"def a{name}(", f"def {name}(") for line in lines),
                    *lines,
                ]
            text = text or doc(twin)
        return f"\n### {entry.title}.{name}\n{code_block(lines)}\n{self._prose(text)}\n{options_of(method)}"

    def _prose(self, text: str) -> str:
        """A docstring as Markdown. The name of a class becomes a link, and so does a public name in backticks."""
        return "\n".join(
            line if line.startswith("    ") else re.sub(r"(?<!\[)`[^`]+`|\b[A-Z][a-z]+[A-Z]\w+\b", self._link, line)
            for line in text.splitlines()
        )

    def _link(self, match: re.Match[str]) -> str:
        place = self.places.get(match[0].strip("`"))
        return match[0] if place is None else f"[`{match[0].strip('`')}`]({place})"


MADE_BY_HEADRACE = {"Event", "Handle", "Handles", "JobCall", "JobContext", "Task"}
"""Classes whose objects users get and never make."""


def target(thing: griffe.Object | griffe.Alias) -> griffe.Object:
    """What an import leads to."""
    return thing.final_target if isinstance(thing, griffe.Alias) else thing


def members(entry: Entry) -> Iterator[tuple[str, griffe.Object]]:
    """The public members of a class, own ones first. An async verb is left out if its sync twin stands for both."""
    assert isinstance(entry.thing, griffe.Class)
    everything = {name: target(each) for name, each in entry.thing.all_members.items()}
    own = entry.thing.members
    hidden = INTERNAL.get(entry.title, frozenset[str]())
    if entry.title in WITHOUT_MEMBERS:
        return
    if "Headrace" in names_of_bases(entry.thing) and entry.thing.name != "Headrace":
        everything = {name: each for name, each in everything.items() if name in own}
    for name in sorted(everything, key=lambda each: each not in own):
        if name.startswith("_") or name in hidden or (name.startswith("a") and name[1:] in everything):
            continue
        twin = everything.get(f"a{name}")
        yield name, (twin if twin is not None and isinstance(everything[name], griffe.Attribute) else everything[name])


def is_error(thing: griffe.Object) -> bool:
    """Whether it is an error with a code."""
    return isinstance(thing, griffe.Class) and bool({"HeadraceError", "ConfigError"} & names_of_bases(thing))


def names_of_bases(thing: griffe.Class) -> set[str]:
    """The names of a class and of all its bases."""
    return {thing.name, *(each.name for each in thing.mro())}


def doc(thing: griffe.Object | griffe.Alias) -> str:
    """The docstring, or an empty text."""
    return "" if thing.docstring is None else thing.docstring.value.strip()


def member_value(error: griffe.Class, name: str) -> str:
    """The value of a class attribute, without quotes."""
    found = target(error.all_members[name])
    assert isinstance(found, griffe.Attribute)
    return str(found.value).strip("'\"")


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", paragraph)[0]


def anchor(title: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def signatures(function: griffe.Function, name: str) -> list[str]:
    """A function's signature, or those of its overloads."""
    prefix = "async def " if "async" in function.labels else "def "
    if manager := next((each for each in function.decorators if str(each.value).endswith("contextmanager")), None):
        prefix = f"@{manager.value}\n{prefix}"
    prefix = (
        f"@{kind}\n{prefix}" if (kind := next(iter(function.labels & {"classmethod", "staticmethod"}), "")) else prefix
    )
    method = isinstance(function.parent, griffe.Class) and kind != "staticmethod"
    return [prefix + signature(each, name, method=method) for each in function.overloads or [function]]


def signature(function: griffe.Function, name: str, *, method: bool, returns: bool = True) -> str:
    """`name(a: int, *, b: str = "x") -> Handle`, on one line or on one line for each parameter."""
    parameters = list(parts_of(list(function.parameters)[1 if method else 0 :]))
    after = f" -> {function.returns}" if returns and function.returns is not None else ""
    line = f"{name}({', '.join(parameters)}){after}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){after}"


def parts_of(parameters: list[griffe.Parameter]) -> Iterator[str]:
    """Each parameter as it is written, with the marks for positional-only and keyword-only ones."""
    kinds = griffe.ParameterKind
    starred = False
    for place, each in enumerate(parameters):
        if each.kind is kinds.keyword_only and not starred:
            starred = True
            yield "*"
        starred = starred or each.kind is kinds.var_positional
        star = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(each.kind or kinds.positional_or_keyword, "")
        kind = "" if each.annotation is None else f": {each.annotation}"
        value = "" if each.default is None or star else f" = {each.default}" if kind else f"={each.default}"
        yield f"{star}{each.name}{kind}{value}"
        last = place + 1 == len(parameters) or parameters[place + 1].kind is not kinds.positional_only
        if each.kind is kinds.positional_only and last:
            yield "/"


def options_of(function: griffe.Function) -> str:
    """A sentence about `**options`, if the function takes some that a table lists."""
    for each in function.parameters:
        if (found := re.search(r"Unpack\[(\w+)\]", str(each.annotation))) and (subject := KEYWORDS.get(found[1])):
            return f"\n{options_sentence(subject)}\n"
    return ""


def options_sentence(subject: str) -> str:
    """Where the options of a subject are explained."""
    return f"[Options of a {subject}](../options.md#options-of-a-{subject}) explains each option."


def quoted(code: str) -> str:
    """Texts in the double quotes that the source has, too."""
    return re.sub(r"'([^'\"]*)'", r'"\1"', code)


def code_block(lines: Iterable[str]) -> str:
    """Signatures. The fence says `py`, because the tests run blocks that say `python`."""
    text = quoted("\n".join(lines))
    return f"\n```py\n{text}\n```\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for stale in FOLDER.glob("*.md"):
        stale.unlink()
    for file, text in Reference().files().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
