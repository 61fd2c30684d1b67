"""The root of the command line: the module of each command, and how errors become one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from headrace.errors import ConfigError, HeadraceError, StoreDamaged

OK, FAILED, USAGE, INTERRUPTED, DAMAGED, CONFIG = 0, 1, 2, 130, 74, 78

# The help texts are here, so that `headrace --help` imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "dev": ("headrace.cli.dev", "Run an app on this machine with a live view: the way to start."),
    "worker": ("headrace.cli.worker", "Run workers for an app."),
    "serve": ("headrace.cli.serve", "Serve an app's queue over HTTP."),
    "enqueue": ("headrace.cli.enqueue", "Enqueue one job."),
    "tasks": ("headrace.cli.tasks", "List the tasks of an app, as its code declares them."),
    "jobs": ("headrace.cli.jobs", "List, show, explain, cancel, retry and delete jobs."),
    "dead": ("headrace.cli.dead", "List, show, replay and discard dead jobs."),
    "groups": ("headrace.cli.groups", "List groups of jobs, show one, and cancel its jobs."),
    "queues": ("headrace.cli.queues", "List, show, pause and resume queues."),
    "events": ("headrace.cli.events", "Signal events that tasks wait for."),
    "limits": ("headrace.cli.limits", "List limits, set other figures, and reset them."),
    "pause": ("headrace.cli.pauses:pause", "Start no job of a queue, a task or a tenant."),
    "resume": ("headrace.cli.pauses:resume", "Let the jobs of a queue, a task or a tenant start again."),
    "pauses": ("headrace.cli.pauses", "List what is paused, the author and the end of each pause."),
    "schedules": ("headrace.cli.schedules", "List, add, pause, resume, run and remove schedules."),
    "workers": ("headrace.cli.workers", "List workers, and tell one to be quiet, to go on or to drain."),
    "stats": ("headrace.cli.stats", "Every queue in figures, once or live."),
    "top": ("headrace.cli.top", "Queues, workers and jobs live in a terminal, down to why a job waits."),
    "history": ("headrace.cli.history", "What became of attempts over time, with percentiles."),
    "sink": ("headrace.cli.sink", "Copy every end of a job to ClickHouse."),
    "report": ("headrace.cli.report", "Failure rates, run times, use of slots and of tenants, over weeks."),
    "tokens": ("headrace.cli.tokens", "Create, list and revoke the tokens of the server."),
    "changes": ("headrace.cli.changes", "List what changed lately: actions, deploys, new failures."),
    "audit": ("headrace.cli.audit", "List what operators did: author, action, time, number of jobs."),
    "migrate": ("headrace.cli.migrate", "Bring the store's schema up to date."),
    "archive": ("headrace.cli.archive", "Move ended jobs into Parquet files."),
    "prune": ("headrace.cli.prune", "Drop finished jobs past their retention now."),
    "doctor": ("headrace.cli.doctor", "Check the settings and the store, and say what to do."),
    "bench": ("headrace.cli.bench", "Measure a store."),
}


class Answering(click.Command):
    """A command that prints errors in one line and ends with an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 — click's signature; errors are always answered here
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        try:
            answer = super().main(
                args,
                prog_name or "headrace",
                complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has closed the pipe (`headrace jobs list | head`). Python must not print an error at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(FAILED)
        except (click.exceptions.NoArgsIsHelpError, click.Abort, click.ClickException) as error:
            sys.exit(_answer_click(error))
        except HeadraceError as error:
            sys.exit(complain(str(error), code=_code_of(error)))
        except OSError as error:
            sys.exit(complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"))
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        sys.exit(answer if isinstance(answer, int) else OK)


class Root(Answering, click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 — click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 — click's signature
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib  # imported here, because only an error needs it

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            raise click.UsageError(f"no command {args[0]!r}" + (f": did you mean {near[0]!r}?" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 — click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _code_of(error: HeadraceError) -> int:
    if isinstance(error, ConfigError):
        return CONFIG
    return DAMAGED if isinstance(error, StoreDamaged) else FAILED


def complain(message: str, *, code: int = FAILED) -> int:
    """Print one line on stderr. Returns the exit code."""
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return code


def _answer_click(error: click.Abort | click.ClickException) -> int:
    if isinstance(error, click.Abort) and isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, click.Abort):
        return complain("stopped: nothing more was done")
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message())
        return USAGE
    if isinstance(error, click.UsageError):
        where = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return complain(error.format_message().rstrip(".") + where, code=USAGE)
    return complain(error.format_message(), code=error.exit_code)


@click.command("headrace", cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="headrace", message="headrace %(version)s")
def root() -> None:
    """A durable task queue that starts as a file and grows into a cluster.

    APP is package.module:app; it may also come from HEADRACE_APP or [tool.headrace] app in pyproject.toml.
    Commands that only look at a store need no app: --url or HEADRACE_URL is enough.
    """
