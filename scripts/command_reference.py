"""Writes `docs/reference/commands.md` from the commands themselves. Run it after you change a command or an option."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from headrace.cli.root import root

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"

HEAD = """# Commands

This page lists every command and its options, as `headrace COMMAND --help` does. [The command line](cli.md) says what the
commands have in common. Every command has `-h` and `--help`.
"""


def page() -> str:
    """The whole page."""
    context = click.Context(root, info_name="headrace")
    parts = [HEAD]
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        parts += sections(command, click.Context(command, parent=context, info_name=name), level=2)
    return "".join(parts)


def sections(command: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    """One section for the command, and one for each command below it."""
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"\n{'#' * level} {context.command_path}\n"]
    if not isinstance(command, click.Group):
        parts.append(f"\n```text\n{context.command_path} {usage}\n```\n")
    if text := prose(command.help or ""):
        parts.append(f"\n{text}\n")
    if rows := [row(each, context) for each in command.params if isinstance(each, click.Option) and not each.hidden]:
        parts.append("\n| option | meaning |\n| --- | --- |\n" + "\n".join(rows) + "\n")
    yield "".join(parts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from sections(below, click.Context(below, parent=context, info_name=name), level=level + 1)


def row(option: click.Option, context: click.Context) -> str:
    """The flags of an option with the kind of its value, and what it does."""
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    kind = "" if option.is_flag or option.count else option.make_metavar(context).strip("[]").removesuffix(" RANGE")
    help = " ".join(filter(None, (prose(option.help or "").replace("\n", " "), default(option))))
    # A table would take the bars between choices for its own.
    choices = ", ".join(f"`{each}`" for each in kind.split("|"))
    return f"| {flags}{f' {choices}' if kind else ''} | {help.replace('|', '&#124;')} |"


def prose(text: str) -> str:
    """A help text as Markdown: without the marks for the terminal, and without angle brackets that HTML would take."""
    plain = inspect.cleandoc(text.replace("\b\n", ""))
    marked = re.sub(r"(?<!`)\bhttps?://[\w@:/.]*\w", lambda url: f"`{url[0]}`", plain)
    return re.sub(r"[<>]", lambda bracket: {"<": "&lt;", ">": "&gt;"}[bracket[0]], marked)


def default(option: click.Option) -> str:
    """A sentence about the default, if the help text has none."""
    value = option.default
    if option.is_flag or not isinstance(value, str | int) or value == "" or "default" in (option.help or "").lower():
        return ""
    return f"Default: `{value}`."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
