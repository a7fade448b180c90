"""A model's chat template: messages become the text that the engine tokenises.

Rendered as Hugging Face's tokenizers do: jinja2 in a sandbox, the same context, filters and
extensions. Messages are prepared as vLLM prepares them. What engines are known to treat in ways of
their own is not rendered.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_KEPT = ("role", "name", "tool_calls", "tool_call_id")


class Unrenderable(Exception):
    """These messages make no text here that is sure to be the engine's."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant said, for training; it renders as its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        """The tag's body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without jinja2's escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class ChatTemplate:
    """A compiled template and the tokenizer's special tokens, which it may name (`bos_token`).

    Raises jinja2.TemplateError for what is no template.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(source)
        self._special = dict(special)
        self._parts = _loops_over_content(environment.parse(source))

    def render(self, messages: Any, tools: Any, options: Mapping[str, Any]) -> str:
        """The text of a conversation; `options` are variables of the request. Raises
        Unrenderable."""
        if not isinstance(messages, list) or not messages:
            raise Unrenderable("no messages")
        prepared = [self._message(message) for message in messages]
        context = self._special | dict(options)
        try:
            return self._template.render(messages=prepared, tools=tools or None, **context)
        except Exception as error:  # a template may do to its input whatever it likes
            raise Unrenderable(f"{type(error).__name__}: {error}") from error

    def _message(self, message: Any) -> dict[str, Any]:
        if not isinstance(message, dict) or message.get("role") in (None, "developer"):
            raise Unrenderable("a message without a role, or a developer's")
        kept = {name: message[name] for name in _KEPT if message.get(name) is not None}
        texts = list(_texts(message.get("content")))
        if self._parts and message["role"] != "tool":
            kept["content"] = [{"type": "text", "text": text} for text in texts]
        else:
            kept["content"] = "\n".join(texts)
        reasoning = message.get("reasoning")
        if reasoning is not None:
            kept["reasoning"] = kept["reasoning_content"] = reasoning
        if "tool_calls" in kept:
            kept["tool_calls"] = [_call(call) for call in kept["tool_calls"]]
            if not kept["tool_calls"]:
                del kept["tool_calls"]
        return kept


def _texts(content: Any) -> Iterator[str]:
    if content is None:
        return
    for part in [content] if isinstance(content, str) else content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not isinstance(text, str):
            raise Unrenderable("a part of a message is not text")
        yield text


def _call(call: Any) -> dict[str, Any]:
    """A tool call with its arguments as an object, which templates expect."""
    try:
        function = dict(call["function"])
        arguments = function.get("arguments") or {}
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (TypeError, KeyError, ValueError) as error:
        raise Unrenderable("an odd tool call") from error
    return dict(call) | {"function": function | {"arguments": parsed}}


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether the template goes through the parts of a message's content, so that it expects
    parts; others expect a string."""
    return any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Filter | nodes.Test):
        return node.node is not None and _is_content(node.node)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Slice):
            return _is_content(node.node)
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name == "content"


def choose(found: Any, tools: bool) -> str | None:
    """The template to use of what a tokenizer's configuration names: one, or several by name."""
    if isinstance(found, str):
        return found
    if not isinstance(found, list):
        return None
    named: dict[Any, Any] = dict(_pairs(found))
    chosen = named.get("tool_use") if tools else None
    chosen = chosen or named.get("default")
    return chosen if isinstance(chosen, str) else None


def _pairs(found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    return ((e.get("name"), e.get("template")) for e in found if isinstance(e, dict))
