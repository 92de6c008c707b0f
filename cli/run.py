"""Run one command line: parse it, import and call the command, report errors."""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from triomq.cli.arguments.arguments import Runner, parse
from triomq.cli.errors import exit_code_of, is_expected, leaves, one_line
from triomq.cli.exit_codes import ExitCode
from triomq.common.logs import configure


def run(argv: Sequence[str]) -> int:
    """Run a command; return its exit code."""
    _open_closed_streams()
    try:
        runner, name, options = parse(argv)
    except SystemExit as stop:  # argparse has written its text
        return int(stop.code or 0)
    module, _, function = runner.partition(":")
    _configure_stdout(as_json=options.json)
    try:
        configure(options.log_level, options.log_file, options.log_format, options.log_max_size, options.log_backups)
        command = cast(Runner, getattr(importlib.import_module(module), function))
        return command(options)
    except BaseException as exc:  # noqa: BLE001  # boundary: defects are raised again
        return report_error(f"triomq {name}", exc, with_traceback=options.log_level == "debug")


def report_error(program: str, error: BaseException, *, with_traceback: bool = False) -> int:
    """Write one line about an error and return the exit code.

    Raises:
        BaseException: ``error``, if it is a defect, or a traceback is wanted.
    """
    found = tuple(leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in found):
        return ExitCode.INTERRUPTED
    if any(isinstance(leaf, BrokenPipeError) for leaf in found):
        _give_up_stdout()
        return ExitCode.OUTPUT_CLOSED
    if with_traceback or not found or not all(map(is_expected, found)):
        raise error
    sys.stderr.write(f"{program}: {one_line(found[0])}\n")
    return exit_code_of(found[0])


def _open_closed_streams() -> None:
    """Connect streams that were closed at the start, as by a supervisor, to the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # until the process ends


def _configure_stdout(*, as_json: bool) -> None:
    """Write JSON in UTF-8; escape characters that the terminal's encoding does not have."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if as_json:
        sys.stdout.reconfigure(encoding="utf-8")
    elif sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _give_up_stdout() -> None:
    """Redirect stdout after its pipe was closed, so that Python does not fail to flush it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
