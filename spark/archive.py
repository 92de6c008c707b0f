"""``python -m triomq.spark.archive OUT.zip``: this package and its needs in one zip, for ``spark-submit --py-files``.

Spark puts such a zip on Python's path without unpacking it.  Python code is imported from it, but native modules
cannot be: a loader in the place of ``orjson`` copies its native module out first.  So the zip works only with the
Python version and machine type that it was made on, and says so elsewhere.  ``msgpack`` works without its native
part.  pyspark, pyarrow, numpy and pandas are not included: nodes that run PySpark have them.

Source: spark.md 3.12.
"""

import argparse
import importlib.metadata
import os
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePosixPath
from typing import Final

import triomq
from triomq.protocol.errors import ConfigError

_PACKAGE: Final = "triomq"
#: Packages that need their native part.
_NATIVE_PACKAGES: Final = frozenset(("orjson",))
_NATIVE_SUFFIXES: Final = tuple(EXTENSION_SUFFIXES)
_LEFT_OUT: Final = frozenset(("__pycache__", "demo"))
_REQUIREMENT: Final = re.compile(r"[A-Za-z0-9._-]+")
#: Fixed, so that the same files produce the same bytes; the earliest time that zips can store.
_TIME: Final = (1980, 1, 1, 0, 0, 0)
_LOADER: Final = '''\
"""Made by triomq.spark.archive: copies the native module out of the zip, loads it, and takes its names."""

import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
import tempfile

_BUILT_FOR = {built_for!r}
_HERE = (sys.implementation.cache_tag, sys.platform, os.uname().machine)
if _HERE != _BUILT_FOR:
    raise ImportError(
        f"this zip of triomq was made for {{' '.join(_BUILT_FOR)}}, this is {{' '.join(_HERE)}}: "
        "make it on such a machine, or install triomq on the nodes"
    )
with tempfile.TemporaryDirectory(prefix="triomq-") as _folder:
    _path = os.path.join(_folder, {file!r})
    with open(_path, "wb") as _file:
        _file.write(pkgutil.get_data(__name__, {file!r}))
    _loader = importlib.machinery.ExtensionFileLoader(__name__ + "." + {module!r}, _path)
    _module = importlib.util.module_from_spec(importlib.util.spec_from_loader(_loader.name, _loader))
    _loader.exec_module(_module)
sys.modules[_loader.name] = _module
globals().update({{_name: getattr(_module, _name) for _name in dir(_module) if not _name.startswith("_")}})
__version__ = _module.__version__
'''


def main(argv: Sequence[str] | None = None) -> int:
    """Write the zip and print its size; return the exit code."""
    description = (__doc__ or "").split("\n\n")[1]
    parser = argparse.ArgumentParser(prog="python -m triomq.spark.archive", description=description)
    parser.add_argument("path", metavar="OUT.zip", type=Path)
    path: Path = parser.parse_args(argv).path
    if path.suffix != ".zip":
        parser.error("the name must end in .zip: Spark puts no other files on Python's path")
    try:
        names = write_archive(path)
    except (ConfigError, OSError) as exc:
        parser.error(str(exc))
    sys.stdout.write(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {', '.join(names)}\n")
    return 0


def write_archive(path: Path) -> list[str]:
    """Write the zip; return the names of the distributions in it.

    Raises:
        ConfigError: a dependency is not installed.
    """
    names = dependencies()
    files = [file for name in names for file in _files_of(name)]
    root = Path(triomq.__file__).parent
    for folder, folders, own in os.walk(root, followlinks=True):  # the rooms are links in a checkout
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        found = [Path(folder, name) for name in own]
        files += [(str(PurePosixPath(_PACKAGE, one.relative_to(root))), one.read_bytes()) for one in found]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files):
            info = zipfile.ZipInfo(name, _TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return [_PACKAGE, *names]


def dependencies() -> list[str]:
    """Return the distributions that this one needs, without extras, and theirs, sorted.

    Raises:
        ConfigError: one is not installed.
    """
    found: set[str] = set()
    wanted = [_PACKAGE]
    while wanted:
        name = wanted.pop()
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            raise ConfigError(f"{name} is not installed, but needed: pip install 'triomq[spark]'") from None
        for text in requires:
            match = _REQUIREMENT.match(text)
            # One with a condition is of an extra, or of another system or version of Python.
            if match is not None and ";" not in text and match[0].lower() not in found:
                found.add(match[0].lower())
                wanted.append(match[0])
    return sorted(found)


def _files_of(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of another distribution's files, native modules only if they are loaded."""
    for file in importlib.metadata.files(name) or ():
        if file.parts[0].endswith(".dist-info") or ".." in file.parts or not _LEFT_OUT.isdisjoint(file.parts):
            continue
        is_native, is_needed = file.name.endswith(_NATIVE_SUFFIXES), name in _NATIVE_PACKAGES
        if (is_native and not is_needed) or (is_needed and file.name == "__init__.py"):  # the loader takes its place
            continue
        if is_native:
            built_for = (sys.implementation.cache_tag, sys.platform, os.uname().machine)
            loader = _LOADER.format(built_for=built_for, file=file.name, module=file.name.partition(".")[0])
            yield str(file.parent / "__init__.py"), loader.encode()
        yield str(file), file.read_binary()


if __name__ == "__main__":
    sys.exit(main())
