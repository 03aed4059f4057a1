"""A job file and its `--set` overrides as one tree of YAML nodes, in which every value has its source position.

Knows YAML 1.2; knows nothing of the keys of a job file. The nodes of an override have its text as their file name, so
that problems in overrides and in the file are located in the same way.
"""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from batchgen.errors import SpecError

Key = tuple[str | int, ...]  # ("sampling", "stop", 0) is written sampling.stop[0]

_STR, _MAP = "tag:yaml.org,2002:str", "tag:yaml.org,2002:map"
# Unquoted scalars resolve to one of these types; everything else, dates too, is text.
_TYPED = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")}

# Part of the parser's message -> what to do.
_HINTS = {
    "found another document": "a job file holds one document; remove the --- and what follows it",
    "'\\t'": "this is a tab; YAML is indented with spaces",
    "undefined alias": "text that starts with * needs quotes",
    "mapping values are not allowed": "text with ': ' in it needs quotes; keys of a section start in one column",
    "cannot start any token": "text that starts with this character needs quotes",
}


class SourcePosition(NamedTuple):
    """Where a value was written. Sorts the file by line, then the overrides."""

    is_override: bool
    line: int  # from 1
    name: str  # the file as it was given, or "--set key=value"

    def __str__(self) -> str:
        return self.name if self.is_override else f"{self.name}:{self.line}"


class Problem(NamedTuple):
    """One line of a SpecError."""

    where: SourcePosition
    key: Key
    what: str  # what is wrong and what to do

    def __str__(self) -> str:
        return f"{self.where}: {dotted(self.key)}: {self.what}" if self.key else f"{self.where}: {self.what}"


class Found(NamedTuple):
    """The position of the deepest existing part of a key, and the node if the whole key exists."""

    where: SourcePosition
    node: Node | None


class _Entry(NamedTuple):
    name: Node
    value: Node


class PlainValues(NamedTuple):
    """The values of a document without their positions."""

    values: dict[str, Any]
    problems: list[Problem]


