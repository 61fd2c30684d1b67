"""Runs a command in a process group of its own in front of the terminal: `foreground.py COMMAND [ARGUMENT…]`.

Ctrl-C then reaches only the command, which ends well by itself, and not `make`, which would call that a failure. The
command replaces this process, so that no other process stands between it and `make`. On Linux the kernel sends TERM to it
when `make` dies, however that happens, so that it does not go on without its terminal.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the parent process has ended")
    if os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp():
        # Ctrl-Z would stop the command, and make would wait for it with the terminal blocked.
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606 - the Makefile gives the command


if __name__ == "__main__":
    main(sys.argv[1:])
