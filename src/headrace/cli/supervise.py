"""The whole of `headrace worker`: it checks what it can, and becomes the supervisor of its worker processes."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from headrace import errors
from headrace.errors import ConfigError
from headrace.policy.settings_checks import refuse_short_lease
from headrace.settings import Settings
from headrace.store import in_one_process, scheme_of
from headrace.supervisor.handover import Handover, frame, write_handover
from headrace.supervisor.log import log
from headrace.supervisor.probe_server import Address, listen
from headrace.supervisor.signals import HELD_BACK

_START = "import sys; sys.path.append(sys.argv[2]); from headrace.supervisor.main import main; main(int(sys.argv[1]))"
"""The folder of this package goes to the end of the import path, so that no module of the app hides one of Python's."""


def supervise(settings: Settings, health: Address | None = None) -> NoReturn:
    """Become the supervisor of `settings.processes` workers, which a signal stops. `health`: where to answer probes.

    The program of this process is replaced, because the app and all that this command loaded would stay in memory for as
    long as the workers run. The process id stays the same.
    """
    _check(settings)
    listeners = [] if health is None else listen(health)
    for listener in listeners:
        listener.set_inheritable(True)
    if health is not None:
        bound = Address(health.host, listeners[0].getsockname()[1])
        log.info("health endpoint: http://%s/livez, /readyz and /metrics", bound)
    # These are the fields of `headrace.worker.child.ChildConfig`. Its package is large, and this command needs no other part
    # of it.
    config = {
        "settings": settings,
        "path": sys.path,
        "pythonpath": os.environ.get("PYTHONPATH"),
        "parent": os.getpid(),
    }
    handover = Handover(
        processes=settings.processes,
        lease=settings.lease.total_seconds(),
        heartbeat=settings.heartbeat.total_seconds(),
        drain=settings.drain.total_seconds(),
        kill_grace=settings.kill_grace.total_seconds(),
        max_jobs=settings.max_jobs,
        max_memory=settings.max_memory,
        log_level=settings.log_level,
        log_format=settings.log_format,
        path=os.pathsep.join(path for path in sys.path if path),
        listeners=tuple(listener.fileno() for listener in listeners),
        config=frame(msgspec.msgpack.encode(config)),
    )
    _become_supervisor(write_handover(handover), settings.app)


def _check(settings: Settings) -> None:
    if in_one_process(settings.url):
        raise ConfigError(
            f"{scheme_of(settings.url)}:// lives in one process only: use sqlite:/// or postgresql:// with `headrace worker`"
        )
    refuse_short_lease(settings)
    if not settings.app:
        raise ConfigError("no app is named: name it as package.module:app")


def _become_supervisor(fd: int, app: str) -> NoReturn:
    folder = str(Path(errors.__file__).parent.parent)
    # -S and -P: the supervisor needs no site-packages, and nothing from the current folder. The last words are for `ps`.
    command = [sys.executable, "-S", "-P", "-c", _START, str(fd), folder, "headrace", "worker", app]
    # What the app registered for the end of this program runs now, for example the removal of temporary files.
    atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # there is no public name
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # A signal that comes while there is no handler waits until the supervisor has one.
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    os.execv(sys.executable, command)  # noqa: S606  # the words of the command are fixed
