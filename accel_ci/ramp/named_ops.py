"""Find the ops that the changes of a source file name, by spelling alone: `aten::add.Tensor`, `"mul"`, `void relu_kernel(`.

A changed line names an op itself. It also is in a function or class, and in a file, whose names have the op's as words, or
another line of the file registers that function for an op. Names of aten and those of PyTorch's table of operators are
brought to one form: `add_`, `add.out` and `add_out` are `add`, `aten::linalg_svd` is `linalg.svd`. An op that calls another
one is not found by the other's name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from accel_ci.source.changes import ChangedFile, Line

_QUALIFIERS = ("torch", "_refs", "ops", "aten", "prims", "nn", "functional")
_NAMESPACES = ("linalg", "fft", "special", "masked", "sparse", "signal")
_ENDINGS = ("_", "_out", "_backward", "_backward_data")
_NO_OP_AS_A_WORD = frozenset({
    "t", "to", "all", "any", "item", "std", "bool", "byte", "char", "short", "int", "long", "half", "float", "double",
    "bfloat16", "cfloat", "cdouble", "complex",
})  # fmt: skip
"""Ops whose names mean something else in most code: these are only taken as a whole name."""

_MOST_WORDS = 8  # of an op's name

_NAMED = re.compile(r"""["']([A-Za-z_][\w.:]{0,99})["']|\baten::([\w.]{1,100})|\bops\.aten\.([\w.]{1,100})""")
_LISTED = re.compile(r"\s*-\s+(?:func:\s*)?([\w.]{1,100})(?=[\s(]|$)")  # of torchgen's YAML
_CALLED = re.compile(r"\b(\w{1,100})\s*\(")
_CLASS = re.compile(r"\s*(?:template\b.*>\s*)?(?:class|struct)\s+(\w{1,100})[^;]*$")
_NO_TYPE = re.compile(r"[^\w:<>,*&~\[\]\s]")
_STATEMENTS = frozenset({
    "return", "else", "if", "elif", "while", "for", "switch", "case", "goto", "new", "delete", "throw", "using", "not", "in",
    "and", "or", "is", "await", "yield", "assert", "raise", "import", "print", "with", "except", "del", "co_return",
})  # fmt: skip
_WORD = re.compile(r"\w+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_CLOSING = ("}", ")", "]", "{", "#", "/", "*")


class OpNames:
    """The full names of ops, to look up by how sources spell them."""

    def __init__(self, ops: Iterable[str]) -> None:
        self._forms: defaultdict[str, list[str]] = defaultdict(list)
        self._joined: defaultdict[str, list[str]] = defaultdict(list)
        for op in sorted(set(ops)):
            form = _common_form(op)
            self._forms[form].append(op)
            if form.lower() not in _NO_OP_AS_A_WORD:
                self._joined[form.replace("_", "").lower()].append(op)

    def named(self, name: str) -> Iterator[str]:
        """The ops that a name stands for, with its overload, in place, with an output or as the derivative."""
        form = _common_form(name.rpartition("::")[2])
        forms = {form, form.removeprefix("native_")}
        forms |= {each.removesuffix(ending) for each in forms for ending in _ENDINGS}
        for each in forms | {each.strip("_") for each in forms}:
            yield from self._forms.get(each, ())

    def within(self, name: str) -> Iterator[str]:
        """The ops whose names are words of a name, such as `BatchNormKernels`: of overlapping ones, the longest."""
        words = [word for word in _HUMP.sub("_", name).lower().split("_") if word]
        first = 0
        while first < len(words):
            ends = range(min(len(words), first + _MOST_WORDS), first, -1)
            end = next((end for end in ends if "".join(words[first:end]) in self._joined), None)
            if end is not None:
                yield from self._joined["".join(words[first:end])]
            first = first + 1 if end is None else end


def named_ops(file: ChangedFile, ops: OpNames) -> set[str]:
    """Return the ops that the changes of a file name."""
    lines = file.lines
    found = set(ops.within(file.path.rpartition("/")[2].partition(".")[0]))
    owners: set[int] = set()
    for line, around in zip(lines, _owners(lines), strict=True):
        if line.changed and line.text.strip():
            found.update(_ops_on(line.text, ops))
            owners.update(around)
    functions = set()
    for place in owners:
        text = lines[place].text
        name, is_macro = _function_on(text) or (_class_on(text), False)
        for each in _WORD.findall(text) if is_macro else [name]:
            found.update(ops.named(each or ""), ops.within(each or ""))
        functions.update([] if is_macro else [name])
        for above in _decorators(lines, place):
            found.update(_ops_on(above, ops))
    return found | set(_registered(lines, functions, ops))


def _registered(lines: Sequence[Line], functions: set[str | None], ops: OpNames) -> Iterator[str]:
    """The ops on lines that name one of the functions; a statement may go on in the next line."""
    for line, following in zip(lines, [*lines[1:], Line("", changed=False)], strict=False):
        if not _NAMED.search(line.text):
            continue
        text = f"{line.text} {following.text}" if line.text.rstrip().endswith((",", "(")) else line.text
        if not functions.isdisjoint(_WORD.findall(text)):
            yield from _ops_on(line.text, ops)


def _ops_on(text: str, ops: OpNames) -> Iterator[str]:
    for match in _NAMED.finditer(text):
        yield from ops.named(match[1] or match[2] or match[3])
    if (listed := _LISTED.match(text)) is not None:
        yield from ops.named(listed[1])


def _common_form(name: str) -> str:
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _QUALIFIERS:
        parts = parts[1:]
    return "_".join(parts[:2]) if parts[0] in _NAMESPACES else parts[0]


def _owners(lines: Iterable[Line]) -> Iterator[tuple[int, ...]]:
    """For each line, those where the functions and classes that it is in begin, by indentation."""
    around: list[tuple[int, tuple[int, ...]]] = []  # the lines that the current one is below, by their depth
    for place, line in enumerate(lines):
        text = line.text.lstrip()
        if text and not text.startswith(_CLOSING):
            depth = len(line.text) - len(text)
            while around and around[-1][0] >= depth:
                around.pop()
            outer = around[-1][1] if around else ()
            begins = _function_on(line.text) is not None or _class_on(line.text) is not None
            around.append((depth, (*outer, place) if begins else outer))
        yield around[-1][1] if around else ()


def _function_on(text: str) -> tuple[str, bool] | None:
    """The name of the function whose definition begins on a line, after `def` or a type; true if it may be a macro's."""
    match = _CALLED.search(text)
    if match is None or text.rstrip().endswith(";"):
        return None
    before = text[: match.start()]
    words = before.split()
    if words[:1] == ["def"] or words[:2] == ["async", "def"]:
        return match[1], False
    if not words:
        return None if before else (match[1], True)
    is_type = before[-1] in " *&:\t" and not _NO_TYPE.search(before) and _STATEMENTS.isdisjoint(words)
    return (match[1], False) if is_type else None


def _class_on(text: str) -> str | None:
    match = _CLASS.match(text)
    return match[1] if match is not None else None


def _decorators(lines: Sequence[Line], start: int) -> Iterator[str]:
    """The lines right above a function that belong to it, such as `@impl(library, "add.Tensor")`."""
    for at in range(start - 1, max(-1, start - 20), -1):
        text = lines[at].text.strip()
        if not text.startswith("@"):
            return
        yield text
