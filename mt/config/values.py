"""Types of the values in a config: numbers with limits, switches, names of files and columns."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, WithJsonSchema


def _integral(value: object) -> object:
    """Read 4000.0, 1e5 and 4_000, which YAML 1.2 takes for text, as integers.

    Other values are left to validation.
    """
    if isinstance(value, str) and re.fullmatch(r"\d{1,3}(_\d{3})+", value):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _boolean(value: object) -> object:
    """Read the words for true and false that only YAML 1.1 has: yes, no, on, off."""
    words = {"yes": True, "on": True, "no": False, "off": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def _or_auto(number: Any) -> BeforeValidator:
    """Accept `auto`, and what `number` does, with its errors instead of those of a union."""
    check = TypeAdapter(number).validate_python
    return BeforeValidator(lambda value: value if value == "auto" else check(value))


def _name_or_count(value: object) -> object:
    """Check a number as a number and the rest as text, for the errors of one of them."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return TypeAdapter(Count if is_number else Text).validate_python(value)


# Upper limits refuse typing errors, such as a zero too many, before memory runs out.
Count = Annotated[int, Field(strict=True, ge=1, le=10**12), BeforeValidator(_integral)]
Width = Annotated[int, Field(strict=True, ge=1, le=2**17), BeforeValidator(_integral)]
Few = Annotated[int, Field(strict=True, ge=1, le=1000), BeforeValidator(_integral)]
# Fewer repeated words are not told apart.
Repeats = Annotated[int, Field(strict=True, ge=2, le=10**6), BeforeValidator(_integral)]
Length = Annotated[int, Field(strict=True, ge=1, le=10**6), BeforeValidator(_integral)]
Vocabulary = Annotated[int, Field(strict=True, ge=1, le=10**7), BeforeValidator(_integral)]
Natural = Annotated[int, Field(strict=True, ge=0), BeforeValidator(_integral)]
Seed = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1), BeforeValidator(_integral)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
LearningRate = Annotated[float, Field(strict=True, gt=0, le=10, allow_inf_nan=False)]
Coefficient = Annotated[float, Field(strict=True, ge=0, le=1000, allow_inf_nan=False)]
# A length raised to a higher power may overflow a float.
Penalty = Annotated[float, Field(strict=True, ge=0, le=100, allow_inf_nan=False)]
Ratio = Annotated[float, Field(strict=True, ge=1, le=1000, allow_inf_nan=False)]
# The range that SentencePiece takes.
Coverage = Annotated[float, Field(strict=True, ge=0.98, le=1, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]
UpToOne = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Portion = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(strict=True, gt=0, lt=1, allow_inf_nan=False)]
Text = Annotated[str, Field(strict=True, min_length=1)]
DirectionCode = Annotated[str, Field(strict=True, pattern=r"^[^\s-]+-[^\s-]+$")]
Flag = Annotated[bool, Field(strict=True), BeforeValidator(_boolean)]
CountOrAuto = Annotated[Count | Literal["auto"] | None, _or_auto(Count | None)]
VocabularyOrAuto = Annotated[Vocabulary | Literal["auto"], _or_auto(Vocabulary)]
ShareOrAuto = Annotated[Share | Literal["auto"], _or_auto(Share)]
PositiveOrAuto = Annotated[Positive | Literal["auto"] | None, _or_auto(Positive | None)]
NameOrCount = Annotated[Text | Count, BeforeValidator(_name_or_count)]
FlagOrAuto = Annotated[Flag | Literal["auto"], _or_auto(Flag)]


def _column_number(value: object) -> object:
    """Accept 2 for the second column; True is not a column number."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return str(value) if is_number else value


def _tab(value: object) -> object:
    r"""Accept a backslash and t, which a shell or YAML without quotes leaves as they are."""
    return "\t" if value == r"\t" else value


FileOrColumn = Annotated[
    Text,
    BeforeValidator(_column_number),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}]}
    ),
]
Delimiter = Annotated[str, Field(strict=True, min_length=1, max_length=1), BeforeValidator(_tab)]
