"""Make a tiny random Llama that real engines serve: `python -m infctl.testing.tiny_model DIR`.

Two layers, hidden size 64, about 150,000 parameters. The tokenizer is byte-level without merges,
so one ASCII character is one token and token counts are exact. Only printable ASCII can be
generated, so text is readable, greedy text is deterministic, and a generation ends at its token
limit or at a stop string, never by itself.

The files are written with the standard library alone: any Python makes the same bytes for the same
seed, with or without an engine installed. This file also runs as a script, by its path.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import itertools
import json
import math
import os
import random
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

FORMAT_VERSION: Final = 1
"""Rises when the same seed gives other files than before."""

STAMP: Final = "tiny-model.json"
"""Names format and seed; a directory that holds it holds a complete tiny model."""

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_BYTES: Final = 256
_SPECIAL: Final = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
_BEGIN_ID: Final = _BYTES
_END_ID: Final = _BYTES + 1
_PRINTABLE: Final = range(0x20, 0x7F)

_VOCABULARY: Final = 320
_HIDDEN: Final = 64
_FEED_FORWARD: Final = 192
_LAYERS: Final = 2
_HEADS: Final = 2
_CONTEXT_TOKENS: Final = 32768

_EXIT_USAGE: Final = 2
_EXIT_MACHINE: Final = 4

Matrix: TypeAlias = list[list[float]]
Tensor: TypeAlias = tuple[str, tuple[int, ...], "array.array[float]"]


class TinyModelError(Exception):
    """DIR holds something else, which making a model there would destroy."""


def tiny_model_command(python: str, directory: Path, seed: int = 0) -> list[str]:
    """The argv that makes a tiny model with another interpreter, infctl installed there or not."""
    return [python, str(Path(__file__).resolve()), str(directory), "--seed", str(seed)]


def make_tiny_model(directory: Path, seed: int = 0) -> bool:
    """Make the model in `directory`; False if it is there already.

    It appears whole or not at all. A tiny model of another seed or format is replaced; a directory
    with anything else in it is refused.
    """
    stamp = {"format": FORMAT_VERSION, "seed": seed}
    if _read_stamp(directory) == stamp:
        return False
    _refuse_foreign(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _write_files(staging, seed)
        _write_json(staging / STAMP, stamp)
        staging.chmod(0o755)
        return _publish(staging, directory, stamp)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


# What is in a directory, and putting a model there


def _read_stamp(directory: Path) -> object:
    try:
        return json.loads((directory / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _refuse_foreign(directory: Path) -> None:
    if not directory.exists() or (directory / STAMP).is_file():
        return
    if not directory.is_dir():
        raise TinyModelError(f"{directory} is a file; name a new or an empty directory")
    if any(directory.iterdir()):
        raise TinyModelError(
            f"{directory} holds files that are no tiny model; name a new or an empty directory"
        )


def _publish(staging: Path, directory: Path, stamp: object) -> bool:
    """Put the model in its place; False if another maker, at the same time, put the same there."""
    if _read_stamp(directory) == stamp:
        return False
    _retire(directory)
    try:
        staging.rename(directory)
    except OSError:
        if _read_stamp(directory) == stamp:
            return False
        raise
    return True


def _retire(directory: Path) -> None:
    if not (directory / STAMP).is_file():
        return
    retired = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        # Gone already when another maker was faster.
        with contextlib.suppress(FileNotFoundError):
            directory.rename(retired)
    finally:
        shutil.rmtree(retired, ignore_errors=True)


def _write_files(directory: Path, seed: int) -> None:
    _write_json(directory / "config.json", _config())
    _write_json(directory / "generation_config.json", _generation_config())
    _write_json(directory / "tokenizer.json", _tokenizer())
    _write_json(directory / "tokenizer_config.json", _tokenizer_config())
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    _write_safetensors(directory / "model.safetensors", _weights(random.Random(seed)))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


# The tokenizer


def _byte_characters() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte."""
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = itertools.count(0x100)
    return [chr(byte if byte in kept else next(spare)) for byte in range(_BYTES)]


def _tokenizer() -> dict[str, object]:
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special_token(i, text) for i, text in enumerate(_SPECIAL, _BYTES)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in enumerate(_byte_characters())},
            "merges": [],
        },
    }


def _special_token(token_id: int, text: str) -> dict[str, object]:
    return {
        "id": token_id,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[1],
        "clean_up_tokenization_spaces": False,
        "model_max_length": _CONTEXT_TOKENS,
    }


