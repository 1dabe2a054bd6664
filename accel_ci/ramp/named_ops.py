"""Find the ops that changed lines of a source file name, by spelling alone: `aten::add.Tensor`, `"mul"`, `def relu(`.

A changed line names an op itself, or it is in a function that has an op's name or that another line of the file registers
for an op. Names that are aten's and those of PyTorch's table of operators are brought to one form: `add_`, `add.out` and
`add_out` are `add`, `aten::linalg_svd` is `linalg.svd`. An op that PyTorch makes of others is not found by their names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from accel_ci.source.changes import Line

OpIndex: TypeAlias = Mapping[str, Sequence[str]]
"""The ops of a table by the form of their names that they have in common with aten's."""

_QUALIFIERS = ("torch", "_refs", "ops", "aten", "prims", "nn", "functional")
_NAMESPACES = ("linalg", "fft", "special", "masked", "sparse", "signal")
_ENDINGS = ("_", "_out", "_backward", "_backward_data")

_NAMED = re.compile(r"""["']([A-Za-z_][\w.:]{0,99})["']|\baten::([\w.]{1,100})|\bops\.aten\.([\w.]{1,100})""")
_LISTED = re.compile(r"\s*-\s+(?:func:\s*)?([\w.]{1,100})(?=[\s(]|$)")  # of torchgen's YAML
_CALLED = re.compile(r"\b(\w{1,100})\s*\(")
_NO_TYPE = re.compile(r"[^\w:<>,*&~\[\]\s]")
_STATEMENTS = frozenset({
    "return", "else", "if", "elif", "while", "for", "switch", "case", "goto", "new", "delete", "throw", "using", "not", "in",
    "and", "or", "is", "await", "yield", "assert", "raise", "import", "print", "with", "except", "del", "co_return",
})  # fmt: skip
_WORD = re.compile(r"\w+")
_CLOSING = ("}", ")", "]", "{", "#", "/", "*")


def index_ops(ops: Iterable[str]) -> OpIndex:
    """Index the full names of ops."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for op in sorted(set(ops)):
        found[_common_form(op)].append(op)
    return found


def named_ops(lines: Sequence[Line], index: OpIndex) -> set[str]:
    """Return the ops of the index that the changed lines of a file name, or the functions that these lines are in."""
    found: set[str] = set()
    starts: set[int] = set()
    for line, start in zip(lines, _functions_around(lines), strict=True):
        if line.changed and line.text.strip():
            found.update(_ops_on(line.text, index))
            starts.update([] if start is None else [start])
    functions = {function for start in starts if (function := _function_on(lines[start].text)) is not None}
    for function in functions:
        found.update(_ops_of(function, index))
    for above in (text for start in starts for text in _decorators(lines, start)):
        found.update(_ops_on(above, index))
    return found | set(_registered(lines, functions, index))


def _registered(lines: Sequence[Line], functions: set[str], index: OpIndex) -> Iterator[str]:
    """The ops on lines that name one of the functions; a statement may go on in the next line."""
    for line, following in zip(lines, [*lines[1:], Line("", changed=False)], strict=False):
        if not _NAMED.search(line.text):
            continue
        text = f"{line.text} {following.text}" if line.text.rstrip().endswith((",", "(")) else line.text
        if not functions.isdisjoint(_WORD.findall(text)):
            yield from _ops_on(line.text, index)


def _ops_on(text: str, index: OpIndex) -> Iterator[str]:
    for match in _NAMED.finditer(text):
        yield from _ops_of(match[1] or match[2] or match[3], index)
    if (listed := _LISTED.match(text)) is not None:
        yield from _ops_of(listed[1], index)


def _ops_of(name: str, index: OpIndex) -> Iterator[str]:
    """The ops that a name stands for, with its overload, in place, with an output or as the derivative."""
    form = _common_form(name.rpartition("::")[2])
    forms = {form, form.removeprefix("native_")}
    forms |= {each.removesuffix(ending) for each in forms for ending in _ENDINGS}
    for each in forms | {each.strip("_") for each in forms}:
        yield from index.get(each, ())


def _common_form(name: str) -> str:
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _QUALIFIERS:
        parts = parts[1:]
    return "_".join(parts[:2]) if parts[0] in _NAMESPACES else parts[0]


def _functions_around(lines: Iterable[Line]) -> Iterator[int | None]:
    """For each line, the one where its function begins, by indentation; None outside of functions."""
    around: list[tuple[int, int | None]] = []  # the lines that the current one is below, by their depth
    for place, line in enumerate(lines):
        text = line.text.lstrip()
        if text and not text.startswith(_CLOSING):
            depth = len(line.text) - len(text)
            while around and around[-1][0] >= depth:
                around.pop()
            outer = around[-1][1] if around else None
            around.append((depth, place if _function_on(line.text) else outer))
        yield around[-1][1] if around else None


def _function_on(text: str) -> str | None:
    """The name of the function whose definition begins on a line: after `def`, after a type, or at its very beginning."""
    match = _CALLED.search(text)
    if match is None or text.rstrip().endswith(";"):
        return None
    before = text[: match.start()]
    words = before.split()
    if words[:1] == ["def"] or words[:2] == ["async", "def"]:
        return match[1]
    if not words:
        return match[1] if not before else None
    is_type = before[-1] in " *&:\t" and not _NO_TYPE.search(before) and _STATEMENTS.isdisjoint(words)
    return match[1] if is_type else None


def _decorators(lines: Sequence[Line], start: int) -> Iterator[str]:
    """The lines right above a function that belong to it, such as `@impl(library, "add.Tensor")`."""
    for at in range(start - 1, max(-1, start - 20), -1):
        text = lines[at].text.strip()
        if not text.startswith("@"):
            return
        yield text
