"""Plugins and their parameters are checked together with everything else in a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from infctl.cli.profile_checks import load
from infctl.profile.load import ProfileError

BAD = """\
extends: demo
engine: {type: vlm}
routing:
  filters: [ready, modl]
  scorers:
    - {type: queue-depth, limt: 3}
    - {type: queue-depth, limit: x}
    - nope
  picker: bets
slo: {ttft: 3}
"""


def problems(folder: Path, text: str, *sets: str) -> list[str]:
    file = folder / "x.yaml"
    file.write_text(text)
    with pytest.raises(ProfileError) as caught:
        load(str(file), sets)
    return [str(p).removeprefix(f"{file}:") for p in caught.value.problems]


def test_every_error_at_once_with_its_line(tmp_path: Path) -> None:
    wanted = (
        "2: engine.type: there is no engine named 'vlm' (did you mean vllm?)",
        "4: routing.filters[1]: there is no filter named 'modl' (did you mean model?)",
        "6: routing.scorers[0].limt: is no parameter of the scorer queue-depth "
        "(did you mean limit?)",
        "7: routing.scorers[1].limit: queue-depth: expected a whole number, got text",
        "8: routing.scorers[2]: there is no scorer named 'nope'; registered: ",
        "9: routing.picker: there is no picker named 'bets' (did you mean best?)",
        "10: slo.ttft: is no key of a profile (did you mean ttft_ms?)",
    )
    found = problems(tmp_path, BAD)
    assert len(found) == len(wanted)
    for line, start in zip(found, wanted, strict=True):
        assert line.startswith(start)


def test_what_the_whole_comes_to(tmp_path: Path) -> None:
    arguments = "extends: demo\nengine:\n  args: {max_num_sequences: 1}\n"
    (line,) = problems(tmp_path, arguments)
    assert line.startswith("3: engine.args.max_num_sequences: an emulated engine has no argument")


def test_overrides_are_named(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, "extends: demo\n", "routing.picker=bets")
    assert line.startswith("--set routing.picker=bets: routing.picker: there is no picker")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def x(:\n", "broken_plugin.py:1: SyntaxError"),
        ("import os\n1 / 0\n", "broken_plugin.py:2: ZeroDivisionError"),
        ("class P:\n    def __init__(self):\n        raise KeyError('k')\n", "cannot be made"),
    ],
)
def test_a_broken_plugin_is_the_plugins_fault(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plugin.py").write_text(text)
    monkeypatch.setenv("INFCTL_PLUGIN_PATH", str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "broken_plugin", raising=False)
    (line,) = problems(tmp_path, "extends: demo\nrouting: {picker: 'broken_plugin:P'}\n")
    assert line.startswith("2: routing.picker: ")
    assert said in line
