"""The profile's JSON schema, for editors and other tools."""

from __future__ import annotations

from typing import Any

from infctl.profile.model import Profile

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """What a profile file may hold, `extends` included, which is gone from a loaded profile.

    A file that extends another may leave out what the other has, so it has no required keys.
    """
    document = Profile.model_json_schema()
    extends = {
        "type": "string",
        "description": "A shipped profile's name, or a path relative to this file.",
    }
    document["properties"] = {"extends": extends, **document["properties"]}
    document.pop("required", None)
    return {"$schema": DIALECT, **_without_titles(document)}


def _without_titles(node: Any) -> Any:
    """Pydantic's titles repeat the key; a property that is itself called title stays."""
    if isinstance(node, list):
        return [_without_titles(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without_titles(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
    }