def dotted(key: Key) -> str:
    """Return the key as a user writes it."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def read_document(path: Path) -> MappingNode:
    """Return the nodes of a job file. Raises SpecError if it is missing, not UTF-8, not YAML or not a mapping."""
    text = _read_text(path)
    directive = re.search(r"^%", text, re.MULTILINE)
    if directive:
        raise SpecError([f"{path}:{_line(text, directive.start())}: remove this % line; a job file is always YAML 1.2"])
    root = _compose(text, str(path))
    if root is None:
        raise SpecError([f"{path}: the file is empty; a job needs at least the sections model, input and output"])
    if not isinstance(root, MappingNode):
        raise SpecError([f"{_position_of(root)}: expected sections (model:, input:, output:), got {quoted(root)}"])
    return root


def set_override(root: MappingNode, override: str) -> None:
    """Add `key=value` to the document (mutates `root`). Raises SpecError if it does not have that form."""
    name, is_pair, text = override.partition("=")
    where = f"--set {override}"
    parts = name.strip().split(".")
    if not is_pair or not all(parts):
        raise SpecError([f"{where}: expected key=value, for example --set sampling.seed=1"])
    node = _compose(text.strip() or "null", where)
    if node is None or node.end_mark.index < len(text.strip()):
        raise SpecError([f"{where}: a # after a space starts a comment in YAML; put the value in quotes"])
    if isinstance(node, MappingNode):
        raise SpecError([f"{where}: expected one value or a list; text with {{ or ': ' in it needs quotes"])
    for part in parts[:-1]:
        section = _entry(root, part)
        inner = section.value if section else None
        if not isinstance(inner, MappingNode):
            inner = MappingNode(_MAP, [], node.start_mark, node.end_mark)
            _append(root, part, inner)
        root = inner
    _append(root, parts[-1], node)


def to_plain(root: MappingNode) -> PlainValues:
    """Return the values, overrides applied; repeated keys, tags, cycles and non-text keys are problems."""
    builder = _Builder()
    return PlainValues(builder.build(root, ()), builder.problems)


def find(root: MappingNode, key: Key) -> Found:
    """Follow `key` as far as it exists."""
    node: Node = root
    where = _position_of(root)
    for part in key:
        if isinstance(part, int):
            if isinstance(node, SequenceNode):  # otherwise one text represents a list of one
                node = node.value[part]
                where = _position_of(node)
            continue
        entry = _entry(node, part) if isinstance(node, MappingNode) else None
        if entry is None:
            return Found(where, None)
        # The key's position, not the value's: a section's first value is on a later line.
        where, node = _position_of(entry.name), entry.value
    return Found(where, node)


def quoted(node: Node) -> str:
    """Return a value as the user wrote it, shortened, for messages."""
    if isinstance(node, MappingNode):
        return "a section"
    if isinstance(node, SequenceNode):
        return "a list" if node.value else "an empty list"
    assert isinstance(node, ScalarNode)
    text = node.value if len(node.value) <= 60 else f"{node.value[:60]}…"
    text = text.replace("\n", "\\n").encode(errors="backslashreplace").decode()
    quote = {None: "", "'": "'"}.get(node.style, '"')
    return f"{quote}{text}{quote}" or "nothing"


class _Builder:
    """Converts nodes to plain values and collects problems."""

    def __init__(self) -> None:
        yaml = YAML(typ="safe", pure=True)
        self.problems: list[Problem] = []
        self._resolver, self._constructor = yaml.resolver, yaml.constructor
        self._built: dict[int, Any] = {}  # node id -> value, so that an anchor used many times is built once
        self._open: set[int] = set()  # ids of the nodes that contain the one being built

    def build(self, node: Node, key: Key) -> Any:
        if id(node) in self._open:
            self._add_problem(node, key, f"the anchor &{node.anchor} contains itself; write the value out")
            return None
        if id(node) not in self._built:
            self._open.add(id(node))
            self._built[id(node)] = self._value(node, key)
            self._open.remove(id(node))
        return self._built[id(node)]

    def _value(self, node: Node, key: Key) -> Any:
        is_plain = getattr(node, "style", None) is None
        # The tag that the value would have if none were written.
        tag = self._resolver.resolve(type(node), node.value, (is_plain, not is_plain))
        if str(tag) != node.tag:
            self._add_problem(node, key, f"the tag {_short_tag(node)} is not allowed; write a plain value")
        if isinstance(node, MappingNode):
            return self._mapping(node, key)
        if isinstance(node, SequenceNode):
            return [self.build(item, (*key, i)) for i, item in enumerate(node.value)]
        return self._scalar(node, str(tag), key)

    def _mapping(self, node: MappingNode, key: Key) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for name, value in node.value:
            where = _position_of(name)
            if not isinstance(name, ScalarNode):
                self._add_problem(name, key, "expected a key that is text; text that starts with { or [ needs quotes")
                continue
            inner = (*key, name.value)
            if name.value in lines and not where.is_override:
                what = f"given twice, on lines {lines[name.value]} and {where.line}; keep one"
                self.problems.append(Problem(where, inner, what))
            lines.setdefault(name.value, where.line)
            values[name.value] = self.build(value, inner)
        return values

    def _scalar(self, node: Node, tag: str, key: Key) -> Any:
        if tag not in _TYPED:
            return node.value
        try:
            return self._constructor.construct_object(ScalarNode(tag, node.value, node.start_mark, node.end_mark))
        except ValueError:  # thousands of digits, or just ._
            self._add_problem(
                node, key, f"{quoted(node)} cannot be read as a number; text that looks like one needs quotes"
            )
            return None

    def _add_problem(self, node: Node, key: Key, what: str) -> None:
        self.problems.append(Problem(_position_of(node), key, what))


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SpecError(
            [f"{path}:{line}: not UTF-8 text (byte 0x{error.object[error.start]:02x}); save it as UTF-8"]
        ) from None
    except IsADirectoryError:
        raise SpecError([f"{path}: is a folder; give a job file, for example {path / 'job.yaml'}"]) from None
    except FileNotFoundError:
        raise SpecError([f"{path}: no such job file"]) from None
    except OSError as error:
        raise SpecError([f"{path}: cannot be read: {error.strerror}"]) from None


def _compose(text: str, name: str) -> Node | None:
    stream = StringIO(text)
    stream.name = name  # the parser copies it to every mark
    try:
        root: Node | None = YAML(typ="safe", pure=True).compose(stream)
    except MarkedYAMLError as error:
        raise SpecError([_syntax_problem(error)]) from None
    except ReaderError as error:
        where = SourcePosition(name.startswith("--set "), _line(text, text.index(chr(error.character))), name)
        raise SpecError([f"{where}: the character U+{error.character:04X} is not allowed in YAML; remove it"]) from None
    except RecursionError:
        raise SpecError([f"{name}: nested too deeply for a job file"]) from None
    return root


def _syntax_problem(error: MarkedYAMLError) -> str:
    context = f" ({error.context})" if error.context else ""
    hint = next((f"; {hint}" for part, hint in _HINTS.items() if part in error.problem), "")
    return f"{_position_of_mark(error.problem_mark)}: not valid YAML: {error.problem}{context}{hint}"


def _entry(mapping: MappingNode, name: str) -> _Entry | None:
    """Return the last entry of that name: an override is appended after what it overrides."""
    return next((_Entry(*entry) for entry in reversed(mapping.value) if entry[0].value == name), None)


def _append(mapping: MappingNode, name: str, node: Node) -> None:
    mapping.value.append((ScalarNode(_STR, name, node.start_mark, node.end_mark), node))


def _short_tag(node: Node) -> str:
    return str(node.tag).replace("tag:yaml.org,2002:", "!!")


def _position_of(node: Node) -> SourcePosition:
    return _position_of_mark(node.start_mark)


def _position_of_mark(mark: Any) -> SourcePosition:
    return SourcePosition(mark.name.startswith("--set "), mark.line + 1, mark.name)


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
