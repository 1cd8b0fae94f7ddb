"""Read and write YAML as YAML 1.2 means it.

PyYAML implements YAML 1.1, where an unquoted `no` is false, `010` is eight, `12:30` is 750,
`2026-01-31` is a date, `1e-4` is a string, and the last of two equal keys silently wins.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.representer import BaseRepresenter

from mt.errors import ConfigError, first_line

# Tag, pattern and first characters of unquoted scalars that are not text: YAML 1.2, section 10.3.2,
# without octal and hexadecimal numbers.
_SCALARS = [
    ("null", r"(?:~|null|Null|NULL|)$", [*"~nN", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", [*"tTfF"]),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)$", [*"-+0123456789"]),
    (
        "float",
        r"[-+]?(?:(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.inf|\.nan)$",
        [*"-+.0123456789"],
    ),
]

# What PyYAML's constructors raise, as they do not check what stands behind an explicit tag.
_BEHIND_A_TAG = yaml.YAMLError, ValueError, RecursionError, LookupError, TypeError, AttributeError


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2's scalars, and keys that are text and unique."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - the form that PyYAML reads

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            mark = key_node.start_mark
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConstructorError(None, None, "a key must be a word", mark)
            if (key := key_node.value) in mapping:
                raise ConstructorError(None, None, f"the key {key} is there already", mark)
            mapping[key] = self.construct_object(value_node, deep=deep)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Quotes text that a reader of YAML 1.1 or 1.2 would not read as text."""


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def _represent_text(dumper: BaseRepresenter, text: Any) -> yaml.Node:
    # A reader would fold line ends of every kind into spaces.
    style = '"' if re.search(r"[\n\r\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def dump(tree: dict[str, Any] | list[Any]) -> str:
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9)


def parse(text: str) -> Any:
    """The value that YAML text stands for. Raises ValueError, with the line, if not YAML."""
    try:
        # Through JSON an alias becomes a copy of its anchor, so that a setting changes one place.
        return json.loads(json.dumps(_Loader(text).get_single_data()))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        start, context = error.context_mark, error.context
        context = f" {context} from line {start.line + 1}" if start and context else ""
        tab = "; use spaces, not tabs" * ("'\\t'" in str(error.problem))
        problem = f"{error.problem}{context}{tab}; check this line and the one above it"
        raise ValueError(f"{place}not valid YAML: {problem}") from None
    except _BEHIND_A_TAG as e:
        raise ValueError(f"not valid YAML: {first_line(e)}; write the value otherwise") from None


def read(path: Path) -> Any:
    """The value in a YAML file. Raises ConfigError, with file and line."""
    try:
        return parse(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = "must be UTF-8 text, found other bytes; save the file as UTF-8"
        raise ConfigError(f"{path}: line {line}: {problem}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
