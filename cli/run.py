"""Run one command line: parse it, import and call the command, report errors; the signals that end it."""

import importlib
import io
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from triomq.cli.arguments.arguments import parse
from triomq.cli.errors import ExitCode, exit_code_of, one_line
from triomq.common.logs import configure
from triomq.protocol.errors import TriomqError, leaves


def run(argv: Sequence[str]) -> int:
    """Run a command; return its exit code."""
    for stream, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, stream) is None:  # closed at the start, as by a supervisor
            setattr(sys, stream, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # until the process ends
    try:
        options = parse(argv)
    except SystemExit as stop:  # argparse has written its text
        return int(stop.code or 0)
    module, _, function = options.runner.partition(":")
    if isinstance(sys.stdout, io.TextIOWrapper):
        if options.json:
            sys.stdout.reconfigure(encoding="utf-8")
        elif sys.stdout.errors == "strict":  # escape characters that the terminal's encoding does not have
            sys.stdout.reconfigure(errors="backslashreplace")
    try:
        configure(options.log_level, options.log_file, options.log_format, options.log_max_size, options.log_backups)
        code: int | None = getattr(importlib.import_module(f"triomq.cli.commands.{module}"), function)(options)
    except BaseException as exc:  # noqa: BLE001  # boundary: defects are raised again
        return report_error(f"triomq {options.command}", exc, with_traceback=options.log_level == "debug")
    return code or ExitCode.OK


def report_error(program: str, error: BaseException, *, with_traceback: bool = False) -> int:
    """Write one line about an error and return the exit code.

    Raises:
        BaseException: ``error``, if it is a defect, or a traceback is wanted.
    """
    found = tuple(leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in found):
        return ExitCode.INTERRUPTED
    if any(isinstance(leaf, BrokenPipeError) for leaf in found):
        null = os.open(os.devnull, os.O_WRONLY)  # Python flushes stdout at exit
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        return ExitCode.OUTPUT_CLOSED
    is_expected = all(isinstance(leaf, TriomqError | OSError) for leaf in found)  # any other error is a defect
    if with_traceback or not found or not is_expected:
        raise error
    sys.stderr.write(f"{program}: {one_line(found[0])}\n")
    return exit_code_of(found[0])


def stop_signals() -> AbstractContextManager[AsyncIterator[int]]:
    """Receive SIGTERM, SIGINT and SIGHUP.

    SIGINT and SIGHUP stay ignored if they were ignored at the start, as shells do for background jobs of a script and
    ``nohup`` does: Ctrl-C in the terminal is not meant for them.
    """
    import trio  # after the parser of the command line

    wanted = [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    return trio.open_signal_receiver(signal.SIGTERM, *wanted)


def end_at_next_signal() -> None:
    """Make the next signal end the process at once, even if the loop hangs; call it after the first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
