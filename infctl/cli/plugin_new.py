"""A new plugin package: a working plugin, its test, its entry point."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from string import Template

from infctl.errors import InputError, MachineError, UsageError

SEAMS = ("engine", "filter", "scorer", "picker", "workload")
"""The seams `new` knows; `infctl/cli/templates/SEAM.py.txt` is the plugin."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

_PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "0.1.0"
description = "$name: a plugin of infctl ($seam)"
requires-python = ">=3.11"
dependencies = ["infctl"]

[project.entry-points."infctl.$seam"]
$name = "$module:$cls"

[tool.setuptools]
py-modules = ["$module"]
"""

_TEST = '''\
"""The $seam $name keeps to what infctl expects of it."""

$imports


def test_$seam() -> None:
$checks
'''

_IMPORT = "from $module import $cls\n\nfrom infctl.testing import check_$seam"
_IMPORT_WORKLOAD = "from $module import $cls\n\nfrom infctl.plugin import Workload"

_CHECKS = {
    "engine": "    check_engine($cls())",
    "filter": "    check_filter($cls())",
    "scorer": "    check_scorer($cls())",
    "picker": "    check_picker($cls)",
    "workload": """\
    workload = $cls()
    assert isinstance(workload, Workload)
    requests = list(workload.requests(seed=7, limit=50))
    assert len(requests) == 50
    assert requests == list(workload.requests(seed=7, limit=50))
    assert requests != list(workload.requests(seed=8, limit=50))
    assert requests == sorted(requests, key=lambda r: r.at_s)""",
}

_README = """\
# $name

A plugin of infctl ($seam). Install it where infctl is, then use it:

    pip install -e .
    infctl plugin describe $name

$use
"""

_USE = {
    "engine": "    engine: {type: $name}",
    "filter": "    routing: {filters: [ready, role, model, $name]}",
    "scorer": "    routing: {scorers: [prefix-affinity, {type: $name, weight: 1}]}",
    "picker": "    routing: {picker: $name}",
    "workload": "    infctl up --bench --workload $name",
}


def write_package(seam: str, name: str, target: Path) -> list[Path]:
    """Write the package into a new or empty folder and return its files.

    Raises UsageError on a seam or a name that cannot be, InputError when the folder holds
    something, MachineError when it cannot be written.
    """
    files = package(seam, name)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InputError("is there already", where=str(target), hint="Name another folder.")
        for path, content in files.items():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise MachineError(f"cannot be written: {error.strerror}", where=str(target)) from error
    return [target / path for path in files]


def package(seam: str, name: str) -> dict[str, str]:
    """The package's files by path. Raises UsageError."""
    if seam not in SEAMS:
        raise UsageError(f"no new {seam!r} can be written", hint=f"Seams: {', '.join(SEAMS)}.")
    if not _NAME.fullmatch(name) or len(name) > 60:
        raise UsageError(
            f"{name!r} cannot be a plugin's name",
            hint="Names are lower-case letters and digits with single dashes, at most 60.",
        )
    words = {
        "seam": seam,
        "name": name,
        "module": name.replace("-", "_"),
        "cls": "".join(part.capitalize() for part in name.split("-")),
    }
    imports = _IMPORT_WORKLOAD if seam == "workload" else _IMPORT
    for key, text in (("use", _USE[seam]), ("checks", _CHECKS[seam]), ("imports", imports)):
        words[key] = Template(text).substitute(words)
    template = resources.files("infctl.cli") / "templates" / f"{seam}.py.txt"
    texts = {
        "pyproject.toml": _PROJECT,
        "README.md": _README,
        f"{words['module']}.py": template.read_text(encoding="utf-8"),
        f"test_{words['module']}.py": _TEST,
    }
    return {path: Template(text).substitute(words) for path, text in texts.items()}
