"""What no single key can tell: names that repeat, collide or lead nowhere.

Works on the written values, so that these problems are reported together with all others, also
when the profile as a whole cannot be built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import resources

from infctl.profile.document import Located, Problem, Where
from infctl.profile.problems import mean

_YAML = (".yaml", ".yml")


def crosscheck(root: Located) -> Iterator[Problem]:
    """Every such problem of a profile."""
    models, clusters, pools = (_list(root, key) for key in ("models", "clusters", "pools"))
    yield from _model_names(models)
    yield from _timings(models)
    yield from _duplicates("clusters", clusters)
    yield from _duplicates("pools", pools)
    names = [name for _, name in _names(models)]
    known_clusters = [name for _, name in _names(clusters)]
    if "clusters" not in root.mapping:
        known_clusters = ["local"]
    for pool in pools:
        yield from _pool_model(pool, names)
        yield from _refers(pool, "cluster", known_clusters)


def _list(root: Located, key: str) -> list[Located]:
    node = root.mapping.get(key)
    return node.items if node else []


def _text(item: Located, key: str) -> Located | None:
    node = item.mapping.get(key)
    return node if node and isinstance(node.value, str) else None


def _names(items: Iterable[Located]) -> Iterator[tuple[Where, str]]:
    for item in items:
        if name := _text(item, "name"):
            yield name.where, name.value


def _duplicates(key: str, items: Iterable[Located]) -> Iterator[Problem]:
    seen: dict[str, Where] = {}
    for where, name in _names(items):
        if name in seen:
            what = f"is a name twice (first at {seen[name]})"
            yield Problem(where, f"{key}.{name}", what)
        seen.setdefault(name, where)


def _model_names(models: list[Located]) -> Iterator[Problem]:
    yield from _duplicates("models", models)
    owner = {name: name for _, name in _names(models)}
    for model in models:
        own = _text(model, "name")
        aliases = model.mapping.get("aliases")
        for alias in aliases.items if aliases else []:
            if not isinstance(alias.value, str):
                continue
            if alias.value in owner:
                what = f"the alias {alias.value!r} is already a name of model {owner[alias.value]}"
                key = f"models.{own.value}.aliases" if own else "models.aliases"
                yield Problem(alias.where, key, what)
            owner.setdefault(alias.value, own.value if own else "?")


def _timings(models: list[Located]) -> Iterator[Problem]:
    known = shipped_timings()
    for model in models:
        timing = _text(model, "timing")
        if timing and not timing.value.endswith(_YAML) and timing.value not in known:
            close = mean(timing.value, known) or f"; shipped: {', '.join(known)}"
            what = f"there is no timing model {timing.value!r}{close}"
            yield Problem(timing.where, "models.timing", what)


def shipped_timings() -> list[str]:
    """Names of the timing models that come with infctl."""
    folder = resources.files("infctl_profiles") / "timing"
    names = [f.name for f in folder.iterdir() if f.name.endswith(_YAML)]
    return sorted(name.removesuffix(".yaml") for name in names)


def _pool_model(pool: Located, models: list[str]) -> Iterator[Problem]:
    if _text(pool, "model"):
        yield from _refers(pool, "model", models)
    elif "model" not in pool.mapping and len(models) > 1:
        what = f"must name one of the models: {', '.join(models)}"
        yield Problem(pool.where, f"pools.{_label(pool)}.model", what)


def _refers(pool: Located, key: str, known: list[str]) -> Iterator[Problem]:
    """Where no name is known at all, their list is what is wrong, and is told already."""
    given = _text(pool, key)
    if given and known and given.value not in known:
        close = mean(given.value, known) or f"; there is {', '.join(known)}"
        what = f"there is no {key} {given.value!r}{close}"
        yield Problem(given.where, f"pools.{_label(pool)}.{key}", what)


def _label(pool: Located) -> str:
    name = _text(pool, "name")
    return name.value if name else "?"
