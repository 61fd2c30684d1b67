"""The root of the command line: help, unknown commands, exit codes."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from headrace.cli.root import COMMANDS, root


def test_help_names_every_command_and_imports_none_of_them() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['headrace', '--help']\n"
        "from headrace.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'rich', 'sqlite3', 'asyncpg', 'uvloop', 'headrace.worker', 'headrace.bench', 'headrace.cli.jobs'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout
    assert "HEAVY []" in done.stdout


def test_every_command_has_help() -> None:
    for name, (_, text) in COMMANDS.items():
        result = CliRunner().invoke(root, [name, "--help"])
        assert result.exit_code == 0, result.output
        assert f"Usage: headrace {name}" in result.output
        assert text


def test_version() -> None:
    result = CliRunner().invoke(root, ["--version"])
    assert (result.exit_code, result.stdout.split()[0]) == (0, "headrace")


def test_an_unknown_command_is_a_usage_error_with_a_hint() -> None:
    result = CliRunner().invoke(root, ["job"])
    assert result.exit_code == 2
    assert result.stderr == "error: no command 'job': did you mean 'jobs'? (see headrace --help)\n"
    assert result.stdout == ""


def test_a_reader_that_has_seen_enough_is_no_error_message() -> None:
    done = subprocess.run(
        f"{sys.executable} -m headrace.cli bench --help | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
