"""The facts of collected tests: class, method, op, dtypes, device type, module, marks and decorators.

They are read from pytest's and PyTorch's own objects, never guessed from names. A test that PyTorch has instantiated holds
its parameters as the default of `param_kwargs`: the OpInfo, ModuleInfo, dtype and device. Its decorators are in its chain of
wrapped functions and in what these close over. PyTorch is not imported here. Objects of tests may be odd: what cannot be
read is no fact, and values are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

COLUMNS = ("class_name", "method", "op", "dtypes", "device", "module", "markers", "decorators")

_DEEPEST = 64  # functions that wrap one another
_MOST = 256  # values of one list
_LONGEST = 1024  # characters of one value
_MAKES_TESTS = "_parametrize_test"  # the method of `ops`, `modules` and `parametrize`, which wraps a test for each value
_INNER = ("fn", "func", "f", "function", "test", "test_fn", "wrapped")  # of a decorator that does not name what it wraps


def facts_of(items: Iterable[Any]) -> dict[str, dict[str, list[Any]]]:
    """Return the facts of pytest's items by column: the distinct `values`, and `of` each item the index of its value or -1.

    Only columns with a value are there. `dtypes`, `markers` and `decorators` have lists as values.
    """
    reader = _Reader()
    columns: dict[str, dict[Any, int]] = {column: {} for column in COLUMNS}
    places: dict[str, list[int]] = {column: [] for column in COLUMNS}
    pairs = [(columns[column], places[column]) for column in COLUMNS]
    for item in items:
        facts = _read(reader.facts, item, default=(None,) * len(COLUMNS))
        for (known, of), value in zip(pairs, facts):  # noqa: B905 - not in Python 3.9
            of.append(known.setdefault(value, len(known)) if value else -1)
    return {column: {"values": list(values), "of": places[column]} for column, values in columns.items() if values}


def _read(read: Callable[..., Any], *arguments: Any, default: Any = None) -> Any:
    """Return what `read` returns for the arguments, and the default where an object of a test raises something instead."""
    try:
        return read(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException:  # pytest's own outcomes, such as a skip, are no `Exception`
        return default


class _Once:
    """Reads each object once, however many tests have it."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, int], tuple[Any, Any]] = {}

    def __call__(self, read: Callable[[Any], Any], value: Any) -> Any:
        """Return what `read` returns for an object, which is kept: so no other one gets its number."""
        if value is None:
            return None
        found = self._known.get((read, id(value)))
        if found is None:
            found = self._known[read, id(value)] = value, _read(read, value)
        return found[1]


