"""The JSON schema."""

from __future__ import annotations

import json

from infctl.profile.model import Profile
from infctl.profile.schema import schema


def test_it_holds_every_key_and_extends() -> None:
    found = schema()
    assert set(found["properties"]) == {"extends", *Profile.model_fields}
    assert found["additionalProperties"] is False
    assert "required" not in found
    json.dumps(found)


def test_titles_are_gone_and_a_key_of_that_name_would_stay() -> None:
    text = json.dumps(schema())
    assert '"title": "' not in text
    assert schema()["$defs"]["Pool"]["properties"]["name"]["type"] == "string"
