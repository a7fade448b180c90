"""Tokenizers trained for tests, of the kinds that models have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "When an engine dies in the middle of an answer, another one goes on from there. " * 3,
    "引擎停了，另一个引擎接着说下去。推理服务的路由器不能丢掉任何一个请求！缓存命中率越高，越好。",
    "The cache next door is warm; naïve routing isn't. It'll cost 1,234.56 ms.\n\n\tdef f(x):\n",
    "Наука и жизнь, été, emoji 👩‍💻🚀  double  spaces and the end of the line\r\n",
]
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _train(made: Tokenizer, **options: Any) -> Tokenizer:
    special = [
        AddedToken(t, special=True, normalized=False) for t in ("<s>", "<|user|>", "<|end|>")
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, show_progress=False, **options
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def gpt2() -> Tokenizer:
    """Byte-level BPE with GPT-2's splits."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return _train(made, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def llama3() -> Tokenizer:
    """Byte-level BPE with Llama 3's splits, and a token before each prompt."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made = _train(made, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return made


def sentencepiece() -> Tokenizer:
    """As Llama 2's: no splits, a space becomes a letter, and one goes before the text."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<s>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Replace("▁", " ")
    return _train(made)


def unsplit() -> Tokenizer:
    """Byte-level BPE without splits: tokens reach over spaces."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return _train(made, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


KINDS = (gpt2, llama3, sentencepiece, unsplit)


def folder(path: Path, made: Tokenizer, template: str | None = TEMPLATE) -> str:
    """Files as a model's folder has them."""
    made.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "<|end|>", "lstrip": False}}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return str(path)
