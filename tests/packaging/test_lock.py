"""Everything that the image is built from is pinned, and the pins follow pyproject.toml."""

import re

from packaging.utils import canonicalize_name

from tests.packaging.dockerfile import read_dockerfile
from tests.packaging.lock import read_lock, wanted


def test_lock_covers_exactly_the_dependencies() -> None:
    pins = read_lock()
    requirements = {str(canonicalize_name(each.name)): each for each in wanted()}
    for name, requirement in requirements.items():
        assert name in pins, f"make lock: {requirement}"
        assert requirement.specifier.contains(pins[name].version), f"make lock: {requirement}"
    for name, pin in pins.items():
        assert name in requirements or pin.parents, f"make lock: nothing needs {name}"
        assert pin.parents <= pins.keys()


def test_image_is_built_from_pinned_parts_only() -> None:
    stages = [item.arguments.split()[0] for item in read_dockerfile() if item.name == "FROM"]
    (base,) = [item.arguments for item in read_dockerfile() if item.name == "ARG"]
    assert set(stages) == {"${BASE}"}
    assert re.fullmatch(r"BASE=python:3\.\d+-slim@sha256:[0-9a-f]{64}", base)
    installs = [item.arguments for item in read_dockerfile() if "pip install" in item.arguments]
    lock, package = installs
    assert "--require-hashes --no-deps --requirement /src/requirements.lock" in lock
    assert "--no-deps --no-build-isolation" in package
