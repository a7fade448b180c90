"""Read a profile: a shipped one by name, or a file; with what it extends and what overrides it.

Every problem is found before any is reported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from infctl.errors import InputError
from infctl.profile.crosscheck import crosscheck
from infctl.profile.document import BYTES_MAX, Located, Problem, Unreadable, Where, parse
from infctl.profile.merge import merge, override_all
from infctl.profile.model import Profile
from infctl.profile.problems import at, mean, of_model

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

EXTENDS_MAX = 8
PROBLEMS_SHOWN = 50

_SUFFIXES = (".yaml", ".yml", ".json")
_LIST_HINT = "`infctl profile list` shows the shipped profiles."


class ProfileError(InputError):
    """A profile with problems: all of them, in the order of its lines."""

    def __init__(self, problems: Sequence[Problem], hint: str | None = None) -> None:
        shown = [str(p) for p in problems[:PROBLEMS_SHOWN]]
        if len(problems) > PROBLEMS_SHOWN:
            shown.append(f"… and {len(problems) - PROBLEMS_SHOWN} more problems")
        super().__init__("\n".join(shown), hint=hint)
        self.problems = tuple(problems)
        self.lines = tuple(shown)


Check = Callable[[dict[str, Any], Profile | None], Iterable[tuple[tuple[str | int, ...], str]]]
"""What else to check: given the values as written, and the profile if nothing is wrong so far, it
tells paths of values and what is wrong with them."""


def load(
    ref: str,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    checks: Iterable[Check] = (),
) -> Profile:
    """The profile `ref` names: a shipped one, or the path of a YAML or JSON file.

    `sets` are `a.b.c=VALUE` texts; `INFCTL_SET__A__B__C` in `environ` (default: none) comes
    before them. Raises ProfileError with every problem there is, those of `checks` among them.
    """
    root, problems = _read_chain(ref)
    root, found = override_all(root, sets, environ or {}, Profile.model_fields)
    return _build(root, problems + found, checks)


def load_text(
    text: str,
    source: str,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    checks: Iterable[Check] = (),
) -> Profile:
    """The profile that `text` is, which extends none; otherwise as `load`. `source` names it."""
    root, problems = parse(text, source)
    root, found = override_all(root, sets, environ or {}, Profile.model_fields)
    return _build(root, problems + found, checks)


def shipped() -> list[str]:
    """Names of the profiles that come with infctl."""
    names = [f.name for f in _folder().iterdir() if f.name.endswith(".yaml")]
    return sorted(name.removesuffix(".yaml") for name in names)


def read_text(ref: str) -> str:
    """The text of a shipped profile or a profile file, as it was written. Raises ProfileError."""
    return _text(_locate(ref, None, Where(ref)))


def _build(root: Located, problems: list[Problem], checks: Iterable[Check]) -> Profile:
    problems = problems + list(crosscheck(root))
    profile: Profile | None = None
    document = _expanded(root).plain()
    try:
        profile = Profile.model_validate(document)
    except ValidationError as error:
        problems += of_model(error, root)
    for check in checks:
        found = check(document, None if problems else profile)
        problems += [at(root, path, what) for path, what in found]
    if problems or profile is None:
        raise ProfileError(_in_order(problems))
    return profile


def _in_order(problems: Iterable[Problem]) -> list[Problem]:
    unique: dict[tuple[Where, str], Problem] = {}
    for problem in problems:
        unique.setdefault((problem.where, problem.key), problem)
    return sorted(unique.values(), key=lambda p: (p.where.source, p.where.line))


def _expanded(root: Located) -> Located:
    """The profile with `~` in paths of this machine made whole."""
    below = dict(root.mapping)
    models = below.get("models")
    if models and isinstance(models.value, list):
        below["models"] = Located([_home(m, "path") for m in models.items], models.where)
    if "engine" in below:
        below["engine"] = _home(below["engine"], "python")
    if "routing" in below:
        below["routing"] = _routing_homes(below["routing"])
    return Located(below, root.where) if isinstance(root.value, dict) else root


def _routing_homes(routing: Located) -> Located:
    routing = _home(routing, "keys_file")
    for part in ("tls", "engine_tls"):
        node = routing.mapping.get(part)
        if node is not None:
            for key in ("ca_file", "cert_file", "key_file"):
                node = _home(node, key)
            routing = Located(routing.value | {part: node}, routing.where)
    return routing


def _home(node: Located, key: str) -> Located:
    path = node.mapping.get(key)
    if path is None or not isinstance(path.value, str):
        return node
    return Located(
        node.value | {key: Located(os.path.expanduser(path.value), path.where)}, node.where
    )


# --- extends --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Source:
    """A file that holds a profile: what people call it, and what identifies it."""

    shown: str
    file: Path | Traversable
    identity: str
    folder: Path | None = field(default=None)


def _read_chain(ref: str) -> tuple[Located, list[Problem]]:
    """The profile with all it extends merged in; `extends` itself is gone."""
    layers: list[Located] = []
    problems: list[Problem] = []
    chain: list[_Source] = []
    source: _Source | None = _locate(ref, None, Where(ref))
    while source:
        chain.append(source)
        layer, found = _read(source)
        problems += found
        layers.append(layer)
        source = _extended(layer, source, chain, problems)
    merged = layers.pop()
    while layers:
        merged = merge(merged, layers.pop())
    below = {key: value for key, value in merged.mapping.items() if key != "extends"}
    return Located(below, merged.where), problems


def _extended(
    layer: Located, source: _Source, chain: Sequence[_Source], problems: list[Problem]
) -> _Source | None:
    """What a layer extends, if it does and can."""
    node = layer.mapping.get("extends")
    if node is None or node.value is None:
        return None
    if not isinstance(node.value, str):
        problems.append(Problem(node.where, "extends", "needs the name or path of one profile"))
        return None
    try:
        found = _locate(node.value, source.folder, node.where)
    except ProfileError as error:
        problems += [Problem(p.where, "extends", p.what) for p in error.problems]
        return None
    shown = " → ".join([*(each.shown for each in chain), found.shown])
    if found.identity in {each.identity for each in chain}:
        problems.append(Problem(node.where, "extends", f"leads back to itself: {shown}"))
        return None
    if len(chain) >= EXTENDS_MAX:
        what = f"is more than {EXTENDS_MAX} profiles deep: {shown}"
        problems.append(Problem(node.where, "extends", what))
        return None
    return found


# --- files ----------------------------------------------------------------------------------------


def _folder() -> Traversable:
    return resources.files("infctl_profiles")


def _locate(ref: str, folder: Path | None, where: Where) -> _Source:
    """The file a name or path means; relative to `folder` for what a file extends."""
    if re.fullmatch(r"[a-z0-9][a-z0-9.-]*", ref) and not ref.endswith(_SUFFIXES):
        file = _folder() / f"{ref}.yaml"
        if file.is_file():
            return _Source(ref, file, str(file))
    path = Path(os.path.expanduser(ref)) if ref else Path()
    path = folder / path if folder else path
    if ref and path.exists():
        resolved = path.resolve()
        return _Source(str(path), path, str(resolved), resolved.parent)
    raise ProfileError([Problem(where, "", _missing(ref, where))], _LIST_HINT)


def _missing(ref: str, where: Where) -> str:
    about = "" if where.source == ref else f"{ref!r}: "
    if not ref:
        return "the profile's name is empty"
    if "/" in ref or ref.endswith(_SUFFIXES):
        return f"{about}there is no such file"
    return (
        f"{about}there is neither a shipped profile nor a file of that name{mean(ref, shipped())}"
    )


def _read(source: _Source) -> tuple[Located, list[Problem]]:
    shown = str(source.file)
    try:
        root, problems = parse(_text(source), shown)
    except Unreadable as error:
        raise ProfileError(
            [error.problem], "A profile is a YAML file; see docs/profile.md."
        ) from error
    if not isinstance(root.value, dict):
        what = "needs keys and values at its top: this is no profile"
        raise ProfileError([Problem(root.where, "", what)])
    return root, problems


def _text(source: _Source) -> str:
    shown = Where(str(source.file))
    try:
        if source.file.is_dir():
            raise ProfileError([Problem(shown, "", "is a directory; name the profile's file")])
        with source.file.open("rb") as stream:
            data = stream.read(BYTES_MAX + 1)
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise ProfileError([Problem(shown, "", what)]) from error
    if len(data) > BYTES_MAX:
        raise ProfileError([Problem(shown, "", f"is bigger than {BYTES_MAX // 1024} KiB")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"is no UTF-8 text (byte {error.start + 1}): this is no YAML file"
        raise ProfileError([Problem(shown, "", what)]) from error
    if not text.strip():
        raise ProfileError(
            [Problem(shown, "", "is empty")], "`infctl profile init` writes a start."
        )
    return text
