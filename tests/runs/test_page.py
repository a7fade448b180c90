import re

from infctl.runs.page import SCRIPT, STYLE


def test_braces_balance() -> None:
    for text in (SCRIPT, STYLE):
        assert text.count("{") == text.count("}")
        assert "</" not in text


def test_every_colour_is_defined_for_light_and_dark() -> None:
    light, dark = STYLE.split("@media(prefers-color-scheme:dark)", 1)
    used = set(re.findall(r"var\((--\w+)\)", STYLE))
    assert used <= set(re.findall(r"(--\w+):", light))
    assert used <= set(re.findall(r"(--\w+):", dark))
