"""Load `accel_ci.yaml` as a project, or report each mistake on a line.

Finding the configuration file, the variant matrix, the checks that need more than one section, and reporting mistakes with
their line numbers belong here. The settings themselves are in `accel_ci.config.settings`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError

from accel_ci.config.executor_settings import KubernetesExecutor
from accel_ci.config.github_settings import strangers_mistakes
from accel_ci.config.pool_settings import Pool
from accel_ci.config.section import Mistake, Section, as_mapping, as_sequence
from accel_ci.config.settings import Project, Settings
from accel_ci.config.stack_settings import Stack
from accel_ci.config.values import COMMIT_PLACE
from accel_ci.errors import ConfigError
from accel_ci.model import BAZEL_SUITE
from accel_ci.secrets import learn_secrets

CONFIG_ENVIRONMENT = "ACCEL_CI_CONFIG"
HOME_ENVIRONMENT = "ACCEL_CI_HOME"
CONFIG_NAME = "accel_ci.yaml"

_Kind = TypeVar("_Kind", bound=Section)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML has it

_MATRIX_KEYS = ("python", "torch", "torch_source", "runtime")
"""The keys of a variant that may be lists. In its name, `{python}` and so on stand for the value."""


def find_config(path: Path | None = None) -> Path:
    """Find the configuration file: `path`, else `$ACCEL_CI_CONFIG`, else `accel_ci.yaml` here or in a parent folder.

    Raises `ConfigError` if there is none.
    """
    if named := path or os.environ.get(CONFIG_ENVIRONMENT):
        if not Path(named).is_file():
            raise ConfigError(f"{named}: there is no such file; `accel-ci init` writes a starter file")
        return Path(named).resolve()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / CONFIG_NAME).is_file():
            return folder / CONFIG_NAME
    raise ConfigError(f"there is no {CONFIG_NAME} in {here} or above it; `accel-ci init` writes a starter file")


def load_project(path: Path | None = None) -> Project:
    """Read and validate the configuration. Raises `ConfigError` with one line for each mistake."""
    config_path = find_config(path)
    text = config_path.read_text(encoding="utf-8", errors="replace")
    learn_secrets(_document(text), folders=(config_path.parent, Path(os.environ.get("DAGSTER_HOME", os.devnull))))
    return Project(parse_settings(text, config_path.name), config_path, data_folder(config_path))


def _document(text: str) -> object:
    """The document of a file for those who only look for secrets in it: its text where it is no YAML."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, AttributeError):
        return text


def data_folder(config_path: Path) -> Path:
    """The data folder of the project of a configuration file: `$ACCEL_CI_HOME`, else `.accel_ci` beside the file."""
    return Path(os.environ.get(HOME_ENVIRONMENT) or config_path.parent / ".accel_ci").absolute()


def parse_settings(text: str, file_name: str = CONFIG_NAME) -> Settings:
    """Validate the text of a configuration file. Raises `ConfigError` with a line `file:line: path: mistake` for each."""
    document, content = _read_mapping(text, file_name, "'backend'; `accel-ci init` writes a starter file")
    variants = list(_expand_matrix(as_sequence(content.get("variants"))))
    if variants:
        content = {**content, "variants": [variant for _, variant in variants]}
    mistakes = [*_duplicate_keys(document, ()), *_inconsistencies(content)]
    try:
        settings = Settings.model_validate(content)
    except ValidationError as error:
        mistakes += _mistakes_of(error, Settings)
    else:
        if not mistakes:
            return settings
    entries = [entry for entry, _ in variants]
    raise _refusal(file_name, document, ((_place_in_file(where, entries), what) for where, what in mistakes))


