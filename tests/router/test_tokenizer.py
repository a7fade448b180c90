"""A model's tokenizer from its folder."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

from infctl.errors import InputError, MachineError
from infctl.router.tokenizer import Cache, ModelTokenizer

from .tokenizers_made import CORPUS, KINDS, folder, gpt2, llama3


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_and_what_goes_around_make_the_whole(kind: Any, tmp_path: Path) -> None:
    made = kind()
    loaded = ModelTokenizer(folder(tmp_path, made))
    text = " ".join(CORPUS * 8)
    ids = loaded.begin + b"".join(loaded.encode(loaded.cut(text))) + loaded.end
    assert list(array("I", ids)) == made.encode(text).ids
    assert loaded.begin == (array("I", [0]).tobytes() if kind is llama3 else b"")


def test_the_file_will_do_and_templates_by_name(tmp_path: Path) -> None:
    path = folder(tmp_path, gpt2(), template=None)
    config = tmp_path / "tokenizer_config.json"
    assert ModelTokenizer(f"{path}/tokenizer.json").template is None
    config.write_text('{"chat_template": "{{ bos_token }}", "bos_token": "<s>"}')
    loaded = ModelTokenizer(path)
    assert loaded.template is loaded.tool_template
    assert loaded.template is not None
    assert loaded.template.render([{"role": "user", "content": "x"}], None, {}) == "<s>"
    config.write_text(
        '{"chat_template": [{"name": "default", "template": "plain"},'
        '{"name": "tool_use", "template": "tools"}]}'
    )
    loaded = ModelTokenizer(path)
    texts = [
        t.render([{"role": "user"}], None, {}) for t in (loaded.template, loaded.tool_template) if t
    ]
    assert texts == ["plain", "tools"]


def test_what_is_no_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no tokenizer here"):
        ModelTokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer"):
        ModelTokenizer(str(tmp_path))
    path = folder(tmp_path, gpt2(), template="{% if %}")
    with pytest.raises(InputError, match="not a chat template"):
        ModelTokenizer(path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        ModelTokenizer(path)


@pytest.mark.parametrize("module", ["tokenizers", "jinja2"])
def test_the_extra_is_asked_for(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MachineError, match=module) as raised:
        ModelTokenizer("/nowhere")
    assert "infctl[tokenizer]" in (raised.value.hint or "")


def test_the_cache_is_bounded_and_forgets_the_least_recently_used() -> None:
    cache = Cache(bytes_max=1000)
    keys = [cache.key(str(number)) for number in range(4)]
    for key in keys[:3]:
        cache.put(key, b"x" * 100)
    cache.put(keys[0], b"y" * 100)  # again: no second entry
    assert cache.bytes_held == 900
    assert cache.get(keys[1])
    cache.put(keys[3], b"z" * 100)
    assert cache.get(keys[2]) is None
    assert [cache.get(key) is not None for key in keys] == [True, True, False, True]
    assert cache.bytes_held <= 1000
    assert Cache().key("a") != Cache().key("a")  # seeds differ
