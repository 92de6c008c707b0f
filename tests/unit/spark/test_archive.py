import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from triomq.spark import archive


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("archive") / "triomq-spark.zip"
    assert archive.main([str(found)]) == 0
    return found


def test_zip_rejects_another_python_version(path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(path)!r})\nsys.implementation.cache_tag = 'cpython-399'\nimport orjson"
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert f"was made for {sys.implementation.cache_tag} {sys.platform}" in done.stderr
    assert "this is cpython-399" in done.stderr


def test_zip_excludes_bytecode_demo_and_unused_native_modules(path: Path) -> None:
    names = zipfile.ZipFile(path).namelist()
    assert len(names) == len(set(names))
    assert not [name for name in names if "__pycache__" in name or name.startswith("triomq/demo/")]
    assert {name.partition("/")[0] for name in names if name.endswith(".so")} == {"orjson"}


def test_equal_files_give_an_equal_zip(path: Path, tmp_path: Path) -> None:
    archive.write_archive(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == path.read_bytes()
