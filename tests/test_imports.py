"""What `import headrace` and `headrace --help` load, and that the public names stay the same."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

NOT_FOR_THE_PACKAGE = {
    "asyncio",
    "ssl",
    "logging",
    "msgspec",
    "click",
    "rich",
    "sqlite3",
    "dataclasses",
    "zoneinfo",
    "textual",
}
NOT_FOR_HELP = NOT_FOR_THE_PACKAGE - {"click"} | {"importlib.metadata", "concurrent.futures", "socket"}
NOT_FOR_AN_APP = NOT_FOR_THE_PACKAGE - {"msgspec", "dataclasses"} | {
    "_hashlib",
    "concurrent.futures",
    "cronsim",
    "email",
    "getpass",
    "http",
    "json",
    "multiprocessing",
    "random",
    "secrets",
    "selectors",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "tomllib",
    "traceback",
}
"""Modules that no app needs before its first enqueue."""
APP = (
    "import os\nos.chdir('/')\n"  # where no pyproject.toml is, because one would have to be parsed
    "from headrace import Headrace\napp = Headrace('memory://')\n@app.task\ndef f(x: int) -> None: ..."
)
HELP = (
    "sys.argv = ['headrace', '--help']\nfrom headrace.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass"
)


def loaded_after(code: str) -> set[str]:
    """The modules that a fresh interpreter holds after `code`, without those that it starts with."""
    whole = f"import sys\nbefore = set(sys.modules)\n{code}\nprint('LOADED', *sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.rpartition("LOADED")[2].split())


def own(modules: set[str]) -> set[str]:
    return {module for module in modules if module.startswith("headrace.")}


def test_importing_the_package_loads_only_its_errors():
    loaded = loaded_after("import headrace")
    assert own(loaded) == {"headrace.errors"}
    assert not loaded & NOT_FOR_THE_PACKAGE


def test_an_app_with_a_task_loads_only_what_declaring_needs():
    """What a store, a worker or an operator needs is imported by the first call of it."""
    loaded = loaded_after(APP)
    assert not loaded & NOT_FOR_AN_APP
    assert {name.split(".")[1] for name in own(loaded)} == {
        "app", "client", "errors", "model", "operate", "policy", "runtime", "settings", "store", "task",
    }  # fmt: skip
    assert {name for name in own(loaded) if name.split(".")[1] in {"client", "operate", "policy", "store"}} == {
        "headrace.client",
        "headrace.client.app_clients",
        "headrace.client.bulk",
        "headrace.client.enqueue_hooks",
        "headrace.client.handles",
        "headrace.client.linked_home",
        "headrace.client.produce",
        "headrace.operate",
        "headrace.operate.app_jobs",
        "headrace.operate.app_pauses",
        "headrace.policy",
        "headrace.policy.setting_values",
        "headrace.store",
    }


def test_the_first_enqueue_loads_the_client_and_the_store_but_nothing_of_workers_and_operators():
    loaded = loaded_after(f"{APP}\nf.enqueue(1)\napp.close()")
    assert {"asyncio", "headrace.client.client", "headrace.store.memory.store"} <= loaded
    assert not loaded & {"zoneinfo", "cronsim", "json", "getpass", "headrace.model.cron", "headrace.operate.jobs"}
    assert not {name for name in own(loaded) if name.split(".")[1] in {"worker", "webhooks", "sink"}}
    assert not {name for name in own(loaded) if name.startswith("headrace.policy.explain.")}


def test_help_loads_no_store_no_server_no_worker_and_no_command():
    loaded = loaded_after(HELP)
    assert own(loaded) == {"headrace.errors", "headrace.cli", "headrace.cli.root"}
    assert not loaded & NOT_FOR_HELP


def test_dir_and_all_agree_and_every_name_is_there():
    assert len(set(headrace.__all__)) == len(headrace.__all__)
    assert set(headrace.__all__) <= set(dir(headrace))
    # pytest rewrites the asserts of packages with a plugin, and puts names with an @ into their modules.
    public = {name for name in dir(headrace) if not name.startswith(("_", "@"))}
    submodules = {module.split(".")[1] for module in own(set(sys.modules))}
    assert public - submodules == set(headrace.__all__) - {"__version__"}
    assert all(hasattr(headrace, name) for name in headrace.__all__)


def test_type_checkers_and_the_interpreter_see_the_same_objects():
    tree = ast.parse(Path(headrace.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    promised: dict[str, object] = {}
    for statement in (statement for block in blocks for statement in block.body):
        exec(ast.unparse(statement), promised)
    promised.pop("__builtins__")
    assert set(promised) == {*headrace._MODULE_OF, *headrace._MODULES}
    assert {name: getattr(headrace, name) for name in promised} == promised


def test_a_name_is_looked_up_once():
    code = "import headrace\nassert 'Job' not in vars(headrace)\nheadrace.Job\nassert 'Job' in vars(headrace)"
    assert "headrace.model.job" in loaded_after(code)


def test_an_unknown_name_fails_as_in_any_module():
    with pytest.raises(AttributeError, match=r"^module 'headrace' has no attribute 'nonsense'$"):
        _ = headrace.nonsense  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError, match="cannot import name 'nonsense' from 'headrace'"):
        exec("from headrace import nonsense")


def test_a_star_import_gives_every_name():
    code = "from headrace import *\nimport headrace\nassert set(headrace.__all__) <= set(dir()), dir()"
    assert "headrace.app" in loaded_after(code)


def test_each_public_module_can_be_the_first_import():
    """No module may depend on another one that an earlier import happened to finish: fresh processes have none."""
    modules = [
        *headrace._NAMES,
        *headrace._MODULES.values(),
        "headrace.settings",
        "headrace.testing",
        "headrace.worker",
    ]
    code = (
        "import asyncio, importlib, logging, os, msgspec, sys\n"  # which only makes the children faster
        f"for module in {modules!r}:\n"
        "    if (child := os.fork()) == 0:\n"
        "        importlib.import_module(module)\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0, module\n"
    )
    assert "headrace" not in loaded_after(code)
