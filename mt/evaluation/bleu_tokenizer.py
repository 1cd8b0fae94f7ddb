"""Choosing sacreBLEU's tokenizer by the target language, which may be written without spaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec

from mt.errors import ConfigError

DEFAULT = "13a"
# Those of sacreBLEU's tokenizers that download nothing. The schema has them too: it needs pydantic,
# which scoring does without.
TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none")
# The tokenizer of a language by its ISO 639-1 or 639-3 code; every other language has DEFAULT.
BY_LANGUAGE = {
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh"), "zh"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
    # Written without spaces, and sacreBLEU has no segmenter for them.
    **dict.fromkeys(("th", "tha", "lo", "lao", "km", "khm", "my", "mya"), "char"),
}
# What a script without spaces, or Hangul, looks like: the language and its characters, by code.
_SCRIPTS = {
    "ja": ("Japanese", "\u3040-\u30ff"),  # kana; the Chinese characters between them are added
    "zh": ("Chinese", "\u3400-\u9fff"),
    "ko": ("Korean", "\uac00-\ud7a3"),
    "th": ("Thai", "\u0e00-\u0e7f"),
    "lo": ("Lao", "\u0e80-\u0eff"),
    "km": ("Khmer", "\u1780-\u17ff"),
    "my": ("Burmese", "\u1000-\u109f"),
}
# What a tokenizer needs: module, and the extra of sacreBLEU that installs it.
NEEDS = {"ja-mecab": ("MeCab", "ja"), "ko-mecab": ("mecab_ko", "ko")}
# Korean has spaces, so 13a is the closer substitute; Japanese has none.
SUBSTITUTES = {"ja-mecab": "char", "ko-mecab": DEFAULT}


def choose_tokenizer(
    tgt_lang: str, choice: str = "auto", say: Callable[[str], None] = lambda _: None,
    option: str = "train.bleu_tokenize", recorded: str = "",
) -> str:  # fmt: skip
    """The BLEU tokenizer for a target language: `choice`, or for `auto` the one that fits it.

    `say` reports a substitute of one that is not installed, and that the substitute of earlier
    scores, `recorded`, stays. Raises ConfigError if `choice`, which `option` names, is unknown or
    not installed.
    """
    check_tokenizer(choice, option)
    if choice != "auto":
        return choice
    fitting = fitting_tokenizer(tgt_lang)
    substitute = SUBSTITUTES.get(fitting, fitting)
    if not _is_installed(fitting):
        say(
            f"BLEU of {tgt_lang} uses the tokenizer {substitute}, because {fitting} is not "
            f"installed (pip install 'sacrebleu[{NEEDS[fitting][1]}]'); scores with different "
            "tokenizers cannot be compared"
        )
        return substitute
    if recorded == substitute != fitting:
        say(
            f"BLEU keeps the tokenizer {substitute} of the scores so far, although {fitting} is "
            f"installed now; {option}: {fitting} would score again with that"
        )
        return substitute
    return fitting


def check_tokenizer(choice: str, option: str) -> None:
    """Raise ConfigError if the value of `option` is no tokenizer, or one that is not installed."""
    if choice != "auto" and choice not in TOKENIZERS:
        raise ConfigError(f"{option}: must be auto, {', '.join(TOKENIZERS)}, found {choice!r}")
    if not _is_installed(choice):
        raise ConfigError(
            f"{option}: {choice} is not installed; pip install 'sacrebleu[{NEEDS[choice][1]}]', or "
            "use char"
        )


def tokenizer_of(signature: str) -> str:
    """The BLEU tokenizer that a signature names, without a version that follows it."""
    match = re.search(r"\btok:([\w-]+?)(?:-\d[^|]*)?(?:\||$)", signature)
    return match[1] if match else DEFAULT


def fitting_tokenizer(tgt_lang: str) -> str:
    """The BLEU tokenizer that fits a language, installed or not; 13a for an unknown one."""
    # de-AT, zh_Hans, jpn_Jpan
    return BY_LANGUAGE.get(re.split("[-_.@]", tgt_lang.lower())[0], DEFAULT)


def splits_characters(tgt_lang: str) -> bool:
    """Whether TER of a language takes sacreBLEU's asian support and normalisation."""
    return fitting_tokenizer(tgt_lang) in ("ja-mecab", "zh")


def looks_like(lines: Iterable[str]) -> tuple[str, str]:
    """The language above in whose script most of a text is written, and its code; else empty."""
    text = "".join("".join(lines).split())
    counts = {code: len(re.findall(f"[{script}]", text)) for code, (_, script) in _SCRIPTS.items()}
    if 10 * counts["ja"] > counts["zh"]:  # Chinese quotes a little kana at most
        counts["ja"] += counts.pop("zh")
    most = max(counts, key=lambda code: counts[code])
    return (_SCRIPTS[most][0], most) if 2 * counts[most] > len(text) else ("", "")


def _is_installed(tokenizer: str) -> bool:
    return tokenizer not in NEEDS or find_spec(NEEDS[tokenizer][0]) is not None