class _Reader:
    """Reads the facts of items, and each object that several have in common once."""

    def __init__(self) -> None:
        self._once = _Once()
        self._decorators = _Decorators(self._once)

    def facts(self, item: Any) -> tuple[Any, ...]:
        """Return the facts of an item, in the order of `COLUMNS`."""
        cls = getattr(item, "cls", None)
        function = _function(item, cls)
        instantiated = _parameters(function)
        callspec = getattr(item, "callspec", None)
        given = {**(callspec.params if callspec is not None else {}), **(instantiated or {})}
        original = _original_name(function, item.name) if instantiated is not None else getattr(item, "originalname", None)
        marks = {*(self._once(_marks_of_node, item.parent) or ()), *(mark.name for mark in item.own_markers)}
        if given.get("training") is True:
            marks.add("training")
        return (
            self._once(_class_name, cls),
            _text(original) or _text(item.name),
            self._once(_op, given.get("op")),
            _read(self._dtypes, given, default=()),
            _read(_device, given, cls),
            self._once(_module, given.get("module_info")),
            _sorted(marks) if marks else (),
            _read(self._decorators.of, function, cls, default=()),
        )

    def _dtypes(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        some = given.get("dtypes", given.get("dtype"))
        some = some if isinstance(some, (tuple, list)) else (some,)
        names = [self._once(_dtype, each) for each in some[:_MOST]]
        return tuple(dict.fromkeys(name for name in names if name))


def _marks_of_node(node: Any) -> tuple[str, ...]:
    """Return the names of the marks that all tests below a node have, such as those of their class or file."""
    return tuple(dict.fromkeys(mark.name for mark in node.iter_markers()))


def _function(item: Any, cls: Any) -> Any:
    """Return a test's function as its class has it: PyTorch's `TestCase` wraps those of its instances once more."""
    name = getattr(item, "originalname", None) or item.name
    for each in cls.__mro__ if isinstance(cls, type) else ():
        if name in each.__dict__:
            function = each.__dict__[name]
            return getattr(function, "__func__", function)
    return getattr(item, "obj", None) if cls is None else None


def _parameters(function: Any) -> Mapping[str, Any] | None:
    """Return the default of a function's own `param_kwargs`; `inspect.signature` would take a hundred times as long."""
    if not isinstance(function, FunctionType):
        return None
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    if "param_kwargs" not in names:
        return None
    place = names.index("param_kwargs") - len(names)
    value = defaults[place] if -place <= len(defaults) else None
    return value if isinstance(value, dict) else None


def _original_name(function: FunctionType, name: str) -> str | None:
    """Return the name of the test that an instantiated one was made of, with which its own name begins."""
    return next((each.__name__ for each in _chain(function) if name.startswith(each.__name__)), None)


def _class_name(cls: Any) -> str | None:
    """Return a class's name: of one that PyTorch made for a device type, that of the class in the file.

    Such a class has that one, or an empty `<name>_base` of it, among its bases, beside the test base of the device type.
    """
    if not isinstance(cls, type):
        return None
    if isinstance(getattr(cls, "device_type", None), str):
        for base in cls.__bases__:
            name = base.__name__[: -len("_base")] if base.__name__.endswith("_base") else base.__name__
            made = cls.__name__.startswith(name) and cls.__name__[len(name) :].isupper()
            if made and not isinstance(getattr(base, "device_type", None), str):
                return _text(name)
    return _text(cls.__name__)


def _op(op: Any) -> str | None:
    if op is None or isinstance(op, str):
        return _text(op)
    return _text(getattr(op, "full_name", None)) or _text(getattr(op, "name", None))


def _module(info: Any) -> str | None:
    return _text(info) if info is None or isinstance(info, str) else _text(getattr(info, "name", None))


def _dtype(value: Any) -> str | None:
    if isinstance(value, str):
        return _text(value.rpartition(".")[2])
    return _text(str(value).rpartition(".")[2]) if type(value).__name__ == "dtype" else None


def _device(given: Mapping[str, Any], cls: Any) -> str | None:
    device = given.get("device", given.get("devices"))
    if isinstance(device, (tuple, list)):
        device = device[0] if device else None
    if not isinstance(device, str):
        device = getattr(device, "type", None) or getattr(cls, "device_type", None)
    return _text(device.partition(":")[0]) if isinstance(device, str) else None


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return value if len(value) <= _LONGEST and value.isascii() else value[:_LONGEST].encode("utf-8", "replace").decode()


def _sorted(names: Iterable[Any]) -> tuple[str, ...]:
    return tuple(sorted(text for name in names if (text := _text(name))))[:_MOST]


_ATTRIBUTES = (
    ("__unittest_expecting_failure__", "expectedFailure"),
    ("__unittest_skip__", "skip"),
    ("num_required_devices", "deviceCountAtLeast"),
)
"""The marks of decorators that do not wrap a function."""


class _Decorators:
    """The names of tests' decorators, with what was found out of each function's code."""

    def __init__(self, once: _Once) -> None:
        self._once = once
        self._sorted: dict[frozenset[str], tuple[str, ...]] = {}
        self._names: dict[CodeType, str | None] = {}
        self._homes: dict[int, dict[CodeType, str]] = {}

    def of(self, function: Any, cls: Any) -> tuple[str, ...]:
        """Return the names of the decorators of a test, and of unittest's that skip or excuse its class."""
        wrappers = (each for each in _chain(function) if each is not function or _parameters(function) is None)
        found = {name for each in wrappers if (name := self._name(each))}
        for attribute, name in _ATTRIBUTES:
            if getattr(function, attribute, False) or getattr(cls, attribute, False):
                found.add(name)
        names = frozenset(found)
        if names not in self._sorted:
            self._sorted[names] = _sorted(names)
        return self._sorted[names]

    def _name(self, function: FunctionType) -> str | None:
        """Return the name of the decorator that made a function, None for a test's own."""
        code = function.__code__
        if "self" in code.co_freevars:
            return self._once(_name_of_instance, _cell(function, "self"))  # type: ignore[no-any-return]
        if code not in self._names:
            self._names[code] = _decorator_in(getattr(code, "co_qualname", None) or self._qualname(function))
        return self._names[code]

    def _qualname(self, function: FunctionType) -> str:
        """Return the qualified name of a function's code, which Python 3.10 does not keep and a decorator hides."""
        module = function.__globals__
        if id(module) not in self._homes:
            makers = [each for each in module.values() if isinstance(each, FunctionType)]
            self._homes[id(module)] = {
                code: f"{maker.__name__}.<locals>.{code.co_name}" for maker in makers for code in _codes_in(maker.__code__)
            }
        return self._homes[id(module)].get(function.__code__, "")


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the codes of the functions that are defined in a function."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)


def _chain(function: Any) -> Iterator[FunctionType]:
    """Yield a function and those that it wraps, from the outermost to the innermost."""
    for _ in range(_DEEPEST):
        if not isinstance(function, FunctionType):
            return
        yield function
        wrapped = function.__dict__.get("__wrapped__")
        if wrapped is None and function.__closure__:
            inside = (_cell(function, name) for name in _INNER)
            wrapped = next((inner for inner in inside if isinstance(inner, FunctionType)), None)
        function = wrapped


def _cell(function: FunctionType, name: str) -> Any:
    """Return what a function closes over under a name, None where it does not."""
    names = function.__code__.co_freevars
    if name not in names:
        return None
    try:
        return (function.__closure__ or ())[names.index(name)].cell_contents
    except (ValueError, IndexError):  # it is empty
        return None


def _name_of_instance(decorator: Any) -> str | None:
    """Return the name of a decorator that is an object, such as an `onlyOn("cuda")`: `onlyCUDA`, as PyTorch spells it."""
    name, device = type(decorator).__name__, getattr(decorator, "device_type", None)
    if name == "onlyOn" and isinstance(device, str):
        return _text(f"only{device.upper()}")
    if name == "onlyOn" and isinstance(device, (list, tuple)):
        return _text(f"onlyOn({','.join(str(each) for each in device[:_MOST])})")
    return None if name.startswith("_") or name in ("ops", "modules", "parametrize") else _text(name)


def _decorator_in(qualname: str) -> str | None:
    """Return the decorator in the qualified name of a function that it made: `onlyCPU.<locals>.only_fn`."""
    maker, inside, _ = qualname.partition(".<locals>")
    maker = maker[: -len(".__call__")] if maker.endswith(".__call__") else maker
    return _text(maker.rpartition(".")[2]) if inside and not maker.endswith(_MAKES_TESTS) else None
