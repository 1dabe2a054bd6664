"""Skip lists of torch-xpu-ops: a Python file with `skip_dict = {"test_x_xpu.py": ("test_y", …) or None}`.

The file is parsed, never executed. As pytest's `-k` takes the names there, each matches every test whose name contains it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from accel_ci.errors import ConfigError
from accel_ci.scope.importers.imported import DeviceNames, Imported

_WHOLE_FILE = ".py::"


def read_skip_list(text: str, device: DeviceNames, reason: str) -> Imported:
    """Read a skip list as rules that put its tests out of scope. Raises `ConfigError` for something else."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"not Python: {error}") from None
    constants = dict(_constants(tree))
    table = next((each.value for each in _assignments(tree) if isinstance(each.value, ast.Dict)), None)
    if table is None:
        raise ConfigError("not a skip list: it assigns no dictionary, such as skip_dict = {'test_x.py': ('test_y',)}")
    rules: list[dict[str, object]] = []
    left_out: list[str] = []
    entries = 0
    for key, value in zip(table.keys, table.values, strict=True):
        file, names = _text(key, constants), _names(value)
        if file is None or names is None:
            left_out.append(f"line {value.lineno}: {ast.unparse(key) if key else '**'} is no text with a list of names")
            continue
        entries += len(names)
        if not names:
            continue
        pattern = "*" + file.rpartition("../")[2].removeprefix("./").lstrip("/")
        if device.theirs and device.ours:
            pattern = pattern.replace(f"_{device.theirs}.py", ".py")
        methods = [f"*{device.method(name)}*" for name in names if not name.endswith(_WHOLE_FILE)]
        every = len(methods) < len(names)
        rules.append({"files": [pattern], **({} if every else {"methods": methods}), "reason": reason})
    return Imported({"exclude": rules}, entries, tuple(left_out))


def _assignments(tree: ast.Module) -> Iterator[ast.Assign | ast.AnnAssign]:
    return (each for each in tree.body if isinstance(each, (ast.Assign, ast.AnnAssign)))


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names of the file that stand for a text, with that."""
    for each in _assignments(tree):
        targets = each.targets if isinstance(each, ast.Assign) else [each.target]
        if isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, each.value.value


def _text(node: ast.expr | None, constants: Mapping[str, str]) -> str | None:
    """The text of a node; an f-string may hold constants. None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            parts.append(part.value)
        elif isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) and part.value.id in constants:
            parts.append(constants[part.value.id])
        else:
            return None
    return "".join(parts)


def _names(node: ast.expr) -> list[str] | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if value is None:
        return []
    some = [value] if isinstance(value, str) else value
    if not isinstance(some, (list, tuple, set)) or not all(isinstance(each, str) and each for each in some):
        return None
    return list(some)
