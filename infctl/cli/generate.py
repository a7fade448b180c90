"""Writes what is generated: `python -m infctl.cli.generate [ROOT]` (tests compare it)."""

from __future__ import annotations

import sys
from pathlib import Path

from infctl.cli import reference as cli_reference
from infctl.profile import reference as profile_reference


def generated() -> dict[str, str]:
    """Path below the repository's root, and content, of every generated file."""
    files = {"docs/cli.md": cli_reference.render(), "docs/profile.md": profile_reference.render()}

    for shell in cli_reference.SHELLS:
        files[f"completions/infctl.{shell}"] = cli_reference.completion(shell)
    return files


def main(root: Path) -> None:
    """Write them all."""
    for name, content in generated().items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