def read_section(kind: type[_Kind], path: Path, name: str) -> _Kind:
    """Read a file that holds one section. Raises `ConfigError` with a line `name:line: path: mistake` for each mistake."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}") from None
    document, content = _read_mapping(text, name, f"{next(iter(kind.model_fields))!r}")
    mistakes = list(_duplicate_keys(document, ()))
    try:
        section = kind.model_validate(content)
    except ValidationError as error:
        mistakes += _mistakes_of(error, kind)
    else:
        if not mistakes:
            return section
    raise _refusal(name, document, mistakes)


def _read_mapping(text: str, file_name: str, such_as: str) -> tuple[yaml.Node | None, dict[str, Any]]:
    """The document and the content of a YAML file; `such_as` names a key that it has. Raises `ConfigError`."""
    try:
        document = yaml.compose(text, Loader=_LOADER)
        content = yaml.load(text, Loader=_LOADER)  # noqa: S506 - it is a safe one
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file_name}:{line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, AttributeError) as error:  # Python's own error, as for `2001-02-30`
        raise ConfigError(f"{file_name}:1: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file_name}:1: must be a mapping with keys such as {such_as}")
    return document, content


def _mistakes_of(error: ValidationError, kind: type[Section]) -> Iterator[Mistake]:
    details = error.errors()
    places = [detail["loc"] for detail in details]
    return (m for detail in details if not _is_consequence(detail, places) for m in _explain(detail, kind))


def _refusal(file_name: str, document: yaml.Node | None, mistakes: Iterable[Mistake]) -> ConfigError:
    lines = sorted((_line_of(document, where), _dotted(where), what) for where, what in set(mistakes))
    return ConfigError("\n".join(f"{file_name}:{line}: {where}: {what}" for line, where, what in lines))


def _expand_matrix(entries: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Yield each variant with the index of its entry: an entry with lists stands for every combination of their values.

    In names, values lose the characters that a name cannot have: `torch==2.13.0` becomes `torch2.13.0`.
    """
    for place, entry in enumerate(entries):
        fields = as_mapping(entry)
        lists = {key: fields[key] for key in _MATRIX_KEYS if isinstance(fields.get(key), list) and fields[key]}
        if not lists or "name" not in fields:
            yield place, entry
            continue
        for values in product(*lists.values()):
            variant = {**fields, **dict(zip(lists, values, strict=True))}
            if isinstance(variant["name"], str):
                for key in _MATRIX_KEYS:
                    shown = re.sub(r"[^A-Za-z0-9._-]+", "", str(variant.get(key, "")))
                    variant["name"] = variant["name"].replace(f"{{{key}}}", shown)
            yield place, variant


def _inconsistencies(content: dict[str, Any]) -> Iterator[Mistake]:
    """Find sections that contradict each other. Reads the raw document, so that all mistakes are reported together."""
    yield from _too_many_cards(content)
    kind = as_mapping(content.get("pool")).get("kind", "local")
    for pool in get_args(Pool):
        if kind in _kinds(pool):
            yield from pool.mistakes(content)
    yield from KubernetesExecutor.mistakes(content)
    yield from Stack.mistakes(content)
    variants = [as_mapping(entry).get("name") for entry in as_sequence(content.get("variants"))]
    suites = as_mapping(content.get("suites"))
    yield from _unfit_suites(content)
    known = {"suites": list(suites), "variants": [] if None in variants else variants}
    yield from _unfit_torch(content)
    yield from _unfit_images(content)
    yield from _unfit_relay(content)
    if (pulls := content.get("pull_requests")) is not None and not (content.get("github") or as_mapping(pulls).get("refs")):
        yield ("pull_requests",), "needs the section 'github', which names the repository; or 'refs', for another host"
    yield from strangers_mistakes(content)
    if as_mapping(content.get("notify")).get("issues") is not None and content.get("github") is None:
        yield ("notify", "issues"), "needs the section 'github', which names the repository"
    yield from _unfit_release(content)
    for index, name in enumerate(variants):
        if name is not None and name in variants[:index]:
            advice = "variant names are unique: include the values of lists, as in 'py{python}'"
            yield ("variants", index, "name"), f"{name!r} is used twice; {advice}"
    if BAZEL_SUITE in suites:
        yield ("suites", BAZEL_SUITE), "is reserved for the source build; choose another name"
    if content.get("rbe") is None and as_mapping(content.get("jobs")).get("nightly_rbe") is not None:
        yield ("jobs", "nightly_rbe"), "needs the section 'rbe', which defines what Bazel builds and tests"
    for job_name, job in as_mapping(content.get("jobs")).items():
        for kind, names in known.items():
            for index, name in enumerate(as_sequence(as_mapping(job).get(kind))):
                if names and name not in names:  # a section without names is reported as such
                    advice = _did_you_mean(str(name), [str(other) for other in names])
                    yield ("jobs", job_name, kind, index), f"there is no {kind[:-1]} {name!r}{advice}"
        chosen = [as_mapping(suites[name]) if name in list(suites) else {} for name in _suites_of(job)]
        if chosen and all(suite.get("stage", "device") != "device" for suite in chosen):
            yield ("jobs", job_name, "suites"), "has no suite of the stage 'device', so it would test nothing"


