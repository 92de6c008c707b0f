"""Sources of an account, so that it appears in no program, command line or query plan."""

import os
from pathlib import Path
from typing import Final

from triomq.protocol.errors import ConfigError
from triomq.protocol.wire.signing import Credentials, parse_credentials

_ENVIRONMENT: Final = "env"
_FILE: Final = "file"
_MOST_CHARACTERS: Final = 64 * 1024
SOURCES_TEXT: Final = "env:NAME or file:PATH"


def check_source(source: str) -> str:
    """Return ``source`` if :func:`load_credentials` accepts it; nothing is read.

    Raises:
        ConfigError: it names no source.  The error does not repeat the text, which may be a secret.
    """
    kind, _, name = source.partition(":")
    if kind not in {_ENVIRONMENT, _FILE} or not name:
        raise ConfigError(f"credentials: must be {SOURCES_TEXT}")
    return source


def load_credentials(source: str) -> Credentials:
    """Read an account from ``env:NAME`` or ``file:PATH``; see ``parse_credentials`` for the format.

    In an environment variable the lines may be joined by ``;``.

    Raises:
        ConfigError: the variable or file does not exist, or contains no account; the error names the source, never its
            content.
    """
    kind, _, name = check_source(source).partition(":")
    if kind == _ENVIRONMENT:
        text = os.environ.get(name, "").replace(";", "\n")
        if not text:
            raise ConfigError(f"credentials: the environment has no variable {name}")
    else:
        try:
            with Path(name).expanduser().open(encoding="utf-8") as file:
                text = file.read(_MOST_CHARACTERS)
        except (OSError, UnicodeDecodeError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
            raise ConfigError(f"credentials: cannot read {name}: {reason}") from None
    try:
        return parse_credentials(text)
    except ConfigError as exc:
        raise ConfigError(f"{exc} ({source})") from None