# The model


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _VOCABULARY,
        "hidden_size": _HIDDEN,
        "intermediate_size": _FEED_FORWARD,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "head_dim": _HIDDEN // _HEADS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": _CONTEXT_TOKENS,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": _BEGIN_ID,
        "eos_token_id": _END_ID,
        "dtype": "float32",
    }


def _generation_config() -> dict[str, object]:
    return {"bos_token_id": _BEGIN_ID, "eos_token_id": _END_ID}


# Llama's output has no bias, so one is made of hidden dimension 0: every embedding sets it to 1,
# no layer writes to it, and the output rows of all but printable ASCII read nothing else, with a
# large negative weight. Their logits are far below the others at any temperature. The projections
# are drawn wide enough that attention is sharp and the text depends on all of the context: a wrong
# or stale key/value cache shows up as other text.
_BIAS_DIMENSION: Final = 0
_FORBIDDEN: Final = -1000.0
_SPREAD: Final = 2.0


def _weights(rng: random.Random) -> Iterator[Tensor]:
    yield _tensor("model.embed_tokens.weight", _embeddings(rng))
    for layer in range(_LAYERS):
        yield from _layer(rng, f"model.layers.{layer}")
    yield _ones("model.norm.weight")
    yield _tensor("lm_head.weight", _output_rows(rng))


def _layer(rng: random.Random, name: str) -> Iterator[Tensor]:
    yield _ones(f"{name}.input_layernorm.weight")
    for projection in ("q_proj", "k_proj", "v_proj"):
        yield _tensor(f"{name}.self_attn.{projection}.weight", _random(rng, _HIDDEN, _HIDDEN))
    yield _tensor(f"{name}.self_attn.o_proj.weight", _writing(rng, _HIDDEN))
    yield _ones(f"{name}.post_attention_layernorm.weight")
    for projection in ("gate_proj", "up_proj"):
        yield _tensor(f"{name}.mlp.{projection}.weight", _random(rng, _FEED_FORWARD, _HIDDEN))
    yield _tensor(f"{name}.mlp.down_proj.weight", _writing(rng, _FEED_FORWARD))


def _random(rng: random.Random, rows: int, columns: int) -> Matrix:
    deviation = _SPREAD / math.sqrt(columns)
    return [[rng.gauss(0.0, deviation) for _ in range(columns)] for _ in range(rows)]


def _writing(rng: random.Random, columns: int) -> Matrix:
    """A projection back into the hidden state that leaves the bias dimension alone."""
    matrix = _random(rng, _HIDDEN, columns)
    matrix[_BIAS_DIMENSION] = [0.0] * columns
    return matrix


def _embeddings(rng: random.Random) -> Matrix:
    matrix = [[rng.gauss(0.0, 1.0) for _ in range(_HIDDEN)] for _ in range(_VOCABULARY)]
    for row in matrix:
        row[_BIAS_DIMENSION] = 1.0
    return matrix


def _output_rows(rng: random.Random) -> Matrix:
    matrix = _random(rng, _VOCABULARY, _HIDDEN)
    for token, row in enumerate(matrix):
        if token in _PRINTABLE:
            row[_BIAS_DIMENSION] = 0.0
        else:
            row[:] = [0.0] * _HIDDEN
            row[_BIAS_DIMENSION] = _FORBIDDEN
    return matrix


def _tensor(name: str, matrix: Matrix) -> Tensor:
    values = array.array("f", itertools.chain.from_iterable(matrix))
    return name, (len(matrix), len(matrix[0])), values


def _ones(name: str) -> Tensor:
    return name, (_HIDDEN,), array.array("f", [1.0] * _HIDDEN)


def _write_safetensors(path: Path, tensors: Iterable[Tensor]) -> None:
    """Write the safetensors format: header length, JSON header, then the values, little-endian."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape, values in tensors:
        start = len(body)
        body += _little_endian(values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(body)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # readers want the values aligned to 8 bytes
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def _little_endian(values: array.array[float]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a model as told on the command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m infctl.testing.tiny_model",
        description="Make a tiny random Llama (600 kB) that vLLM and SGLang serve.",
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="a new or an empty directory")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another model (0)")
    options = parser.parse_args(arguments)
    try:
        made = make_tiny_model(Path(os.path.abspath(options.directory)), options.seed)
    except TinyModelError as error:
        print(f"tiny_model: {error}", file=sys.stderr)
        return _EXIT_USAGE
    except OSError as error:
        print(f"tiny_model: cannot make {options.directory}: {error}", file=sys.stderr)
        return _EXIT_MACHINE
    print(f"{options.directory}: {'made' if made else 'already there'}, seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
