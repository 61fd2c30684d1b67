"""`manage.py headrace …`: the command headrace, for the project's tasks."""

from __future__ import annotations

import os
from typing import Any, ClassVar, cast

from django.core.management.base import BaseCommand, CommandParser

APP = "headrace.integrations.django.app:"


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """Passes all arguments on to the command headrace."""

    help = "Everything the command headrace does, for this project: manage.py headrace worker, jobs list, …"
    requires_system_checks: ClassVar[Any] = []

    def run_from_argv(self, argv: list[str]) -> None:
        # The parser of BaseCommand must not read the options of headrace.
        self.execute_headrace(argv[2:])

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("args", nargs="*", metavar="ARGS")

    def handle(self, *args: str, **_: Any) -> None:
        self.execute_headrace(list(args))

    def execute_headrace(self, args: list[str]) -> None:
        """`--backend ALIAS` first chooses one of TASKS other than `default`."""
        from headrace.cli.root import root

        alias = "default"
        if args[:1] == ["--backend"] and len(args) > 1:
            alias, args = args[1], args[2:]
        os.environ["HEADRACE_APP"] = APP + alias
        cast("Any", root).main(args, prog_name="manage.py headrace")