def _unfit_torch(content: dict[str, Any]) -> Iterator[Mistake]:
    """Find variants whose place of PyTorch's wheels does not go together with what they want of it."""
    for index, entry in enumerate(as_sequence(content.get("variants"))):
        variant, where = as_mapping(entry), ("variants", index, "torch_index")
        place = variant.get("torch_index")
        if not isinstance(place, str):
            continue
        if COMMIT_PLACE in place and variant.get("torch_source", "pinned") != "main":
            yield where, f"{COMMIT_PLACE} is a commit of PyTorch main: set torch_source: main, or leave it out"
        if "@" in str(variant.get("torch")):
            yield where, "'torch' has an address already; keep one"


def _unfit_images(content: dict[str, Any]) -> Iterator[Mistake]:
    """Find images whose builder does not go together with their other settings."""
    sections: list[tuple[tuple[str | int, ...], Any]] = [(("image",), content.get("image"))]
    for index, entry in enumerate(as_sequence(content.get("variants"))):
        sections.append((("variants", index, "image"), as_mapping(entry).get("image")))
    for where, given in sections:
        image = as_mapping(given)
        builder = as_mapping(image.get("builder"))
        is_buildah = builder.get("kind", "docker") == "buildah"
        if image.get("registry_of_pulls") and image.get("registry_of_pulls") == image.get("registry"):
            yield (*where, "registry_of_pulls"), "must be another repository than 'registry', which trusted builds take from"
        if image.get("registry_of_pulls") and not image.get("registry"):
            yield (*where, "registry_of_pulls"), "needs 'registry': without that, no image is pushed"
        if is_buildah and not image.get("registry"):
            yield (*where, "registry"), "is missing: images by Buildah are used from there"
        if builder.get("cache") and not is_buildah:
            yield (*where, "builder", "cache"), "needs the kind 'buildah'; a Docker engine keeps its layers itself"


def _unfit_relay(content: dict[str, Any]) -> Iterator[Mistake]:
    """Find variants that the relay is to build and nobody knows, and a token that comes from nowhere."""
    relay = as_mapping(content.get("relay"))
    variants = [str(as_mapping(entry).get("name")) for entry in as_sequence(content.get("variants"))]
    for index, variant in enumerate(as_sequence(relay.get("variants"))):
        if variant not in variants:
            yield ("relay", "variants", index), f"there is no variant {variant!r}{_did_you_mean(str(variant), variants)}"
    if relay.get("callbacks") and relay.get("identity", "file") == "file" and not relay.get("token_file"):
        yield ("relay", "token_file"), "is missing: a callback needs a token; or set 'identity' to github or buildkite"


