"""Where an account comes from, so that it stands in no program text, command line or plan."""

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
    """Return ``source`` if it may be given to :func:`load_credentials`; nothing is read.

    Raises:
        ConfigError: it names no source.  Its text is not repeated: it may be a secret.
    """
    kind, _, name = source.partition(":")
    if kind not in {_ENVIRONMENT, _FILE} or not name:
        raise ConfigError(f"credentials: must be {SOURCES_TEXT}")
    return source


def load_credentials(source: str) -> Credentials:
    """Read an account from ``env:NAME`` or ``file:PATH``; see ``parse_credentials`` for what must be there.

    In an environment variable the lines may be joined by ``;``.

    Raises:
        ConfigError: there is no such variable or file, or it does not hold an account; the text names the source, never
            what it holds.
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
