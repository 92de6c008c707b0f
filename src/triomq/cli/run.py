"""Runs one command line: parse, import the command, call it, tell errors."""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from triomq.cli.arguments.arguments import Runner, parse
from triomq.cli.arguments.options import Options
from triomq.cli.errors import exit_code_of, is_expected, leaves, one_line
from triomq.cli.exit_codes import ExitCode
from triomq.logs import configure


def run(argv: Sequence[str]) -> int:
    """Run a command; return its exit code."""
    _open_closed_streams()
    try:
        runner, name, options = parse(argv)
    except SystemExit as stop:  # argparse has written its text
        return int(stop.code or 0)
    module, _, function = runner.partition(":")
    _let_stdout_take_any_text(as_json=options.json)
    try:
        configure(options.log_level, options.log_file, options.log_format)
        command = cast(Runner, getattr(importlib.import_module(module), function))
        return command(options)
    except BrokenPipeError:
        _give_up_stdout()
        return ExitCode.OUTPUT_CLOSED
    except BaseException as exc:  # noqa: BLE001  # boundary: what is no user's error is raised again
        return _tell(name, options, exc)


def _tell(name: str, options: Options, error: BaseException) -> int:
    """Write one line for what the user can act on; raise what is a defect of ours."""
    found = tuple(leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in found):
        return ExitCode.INTERRUPTED
    if any(isinstance(leaf, BrokenPipeError) for leaf in found):
        _give_up_stdout()
        return ExitCode.OUTPUT_CLOSED
    unexpected = [leaf for leaf in found if not is_expected(leaf)]
    if unexpected or not found or options.log_level == "debug":
        raise error
    sys.stderr.write(f"triomq {name}: {one_line(found[0])}\n")
    return exit_code_of(found[0])


def _open_closed_streams() -> None:
    """Let streams that were closed before the start, as a supervisor may do, be empty and lead nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # until the process ends


def _let_stdout_take_any_text(*, as_json: bool) -> None:
    """Write JSON in UTF-8, as it has to be, and escape what the terminal's encoding has no character for."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if as_json:
        sys.stdout.reconfigure(encoding="utf-8")
    elif sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _give_up_stdout() -> None:
    """Let nothing more be written to a closed pipe, so that Python does not complain when it ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