def _unfit_release(content: dict[str, Any]) -> Iterator[Mistake]:
    """Find variants and suites that a release names and nobody knows, and images that no registry has."""
    release = as_mapping(content.get("release"))
    variants = [str(as_mapping(entry).get("name")) for entry in as_sequence(content.get("variants"))]
    suites = [str(name) for name in as_mapping(content.get("suites"))]
    gate = as_mapping(release.get("gate"))
    for where, names, known in (
        (("release", "variants"), release.get("variants"), variants),
        (("release", "gate", "suites"), gate.get("suites"), suites),
    ):
        for index, name in enumerate(as_sequence(names)):
            if name not in known:
                kind = where[-1].removesuffix("s")
                yield (*where, index), f"there is no {kind} {name!r}{_did_you_mean(str(name), known)}"
    if gate.get("level") and not as_mapping(content.get("quality")).get("level"):
        yield ("release", "gate", "level"), "needs quality.level, the backend's own level"


def _unfit_suites(content: dict[str, Any]) -> Iterator[Mistake]:
    """Find suites whose settings do not go together, or not with the other sections."""
    variants = [str(as_mapping(entry).get("name")) for entry in as_sequence(content.get("variants"))]
    for name, given in as_mapping(content.get("suites")).items():
        suite = as_mapping(given)
        ready = suite.get("kind", "files") != "files"
        if ready and (suite.get("paths") or suite.get("source", "backend") != "backend"):
            yield ("suites", name, "kind"), f"{suite['kind']!r} has its own tests; remove 'paths' and 'source'"
        elif "commands" in suite:
            yield from _unfit_commands(name, suite)
        elif not ready and "paths" not in suite and isinstance(given, dict):
            yield ("suites", name, "paths"), "is missing"
        elif not ready and suite.get("paths") == []:
            yield ("suites", name, "paths"), "needs at least 1 entry"
        of_pytorch = ready or suite.get("source") == "upstream"
        if of_pytorch and content.get("device") is None and suite.get("instances") != "cpu":
            yield ("suites", name), "needs the section 'device': the type of the backend's device, as in 'type: emu'"
        if as_mapping(suite.get("scope")).get("tolerances") and (not of_pytorch or suite.get("instances") == "cpu"):
            yield ("suites", name, "scope", "tolerances"), "are only for PyTorch's own tests on the backend's device"
        for index, variant in enumerate(as_sequence(suite.get("variants"))):
            if variant not in variants:
                advice = _did_you_mean(str(variant), variants)
                yield ("suites", name, "variants", index), f"there is no variant {variant!r}{advice}"


def _unfit_commands(name: str, suite: dict[Any, Any]) -> Iterator[Mistake]:
    """Find commands of a suite that hold a card, and settings beside them that only tests have."""
    if suite.get("stage") != "deviceless":
        yield ("suites", name, "commands"), "hold no card: set 'stage: deviceless'"
    if suite["commands"] == []:
        yield ("suites", name, "commands"), "needs at least 1 entry"
    others = ("kind", "source", "paths", "instances", "pytest_args", "scope", "isolate")
    if found := [key for key in others if key in suite]:
        yield ("suites", name, found[0]), "is for tests; a suite has either these or 'commands'"


def _suites_of(job: object) -> list[Any]:
    return as_sequence(as_mapping(job).get("suites"))


def _too_many_cards(content: dict[str, Any]) -> Iterator[Mistake]:
    available = as_mapping(content.get("pool")).get("cards", 1)
    for name, suite in as_mapping(content.get("suites")).items():
        needed, where = as_mapping(suite).get("cards", 1), ("suites", name, "cards")
        if isinstance(needed, int) and isinstance(available, int) and needed > max(1, available):
            yield where, f"a test needs {needed} cards, but the pool has {available}"
        elif needed != 1 and (stage := as_mapping(suite).get("stage", "device")) != "device":
            uses = "smoke uses a single card" if stage == "smoke" else "deviceless tests hold none"
            yield where, f"{uses}; move tests that need several to a suite of the stage 'device'"


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def _place_in_file(where: tuple[str | int, ...], entries: Sequence[int]) -> tuple[str | int, ...]:
    """Map a place to the file, where variants that were expanded from one entry share that entry."""
    match where:
        case ("variants", int(index), *rest):
            return ("variants", entries[index], *rest)
    return where


