"""Config text → plain tree: YAML without its traps, and `--set a.b=value` put into the tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.representer import BaseRepresenter

from mt.errors import ConfigError

_INT, _FLOAT, _TIME = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
_INT_TEXT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$")
_FLOAT_TEXT = re.compile(
    r"[-+]?(?:(?:\d[\d_]*\.[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.inf|\.nan)$"
)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 but for its traps: 1e-4 is a number; 12:30, 010 and dates are text, not numbers."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the form in which PyYAML holds them
        first: [pair for pair in pairs if pair[0] not in (_INT, _FLOAT, _TIME)]
        + ([(_INT, _INT_TEXT), (_FLOAT, _FLOAT_TEXT)] if first in "-+.0123456789" else [])
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """PyYAML would keep the last of two equal keys silently, and read the key `no` as False."""
        mapping: dict[Any, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                problem = "a key must be a word"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in lines:
                self.repeated.append(
                    f"line {line}: {key} must stand once, found it in line {lines[key]} too; take one away"
                )
            lines[key] = line
            mapping[key] = self.construct_object(value_node, deep=deep)
        return mapping


def _as_one_line(dumper: BaseRepresenter, text: Any) -> yaml.Node:
    """Text with a line's end of any kind is escaped: reading would fold it into a space."""
    style = '"' if re.search(r"[\n\r\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would not read as text, and what other readers of YAML would not."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the form in which PyYAML holds them
        first: pairs + _Loader.yaml_implicit_resolvers[first]
        for first, pairs in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    yaml_representers = {  # noqa: RUF012 - as above
        **yaml.SafeDumper.yaml_representers,
        str: _as_one_line,
    }


def dump(tree: dict[str, Any]) -> str:
    """Tree → YAML that `parse` reads back to an equal tree."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def parse(text: str) -> tuple[Any, list[str]]:
    """YAML → (value, faults: keys that stand twice); raises ValueError where it is not YAML."""
    try:
        loader = _Loader(text)
        return _unshared(loader.get_single_data()), loader.repeated
    except yaml.MarkedYAMLError as error:
        mark, reason = error.problem_mark, error.problem or "it cannot be read"
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{place}not valid YAML: {reason}{_yaml_remedy(reason)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(f"line {line}: not valid YAML: a control character; remove it") from None
    except (ValueError, RecursionError):
        raise ValueError("not valid YAML: a number too long or keys too deep") from None


def _unshared(value: Any) -> Any:
    """A copy in which an alias is a copy of its anchor, so that setting one leaves the other."""
    if isinstance(value, dict):
        return {key: _unshared(below) for key, below in value.items()}
    return [_unshared(below) for below in value] if isinstance(value, list) else value


def _yaml_remedy(reason: str) -> str:
    if "'\\t'" in reason:
        return "; indent with spaces, not tabs"
    if "mapping values" in reason:
        return "; check the indentation, and quote a text that holds a colon"
    return "; check this line and the one above it"


def read(path: Path) -> tuple[Any, list[str]]:
    """File → (value, faults: keys that stand twice)."""
    try:
        value, repeated = parse(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = "must be UTF-8 text, found other bytes; save the file as UTF-8"
        raise ConfigError(f"{path}: line {line}: {problem}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return value, [f"{path}: {fault}" for fault in repeated]


def apply(setting: str, tree: dict[str, Any], in_sets: list[str]) -> list[str]:
    """Put `a.b[0].c=value` into the tree and its path into `in_sets`; → faults of the setting."""
    path, equals, text = setting.partition("=")
    steps = [int(i) if i else word for word, i in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)]
    if not equals or not steps or path_of(steps) != path:
        return ["must be section.key=value, such as optim.peak_lr=1e-3"]
    try:
        value, repeated = parse(text)
    except ValueError as error:
        return [str(error)]
    if len(steps) == 1 and (value is None or isinstance(value, dict)):
        return [f"must name one key, found a whole section; write {path}.KEY=value"]
    faults = _put(tree, steps, value, "")
    in_sets += [path] * (not faults)
    return repeated + faults


def _put(tree: Any, steps: Sequence[str | int], value: object, here: str) -> list[str]:
    """Walk down to the last step, making what is not there yet; → a fault if there is no way."""
    step, rest = steps[0], steps[1:]
    node: Any = tree  # stays Any: a mapping or a list, as the step asks for
    if isinstance(step, str) and isinstance(tree, list):
        return [f"{here} is a list; say which entry, such as {here}[0].{step}"]
    if not isinstance(tree, dict if isinstance(step, str) else list):
        return [f"there is nothing below {here}; set {here} itself"]
    if isinstance(step, int):
        if step > len(node):
            return [f"{here} has {len(node)} entries here; set {here}[{len(node)}] or {here}=[...]"]
        node += [None] * (step == len(node))
    if rest:
        child = node[step] if isinstance(step, int) else node.get(step)
        if child is None:
            child = [] if isinstance(rest[0], int) else {}
        if faults := _put(child, rest, value, path_of([here, step]).lstrip(".")):
            return faults
        value = child
    node[step] = value
    return []


def path_of(steps: Sequence[str | int]) -> str:
    """("data", "train", 0, "src") → "data.train[0].src"."""
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).removeprefix(".")


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Paths of all values of a tree; a list is one value unless it holds mappings."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, below in enumerate(value):
            yield from leaves(below, f"{path}[{index}]")
    else:
        yield path


def touched(path: str, in_sets: Sequence[str]) -> bool:
    """Whether a setting named this path, something within it, or something that holds it."""
    return any(_within(path, named) or _within(named, path) for named in in_sets)


def _within(path: str, holder: str) -> bool:
    return path == holder or path.startswith((f"{holder}.", f"{holder}["))
