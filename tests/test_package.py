"""The package as a whole: version, licences, what the wheel and the repository hold."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import magmadnn

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION = PROJECT["project"]["version"]


def sums() -> dict[str, str]:
    """File and SHA-256, as data/SHA256SUMS has them."""
    lines = (ROOT / "data" / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def test_version_is_the_same_everywhere() -> None:
    assert magmadnn.__version__ == VERSION
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.MULTILINE)
    assert newest is not None
    assert newest[1] == VERSION


def test_licence_is_named_and_there() -> None:
    assert PROJECT["project"]["license"] == "BSD-3-Clause"
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("BSD 3-Clause License")


def test_types_are_shipped() -> None:
    assert (ROOT / "magmadnn" / "py.typed").is_file()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["magmadnn"]


def test_the_wheel_holds_the_package_only() -> None:
    assert PROJECT["tool"]["setuptools"]["packages"]["find"]["include"] == ["magmadnn*"]


def test_every_folder_of_the_package_is_in_the_wheel() -> None:
    # Only folders with an __init__.py are found; others work from the source tree, and only there.
    folders = {path.parent for path in (ROOT / "magmadnn").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_core_dependencies_are_the_agreed_ones() -> None:
    names = {re.split(r"[<>=!~\[]", line)[0] for line in PROJECT["project"]["dependencies"]}
    agreed = {"numpy", "ml_dtypes", "llvmlite", "safetensors", "rich"}
    assert names == agreed


def test_data_files_are_the_published_ones() -> None:
    for name, digest in sums().items():
        found = hashlib.sha256((ROOT / "data" / name).read_bytes()).hexdigest()
        assert found == digest, name


def test_every_data_file_has_its_sum_and_its_origin() -> None:
    folder = ROOT / "data"
    files = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    } - {"README.md", "SHA256SUMS"}
    assert files == sums().keys()
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert [name for name in files if Path(name).name not in readme] == []
