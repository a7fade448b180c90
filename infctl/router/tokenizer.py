"""A model's own tokenizer, read from its folder, and what it has tokenised lately."""

from __future__ import annotations

import json
import os
from array import array
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_128_digest

from infctl.errors import InputError, MachineError
from infctl.router import segments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infctl.router.chat_template import ChatTemplate

_WHERE = "models.tokenizer"
_CACHE_BYTES_MAX = 64 << 20
_ENTRY_BYTES = 200
"""What an entry takes beside its tokens."""


class Cache:
    """Tokens of pieces of text, four bytes each; the least recently used are forgotten. Used from
    several threads."""

    def __init__(self, bytes_max: int = _CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = Lock()
        self._seed = int.from_bytes(os.urandom(8), "little")  # nobody can aim for a collision
        self.bytes_held = 0

    def key(self, text: str) -> bytes:
        """What a piece is known by."""
        return xxh3_128_digest(text.encode("utf-8", "surrogatepass"), self._seed)

    def get(self, key: bytes) -> bytes | None:
        """A piece's tokens, if they are known."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: bytes, tokens: bytes) -> None:
        """Keep a piece's tokens."""
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self.bytes_held -= len(old) + _ENTRY_BYTES
            self._entries[key] = tokens
            self.bytes_held += len(tokens) + _ENTRY_BYTES
            while self.bytes_held > self._bytes_max:
                _, gone = self._entries.popitem(last=False)
                self.bytes_held -= len(gone) + _ENTRY_BYTES


class ModelTokenizer:
    """Tokenises as the engine of this model does.

    Tokens are bytes: unsigned integers of four bytes each. `begin` and `end` are what is put
    around a prompt that is no chat. `path` is a folder with `tokenizer.json`, or that file; beside
    it `tokenizer_config.json` and `chat_template.jinja` may lie.

    Raises InputError and MachineError.
    """

    def __init__(self, path: str, cache: Cache | None = None) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would be ours twice
        try:
            import jinja2
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MachineError(
                f"exact tokenising needs a package that is not installed: {error.name}",
                where=_WHERE,
                hint="Install it: pip install 'infctl[tokenizer]'",
            ) from error
        file = _file(path)
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises Exception itself
            raise InputError(f"not a tokenizer: {error}", where=str(file)) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.cache = cache or Cache()
        config = _config(file.with_name("tokenizer_config.json"))
        self.begin, self.end = self._around(str(file))
        self._cuts = self._find_cuts()
        try:
            self.template, self.tool_template = _templates(file, config)
        except jinja2.TemplateError as error:
            raise InputError(f"not a chat template: {error}", where=str(file.parent)) from error

    def encode(self, texts: list[str]) -> list[bytes]:
        """Tokens of each text. The library lets other threads run meanwhile."""
        batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [array("I", encoding.ids).tobytes() for encoding in batch]

    def cut(self, text: str) -> list[str]:
        """The pieces of a text whose tokens are the text's."""
        return segments.cut(text, self._cuts)

    def _around(self, where: str) -> tuple[bytes, bytes]:
        inner = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a", add_special_tokens=True).ids
        for at in range(len(whole) - len(inner) + 1):
            if whole[at : at + len(inner)] == inner:
                begin, end = whole[:at], whole[at + len(inner) :]
                return array("I", begin).tobytes(), array("I", end).tobytes()
        raise InputError("what it adds around a prompt is not understood", where=where)

    def _find_cuts(self) -> Any:
        added = self._tokenizer.get_added_tokens_decoder().values()
        if any(token.rstrip and token.content[-1:].isalpha() for token in added):
            return None
        size = self._tokenizer.get_vocab_size(with_added_tokens=False)
        vocabulary = self._tokenizer.decode_batch([[number] for number in range(size)])
        names = [token.content for token in added]
        return segments.find_cuts(self.encode, self._starts, vocabulary, names)

    def _starts(self, text: str) -> set[int]:
        splitter = self._tokenizer.pre_tokenizer
        return {at for _, (at, _) in splitter.pre_tokenize_str(text)} if splitter else {0}


def _file(path: str) -> Path:
    found = Path(path).expanduser()
    file = found / "tokenizer.json" if found.is_dir() else found
    if not file.is_file():
        raise InputError(
            "there is no tokenizer here",
            where=f"{_WHERE}: {file}",
            hint="Name a folder with tokenizer.json, or that file.",
        )
    return file


def _config(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=str(file)) from error
    return found if isinstance(found, dict) else {}


def _templates(
    file: Path, config: Mapping[str, Any]
) -> tuple[ChatTemplate | None, ChatTemplate | None]:
    """The templates without and with tools; None where the model has none."""
    from infctl.router.chat_template import ChatTemplate, choose

    own = file.with_name("chat_template.jinja")
    found = own.read_text(encoding="utf-8") if own.is_file() else config.get("chat_template")
    special = dict(_special(config))
    plain, tools = choose(found, tools=False), choose(found, tools=True)
    made = ChatTemplate(plain, special) if plain else None
    if tools == plain:
        return made, made
    return made, ChatTemplate(tools, special) if tools else None


def _special(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    named = []
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            named.append((name, text))
    return named
