"""Lines of difficult characters: controls, spaces of all widths, emoji, markup."""

from __future__ import annotations

import random

# Characters that lines are made of, by the trouble they make.
CONTROLS = [chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)] if code != 10]
LINE_ENDS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e", "\r", "\r\r", "\t", "\x00"]
SPACES = [" ", "  ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u202f", "\u1680"]
ASTRAL = ["😀", "👩‍👩‍👧", "🇩🇪", "👍🏽", "❤️", "𝔘", "𐍈"]
RIGHT_TO_LEFT = ["שלום", "مرحبا", "\u202e", "\u2067", "\u200f", "\u061c"]
UNNORMALISED = [
    "\ufeff", "\ufffe", "\uffff", "\U0010ffff", "\ue000", "\u0301", "\u0308\u0323", "e\u0301",
    "ﬁ", "½", "Å", "한",
]  # fmt: skip
MARKUP = [
    "▁", "</s>", "<s>", "<unk>", "<pad>", "<0x0A>", " ||| ", "\\n", "%s", "{}", "'", '"', "`",
    "$(x)",
]  # fmt: skip
SCRIPTS = ["你好。", "日本語、", "ไทย", "हिन्दी", "e", "ß", "ĳ"]
PLAIN = ["eins", "zwei ", "drei, ", "vier. ", "0", "12", "-", "--"]
POOLS = [
    CONTROLS, LINE_ENDS, SPACES, ASTRAL, RIGHT_TO_LEFT, UNNORMALISED, MARKUP, SCRIPTS, PLAIN,
]  # fmt: skip


def odd_lines(count: int) -> list[str]:
    """Random lines of difficult characters, always the same; every tenth is blank, some long."""
    draw = random.Random(1)
    lines = []
    for number in range(count):
        if number % 10 == 3:
            lines.append(
                "".join(draw.choices([*SPACES[:5], "\t", "\x85", "\u2028"], k=draw.randint(0, 4)))
            )
            continue
        pools = draw.sample(POOLS, draw.randint(1, 4))
        length = 150 if number % 60 == 17 else draw.randint(1, 12)
        lines.append("".join(draw.choice(draw.choice(pools)) for _ in range(length)))
    return [line.removesuffix("\r") for line in lines]
