"""The image's dependencies: those that pyproject.toml asks for, and those that requirements.lock pins.

``make lock`` pipes the output of this module into the resolver that writes the lock.
"""

import re
import tomllib
from typing import Final, NamedTuple

from packaging.requirements import Requirement
from packaging.version import Version

from tests.packaging.dockerfile import ROOT

LOCK: Final = ROOT / "requirements.lock"


class Pin(NamedTuple):
    """An entry of the lock; ``parents`` are the packages that depend on it."""

    version: Version
    hashes: frozenset[str]
    parents: frozenset[str]


def wanted() -> list[Requirement]:
    """What the image needs: the dependencies, those of the extras that it installs, and what builds the package."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = table["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *extras["compression"], *extras["dashboard"]]
    return list(map(Requirement, (*texts, *table["build-system"]["requires"])))


def read_lock() -> dict[str, Pin]:
    """All entries by name; anything but pins, hashes and comments is an error."""
    pins = {}
    entry = r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n((?:    #.*\n)*)"
    text = LOCK.read_text(encoding="utf-8")
    for name, version, hashes, comments in re.findall(entry, text, re.MULTILINE):
        parents = frozenset(re.findall(r"([a-z0-9-]+)$", comments, re.MULTILINE)) - {"via"}
        pins[name] = Pin(Version(version), frozenset(re.findall("[0-9a-f]{64}", hashes)), parents)
    assert not re.sub(entry, "", text, flags=re.MULTILINE)
    return pins


if __name__ == "__main__":
    print(*wanted(), sep="\n")
