"""The command line: one command group per file, each imported when it is called."""

from __future__ import annotations


def main() -> None:
    """The `headrace` command."""
    from headrace.cli.root import root

    root.main()
