"""Runs ``triomq`` commands in forks of a process that has imported them, which saves half a second of CPU for each.

A command gets its arguments, environment and standard streams as from a shell, and ends with the interpreter's usual
clean-up.  Each test process has a server, at the other end of a socket pair.  A request is a JSON object with four file
descriptors: the three streams, and a pipe for the exit code.
"""

import json
import os
import signal
import socket
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import TypedDict

MAX_REQUEST_BYTES = 1 << 20


class Request(TypedDict):
    """A command line without the program's name, and its whole environment."""

    words: list[str]
    environment: dict[str, str]


def main(control: socket.socket) -> int:
    """Fork for each request; the fork returns the exit code of its command."""
    import triomq.cli.commands
    import triomq.cli.run

    for module in iter_modules(triomq.cli.commands.__path__, "triomq.cli.commands."):
        import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are not waited for
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 4)
        if not request:
            return 0
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            return _supervise(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _supervise(request: bytes, descriptors: list[int]) -> int:
    """Run the command in a child, which returns; write its exit code as ``Popen.returncode`` has it, and end."""
    *streams, report = descriptors
    if (child := os.fork()) == 0:
        os.close(report)
        return _run(json.loads(request), streams)
    _, status = os.waitpid(child, 0)
    os.write(report, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _run(request: Request, streams: list[int]) -> int:
    from triomq.cli import main as run_command

    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["words"]
    return run_command()


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