def _explain(detail: Any, kind_of_file: type[Section]) -> Iterator[Mistake]:
    tagged, kind, context = tuple(detail["loc"]), detail["type"], detail.get("ctx", {})
    where = (tagged[0], *tagged[2:]) if tagged[0] == "pool" else tagged  # pydantic inserts the kind of the pool
    cause = context.get("error")
    if kind == "extra_forbidden":
        yield where, f"unknown key{_did_you_mean(str(where[-1]), _known_keys(tagged[:-1], kind_of_file))}"
    elif kind == "union_tag_invalid":
        known = re.findall(r"'([^']*)'", context["expected_tags"])
        yield (*where, "kind"), f"there is no kind {context['tag']!r}{_did_you_mean(context['tag'], known)}"
    elif kind == "missing":
        yield where, "is missing"
    elif cause is not None:
        yield where, str(cause)
    else:
        given = detail["input"]
        expected = _EXPECTED.get(kind, detail["msg"].replace("Input should be", "must be")).format(**context)
        if kind.startswith(("too_", "string_too_")):  # of a list or text; with its length, the message is complete
            yield where, expected
        elif given is None:
            yield where, f"{expected}, but it has no value"
        else:
            advice = ": put it in quotes" if kind == "string_type" and isinstance(given, int | float) else ""
            yield where, f"{expected} (it is {repr(given)[:60]}{advice})"


_EXPECTED = {
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "too_short": "needs at least {min_length} entry",
    "tuple_type": "must be a list, as in [a, b]",
    "dict_type": "must be a mapping, with lines such as 'key: value'",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
}
_EXPECTED |= dict.fromkeys(("model_type", "model_attributes_type"), _EXPECTED["dict_type"])
"""Pydantic's kinds of errors in plain words."""


def _is_consequence(detail: Any, places: Sequence[tuple[str | int, ...]]) -> bool:
    """True for a list or mapping that is too short only because an entry of it has a mistake, which is reported itself."""
    where = detail["loc"]
    return detail["type"] == "too_short" and any(
        len(place) > len(where) and place[: len(where)] == where for place in places
    )


def _known_keys(where: tuple[str | int, ...], section: Any) -> list[str]:
    for step in where:
        if _is_section(section) and step in section.model_fields:
            section = section.model_fields[str(step)].annotation
            optional = type(None) in get_args(section)
        else:  # an entry of a mapping or sequence, or the kind of a pool
            optional = True
        choices = [choice for choice in get_args(section) if _is_section(choice)]
        if choices and optional:
            section = next((choice for choice in choices if step in _kinds(choice)), choices[-1])
    return list(section.model_fields) if _is_section(section) else []


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _kinds(section: type[Section]) -> tuple[Any, ...]:
    return get_args(section.model_fields["kind"].annotation) if "kind" in section.model_fields else ()


def _dotted(where: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where).removeprefix(".")


def _children(node: yaml.Node | None) -> list[tuple[str | int, yaml.Node, yaml.Node]]:
    """The entries of a mapping or sequence: the key or index, the node where the entry begins, and its value."""
    if isinstance(node, yaml.MappingNode):
        return [(key.value, key, value) for key, value in node.value]
    return [(index, item, item) for index, item in enumerate(node.value)] if isinstance(node, yaml.SequenceNode) else []


def _line_of(node: yaml.Node | None, where: tuple[str | int, ...]) -> int:
    """The line number, from 1, of the deepest part of `where` that the document has."""
    start = node
    for step in where:
        found = [(begin, value) for key, begin, value in _children(node) if str(key) == str(step)]
        if not found:
            break
        start, node = found[-1]
    return 1 if start is None else start.start_mark.line + 1


def _duplicate_keys(node: yaml.Node | None, where: tuple[str | int, ...]) -> Iterator[Mistake]:
    seen: set[str | int] = set()
    for key, _, value in _children(node):
        if key in seen:
            yield (*where, key), "appears twice; keep one"
        seen.add(key)
        yield from _duplicate_keys(value, (*where, key))
