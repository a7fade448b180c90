"""Conversations as text."""

from __future__ import annotations

import time
from typing import Any

import jinja2
import pytest

from infctl.router.chat_template import ChatTemplate, Unrenderable, choose

from .tokenizers_made import TEMPLATE

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def rendered(source: str, messages: Any, tools: Any = None, **options: Any) -> str:
    return ChatTemplate(source, SPECIAL).render(messages, tools, options)


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_a_conversation() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *user([{"type": "text", "text": "Hi"}])]
    assert rendered(TEMPLATE, messages, add_generation_prompt=True) == (
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n"
    )


def test_parts_are_joined_or_kept_as_the_template_has_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    string = "{% for m in messages %}{{ m.content }}{% endfor %}"
    looped = (
        "{% for m in messages %}{% for c in m['content'] %}[{{ c.text }}]{% endfor %}{% endfor %}"
    )
    assert rendered(string, user(parts)) == "a\nb"
    assert rendered(looped, user(parts)) == "[a][b]"
    assert rendered(looped, user("a")) == "[a]"
    assert rendered(string, user(None)) == ""


def test_what_templates_are_given() -> None:
    assert rendered("{{ bos_token }}{{ eos_token }}", user("x")) == "<s></s>"
    tools = [{"type": "function", "function": {"name": "f<é>"}}]
    assert rendered("{{ tools[0] | tojson }}", user("x"), tools).count("<é>") == 1
    assert rendered("{{ tools | tojson(indent=2) }}", user("x"), tools).startswith("[\n  {")
    assert rendered("{{ tools is none }}", user("x"), []) == "True"
    assert rendered("{{ strftime_now('%Y') }}", user("x")) == time.strftime("%Y")
    assert rendered("{% generation %}a{% endgeneration %}", user("x")) == "a"
    assert rendered("{% for m in messages %}{% break %}{% endfor %}z", user("x")) == "z"
    assert rendered("  {% if true %}\na\n  {% endif %}\n", user("x")) == "a\n"
    assert rendered("{{ enable_thinking }}", user("x"), enable_thinking=False) == "False"


def test_tool_calls_have_their_arguments_as_an_object() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    source = "{{ messages[0].tool_calls[0].function.arguments.a }}"
    assert rendered(source, [message]) == "1"
    empty = {"role": "assistant", "content": "x", "tool_calls": []}
    assert rendered("{{ messages[0].tool_calls is defined }}", [empty]) == "False"


@pytest.mark.parametrize(
    "messages",
    [
        None, [], "text", [1], [{}], [{"role": "developer", "content": "x"}],
        user([{"type": "image_url", "image_url": {"url": "data:"}}]), user(7), user([7]),
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
        [{"role": "assistant", "tool_calls": [3]}], [{"role": "assistant", "tool_calls": 3}],
    ],
)  # fmt: skip
def test_what_is_not_sure_is_not_rendered(messages: Any) -> None:
    with pytest.raises((Unrenderable, TypeError)):
        rendered(TEMPLATE, messages)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[99].content.nothing }}",
        "{{ range(100000000) | list }}",
    ],
)
def test_what_a_template_refuses_or_may_not_do(source: str) -> None:
    with pytest.raises(Unrenderable):
        rendered(source, user("x"))


def test_odd_templates() -> None:
    with pytest.raises(jinja2.TemplateError):
        ChatTemplate("{% if %}", {})
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    assert (choose(named, tools=True), choose(named, tools=False)) == ("t", "d")
    assert choose(named[:1], tools=True) == "d"
    assert (choose(None, tools=False), choose({"x": 1}, tools=False)) == (None, None)
