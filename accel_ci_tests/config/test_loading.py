from __future__ import annotations

import contextlib
import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from accel_ci.config.loading import find_config, load_project, parse_settings
from accel_ci.config.settings import Settings
from accel_ci.config.values import size_in_bytes
from accel_ci.errors import ConfigError
from accel_ci.pipelines import INTEGRATION
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.project import minimal_config

KUBERNETES = {
    "kind": "kubernetes", "image": "toy:1", "resource": "example.com/accel",
    "bucket": {"bucket": "rounds", "endpoint": "http://127.0.0.1:8333"},
}  # fmt: skip
DOCKER = {"kind": "docker", "card_environment": "TOY_CARD", "image": "toy:1"}


def mistakes(document: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_settings(yaml.safe_dump(document, sort_keys=False))
    return str(caught.value).splitlines()


def changed(path: str, value: object) -> dict[str, object]:
    document = copy.deepcopy(minimal_config())
    target: object = document
    *parents, last = path.split(".")
    for step in parents:
        target = target[int(step) if step.isdigit() else step]  # type: ignore[index]
    target[int(last) if last.isdigit() else last] = value  # type: ignore[index]
    return document


def test_minimal_configuration_is_valid() -> None:
    settings = parse_settings(yaml.safe_dump(minimal_config()))
    assert settings.pool.rounds == 2
    assert INTEGRATION.job_for("nightly").variants(settings) == ("py3",)
    assert list(settings.suites_of("manual", "smoke")) == ["smoke"]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("pool.crads", 2, "pool.crads: unknown key; did you mean 'cards'?"),
        ("pool.cards", 0, "pool.cards: must be at least 1 (it is 0)"),
        ("backend.name", "a/b", "backend.name: use letters, digits, '.', '_' and '-', beginning with a letter"),
        ("backend.owners", ["somebody"], "backend.owners[0]: must be 'team:<name>' or an e-mail address"),
        (
            "addresses",
            {"ui": "http://u", "hud": "http://h", "pods": "http://p/{pods}"},
            "addresses.pods: must have {pod} where the name of a pod belongs, and may have {namespace}, but no other braces",
        ),
        ("backend.subdirectory", "../other", "backend.subdirectory: must be a path below the root"),
        ("backend.ref", "--upload-pack=x", "backend.ref: must be a ref of git without spaces, such as 'refs/heads/main'"),
        ("variants.0.python", 3.11, "variants[0].python: must be text (it is 3.11: put it in quotes)"),
        ("variants.0.python", ["3.11", 3.12], "variants[0].python: must be text (it is 3.12: put it in quotes)"),
        ("variants.0.python", [], "variants[0].python: must be text (it is []"),
        ("variants.0", {"python": "3.11", "torch": "torch", "runtime": "none"}, "variants[0].name: is missing"),
        ("variants.0.name", "{pyton}", "variants[0].name: use letters"),
        ("variants.0.torch", "torch=2", "variants[0].torch: not a PEP 508 requirement"),
        ("variants.0.name", "a|b", "variants[0].name: use letters"),
        ("variants.0.torch_index", "builds/{sha}", "variants[0].torch_index: {sha} is a commit of PyTorch main: set torch_"),
        ("variants.0.torch_index", "https://h/{commit}", "variants[0].torch_index: {commit} means nothing here; {sha} is"),
        ("variants.0.torch_index", "ftp://h", "variants[0].torch_index: must be an address that begins with http:// or"),
        ("variants.0", {"name": "py3", "python": "3.11", "torch": "torch @ https://h/t.whl", "torch_index": "https://h"},
         "variants[0].torch_index: 'torch' has an address already; keep one"),
        ("image", {"base": "a@sha256:" + "0" * 64, "builder": {"kind": "buildah"}}, "image.registry: is missing: images"),
        ("stack", {"components": []}, "stack.components: needs at least 1 entry"),
        ("stack", {"components": [{"name": "a", "repository": "a"}]}, "stack.components[0].build: is missing"),
        ("stack", {"components": [{"name": "a", "repository": "a", "build": ["make"]}]},
         "stack.components[0].build[0]: must be a list, as in [a, b] (it is 'make')"),
        ("stack", {"components": [{"name": "a", "repository": "a", "build": [["make"]], "reports": ["*.xml"]}]},
         "stack.components[0].reports: needs 'test': the commands that write the reports"),
        ("stack", {"components": [{"name": "a", "repository": "a", "build": [["make"]]}] * 2},
         "stack.components[1].name: 'a' is used twice; names of components are unique"),
        ("stack", {"components": [{"name": "a", "repository": "a", "build": [["make"]], "ref": "--x"}]},
         "stack.components[0].ref: must be a ref of git without spaces"),
        ("stack", {"components": [{"name": "a", "repository": "a", "build": [["make"]], "release": True}]},
         "stack.components[0].release: needs 'release.images': the repository that the image goes to"),
        ("stack", {"components": [{"name": "a", "repository": "a", "build": [["make"]], "changes": {}}]},
         "stack.components[0].changes.trust_all: is missing"),
        ("stack", {"components": [{"name": "a", "repository": "a", "build": [["make"]], "github": "org/a"}]},
         "stack.components[0].github: needs 'changes'"),
        ("release", {"variants": ["py4"]}, "release.variants[0]: there is no variant 'py4'; did you mean 'py3'?"),
        ("release", {"gate": {"suites": ["smok"]}}, "release.gate.suites[0]: there is no suite 'smok'; did you mean"),
        ("release", {"gate": {"level": "L2"}}, "release.gate.level: needs quality.level"),
        ("release", {"test_triggers": ["pr"]}, "release.test_triggers[0]: must be 'nightly', 'intraday', 'main'"),
        ("prebuilt_image", {"reference": "a/b:1"}, "prebuilt_image.reference: must be pinned by digest"),
        ("image", {"base": "a@sha256:" + "0" * 64, "builder": {"cache": "a/b"}}, "image.builder.cache: needs"),
        ("jobs.nightly.cron", "0 2 * *", "jobs.nightly.cron: not a cron expression"),
        ("jobs.nightly.cron", "61 2 * * *", "jobs.nightly.cron: not a cron expression"),
        ("jobs.nightly.suites", ["smoke", "unti"], "jobs.nightly.suites[1]: there is no suite 'unti'; did you mean 'unit'?"),
        ("jobs.nightly.suites", ["smoke"], "jobs.nightly.suites: has no suite of the stage 'device'"),
        ("jobs.main.variants", ["py4"], "jobs.main.variants[0]: there is no variant 'py4'; did you mean 'py3'?"),
        ("suites.unit.paths", [], "suites.unit.paths:"),
        ("suites", {}, "suites:"),
        ("suites.unit.cards", 3, "suites.unit.cards: a test needs 3 cards, but the pool has 2"),
        ("suites.smoke.cards", 2, "suites.smoke.cards: smoke uses a single card"),
        ("pool.kind", "dokcer", "pool.kind: there is no kind 'dokcer'; did you mean 'docker'?"),
        ("pool.image", "busybox", "pool.image: unknown key"),
        ("pool", {"kind": "docker", "card_environment": "X"}, "pool.image: is missing"),
        ("pool", {**DOCKER, "devicse": []}, "pool.devicse: unknown key; did you mean 'devices'?"),
        ("pool", {**DOCKER, "devices": ["accel0"]}, "pool.devices[0]: must be a device of the machine, such as"),
        ("pool", {**DOCKER, "memory": "8 GB"}, "pool.memory: must be a number of bytes, or one with k, m or g"),
        ("pool", {**DOCKER, "gpus": 2}, "pool.gpus: must be 'all' or 'card' (it is 2)"),
        ("pool", {**DOCKER, "pids_limit": 0}, "pool.pids_limit: must be at least 16 (it is 0)"),
        ("image", {"base": "debian:12"}, "image.base: must be pinned by digest, as in"),
        ("image", {"base": "debian@sha256:" + "0" * 64, "stripped": ["/lib"]}, "image.stripped[0]: must be a path below"),
        ("image", {"bsae": "x"}, "image.bsae: unknown key; did you mean 'base'?"),
        ("wheels", {"platform": "linux"}, "wheels.platform: must be a platform tag, such as"),
        ("wheels", {"external_libraries": ["a/b.so"]}, "wheels.external_libraries[0]: must be the file name of a library"),
        ("wheels", {"size_budget": "1 MB"}, "wheels.size_budget: must be a number of bytes, or one with k, m or g"),
        ("pool.instance", {"start": ["a"]}, "pool.instance.pause: is missing"),
        ("pool.instance", {"start": ["a"], "pause": ["b"], "redy": ["c"]}, "pool.instance.redy: unknown key; did you"),
        ("pool.instance", {"start": "a", "pause": ["b"]}, "pool.instance.start: must be a list, as in [a, b] (it is 'a')"),
        ("pool.instance", {"start": ["a"], "pause": ["b"], "lease_seconds": 1}, "pool.instance.lease_seconds: must be at"),
        ("pool", {**DOCKER, "user": "a b"}, "pool.user: must be numbers, such as '1000:1000'"),
        ("suites.bazel", {"paths": ["tests"]}, "suites.bazel: is reserved for the source build; choose another name"),
        ("jobs.nightly_rbe", {"cron": "0 3 * * *"}, "jobs.nightly_rbe: needs the section 'rbe'"),
        ("rbe", {}, "rbe.targets: is missing"),
        ("rbe", {"targets": ["a/..."]}, "rbe.targets[0]: must be a target pattern of Bazel"),
        ("rbe", {"targets": ["//..."], "image": "build:latest"}, "rbe.image: must be pinned by digest"),
        ("rbe", {"targets": ["//..."], "workspace": "native"}, "rbe.workspace: must be 'backend' or 'upstream'"),
        ("rbe", {"targets": ["//..."], "workspace": "backend/../x"}, "rbe.workspace: must be a path below the root"),
        ("rbe", {"targets": ["//..."], "flags": ["--remote_header=a=b"]}, "rbe.flags[0]: headers hold credentials"),
        ("rbe", {"targets": ["//..."], "flags": ["--bazelrc=x"]}, "rbe.flags[0]: --bazelrc is set by accel-ci itself"),
        ("rbe", {"targets": ["//..."], "flags": ["jobs"]}, "rbe.flags[0]: must be a flag of `bazel test`"),
        ("rbe", {"targets": ["//..."], "headers": {"x-key": "not a name"}}, "rbe.headers.x-key: must be the name of an"),
        ("rbe", {"targets": ["//..."], "executor": "grpcs://me:secret@host"}, "rbe.executor: must be an address such as"),
        ("rbe", {"targets": ["//..."], "excutor": "grpc://x"}, "rbe.excutor: unknown key; did you mean 'executor'?"),
        ("pool", None, "pool:"),
        ("pool", {**KUBERNETES, "bucket": None}, "pool.bucket: is missing: pods and driver exchange data through a bucket"),
        ("pool", {**KUBERNETES, "quue": "a"}, "pool.quue: unknown key; did you mean 'queue'?"),
        ("pool", {**KUBERNETES, "card_environment": "X"}, "pool.card_environment: unknown key"),
        ("pool", {**KUBERNETES, "resource": "accel"}, "pool.resource: must be an extended resource"),
        ("pool", {**KUBERNETES, "memory": "16 GB"}, "pool.memory: must be a Kubernetes quantity, such as '4'"),
        ("pool", {**KUBERNETES, "run_as_user": 0}, "pool.run_as_user: must be at least 1 (it is 0)"),
        ("pool", {**KUBERNETES, "bucket": {"bucket": "b", "endpoint": "s3"}}, "pool.bucket.bucket: must be the name of"),
        ("pool", {**KUBERNETES, "tolerations": [{"efect": "NoSchedule"}]}, "pool.tolerations[0].efect: unknown key; did"),
        ("pool", {**KUBERNETES, "pod_template": {"spec": {"containers": [{"name": "sidecar"}]}}},
         "pool.pod_template.spec.containers[0]: only the container named 'worker' can be changed"),
        ("pool", {**KUBERNETES, "pod_template": {"spec": {"restartPolicy": "Always"}}},
         "pool.pod_template.spec.restartPolicy: cannot be set here"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_with_their_place(path: str, value: object, expected: str) -> None:
    lines = mistakes(changed(path, value))
    assert any(re.match(r"accel_ci\.yaml:\d+: " + re.escape(expected), line) for line in lines), lines


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("variants", [], "variants: needs at least 1 entry"),
        ("variants", None, "variants: must be a list, as in [a, b], but it has no value"),
        ("variants", ["py3"], "variants[0]: must be a mapping, with lines such as 'key: value' (it is 'py3')"),
        ("variants.0.pyton", "3.11", "variants[0].pyton: unknown key; did you mean 'python'?"),
        ("variants.0.python", 3.11, "variants[0].python: must be text (it is 3.11: put it in quotes)"),
        ("variants.0.torch", "torch=2", "variants[0].torch: not a PEP 508 requirement: "),
        ("variants.0.wheels", {"strct": True}, "variants[0].wheels.strct: unknown key; did you mean 'strict'?"),
        ("suites", {}, "suites: needs at least 1 entry"),
        ("suites.unit.paths", [], "suites.unit.paths: needs at least 1 entry"),
        ("suites.unit.paths", "tests", "suites.unit.paths: must be a list, as in [a, b] (it is 'tests')"),
        ("suites.unit.paths", ["../x"], "suites.unit.paths[0]: must be a path below the root of the backend's sources"),
        ("suites.unit", None, "suites.unit: must be a mapping, with lines such as 'key: value', but it has no value"),
        ("jobs.nightly.suites", ["smoke", "unti"], "jobs.nightly.suites[1]: there is no suite 'unti'; did you mean 'unit'?"),
        ("backend.name", "", "backend.name: must not be empty"),
        ("backend.lfs", 2, "backend.lfs: must be true or false (it is 2)"),
        ("pool.cards", "two", "pool.cards: must be a whole number (it is 'two')"),
        ("pool.environment", {"A": 1}, "pool.environment.A: must be text (it is 1: put it in quotes)"),
        ("limits", {"probe_seconds": 0}, "limits.probe_seconds: must be more than 0 (it is 0)"),
        ("limits", {"probe_seconds": "soon"}, "limits.probe_seconds: must be a number (it is 'soon')"),
    ],
)  # fmt: skip
def test_one_mistake_is_one_line_in_plain_words(path: str, value: object, expected: str) -> None:
    [line] = mistakes(changed(path, value))
    assert line.split(": ", 1)[1].startswith(expected)
    assert not re.search(r"(?i)tuple|dictionary|instance|integer|boolean|validation|pattern|input", line)


@pytest.mark.parametrize(("size", "expected"), [("7", 7), ("7b", 7), ("2k", 2048), ("3M", 3 << 20), ("1g", 1 << 30)])
def test_sizes_are_read_as_docker_reads_them(size: str, expected: int) -> None:
    assert size_in_bytes(size) == expected


def test_a_variant_may_override_wheel_rules_and_image() -> None:
    own = {"wheels": {"size_budget": "2m"}, "image": {"base": "debian@sha256:" + "0" * 64}}
    variant = {"name": "py3", "python": "3.11", "torch": "torch", "runtime": "none"}
    document = {**changed("wheels", {"size_budget": "1m"}), "variants": [variant, {**variant, "name": "odd", **own}]}
    settings = parse_settings(yaml.safe_dump(document))
    plain, odd = settings.variants
    assert (settings.wheels_of(plain).size_budget, settings.wheels_of(odd).size_budget) == ("1m", "2m")
    assert settings.image_of(plain) is None
    assert settings.image_of(odd) is not None


def test_a_variant_with_lists_expands_to_each_combination() -> None:
    common = {"torch_source": "pinned", "requirements": ["pytest", "numpy"]}
    matrix = {"name": "py{python}-{torch}-{runtime}", "python": ["3.11", "3.12"], "torch": "torch==2.13.0", **common}
    odd = {"name": "odd", "python": "3.10", "torch": "torch", "runtime": "rt-9", "build_environment": {"LEGACY": "1"}}
    document = changed("variants", [{**matrix, "runtime": ["rt-1", "rt-2"]}, odd])
    found = parse_settings(yaml.safe_dump(document)).variants
    assert [(variant.name, variant.python, variant.runtime) for variant in found] == [
        ("py3.11-torch2.13.0-rt-1", "3.11", "rt-1"),
        ("py3.11-torch2.13.0-rt-2", "3.11", "rt-2"),
        ("py3.12-torch2.13.0-rt-1", "3.12", "rt-1"),
        ("py3.12-torch2.13.0-rt-2", "3.12", "rt-2"),
        ("odd", "3.10", "rt-9"),
    ]
    assert {variant.requirements for variant in found[:4]} == {("pytest", "numpy")}


def test_mistakes_of_an_expanded_variant_are_reported_once() -> None:
    good = {"name": "good", "python": "3.11", "torch": "torch", "runtime": "none"}
    many = {**good, "name": "py{python}", "python": ["3.11", "3.12"], "runtime": ["a", "b"], "tourch": "x"}
    lines = [line.split(": ", 1)[1] for line in mistakes(changed("variants", [good, many, {**good, "name": "py3.11"}]))]
    advice = "; variant names are unique: include the values of lists, as in 'py{python}'"
    assert sorted(lines) == [
        f"variants[1].name: 'py3.11' is used twice{advice}",
        f"variants[1].name: 'py3.12' is used twice{advice}",
        "variants[1].tourch: unknown key; did you mean 'torch'?",
        f"variants[2].name: 'py3.11' is used twice{advice}",
    ]


def test_each_mistake_has_its_own_line() -> None:
    document = changed("pool.cards", "many")
    document["jobs"] = {}
    document["colour"] = "blue"
    lines = mistakes(document)
    assert [line.split(": ")[1] for line in lines] == [
        "pool.cards", "jobs.intraday", "jobs.main", "jobs.nightly", "jobs.pr", "colour",
    ]  # fmt: skip


def test_line_numbers_point_into_the_file() -> None:
    text = yaml.safe_dump(minimal_config(), sort_keys=False).replace("cards: 2", "cards: zero")
    line = next(number for number, content in enumerate(text.splitlines(), 1) if "cards: zero" in content)
    with pytest.raises(ConfigError, match=f"^accel_ci.yaml:{line}: pool.cards: "):
        parse_settings(text)


def test_a_duplicate_key_is_a_mistake() -> None:
    text = yaml.safe_dump(minimal_config(), sort_keys=False) + "pool: {card_environment: X}\n"
    with pytest.raises(ConfigError, match="pool: appears twice"):
        parse_settings(text)


@pytest.mark.parametrize("text", ["", "[]", "just words", "a: [", "a: b: c", "\x00", "!!python/object:os.system {}"])
def test_a_file_that_is_not_a_mapping_gives_one_clear_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(text)
    assert str(caught.value).startswith("accel_ci.yaml:")
    assert "\n" not in str(caught.value)


_NAMES = st.sampled_from(
    ["backend", "variants", "suites", "jobs", "pool", "nightly", "name", "stage", "smoke", "unit", "py3", "paths"]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | _NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES | st.integers(), inner, max_size=5),
    max_leaves=12,
)


@given(document=_VALUES, section=st.sampled_from([*minimal_config()]))
def test_any_document_is_valid_or_a_list_of_mistakes(document: object, section: str) -> None:
    for content in (document, {**minimal_config(), section: document}):
        with contextlib.suppress(ConfigError):
            parse_settings(yaml.safe_dump(content))


@example("a: 2001-02-30")
@example("a: 0x_")
@example("a: !!int x")
@example("a: !!timestamp x")
@given(text=st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_list_of_mistakes(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_settings(text)


def test_the_files_of_the_project_are_valid() -> None:
    assert load_project(ROOT / "accel_ci.yaml").settings.backend.name == "torch_emu"
    assert parse_settings((ROOT / "accel_ci" / "config" / "starter.yaml").read_text()).backend.name == "my_backend"


def test_the_starters_other_stack_can_be_switched_on() -> None:
    starter = (ROOT / "accel_ci" / "config" / "starter.yaml").read_text()
    switched_on = re.sub(r"(?m)^  # (- \{name: py311-main.*)\n  # (.*\})$", r"  \1\n  \2", starter)
    pinned, other = parse_settings(switched_on).variants
    assert (pinned.torch_source, other.torch_source, other.torch) == ("pinned", "main", "torch")
    assert (other.python, other.runtime, other.requirements) == (pinned.python, pinned.runtime, pinned.requirements)
    guide = (ROOT / "docs" / "upstream.md").read_text()
    for variant in (pinned, other):
        assert f"name: {variant.name}\n" in guide, "the guide has both by the same names"
    assert f"torch_index: {other.torch_index} " in guide


def test_the_starter_shows_every_key() -> None:
    starter = (ROOT / "accel_ci" / "config" / "starter.yaml").read_text()
    uncommented = re.sub(r"(?m)^( *)# ( *\w+:.*)$", r"\1\2", starter)
    assert parse_settings(uncommented) != parse_settings(starter).model_copy(update={"backend": None})

    def keys(model: type[BaseModel]) -> set[str]:
        found = set(model.model_fields)
        for field in model.model_fields.values():
            for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    found |= keys(kind)
        return found

    missing = {key for key in keys(Settings) if not re.search(rf"\b{key}\b:|`{key}: ", starter)}
    assert not missing


def test_the_file_is_found_in_a_parent_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_CI_CONFIG", raising=False)
    (tmp_path / "accel_ci.yaml").write_text("")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_config() == tmp_path / "accel_ci.yaml"


def test_the_error_for_a_missing_file_advises_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_CI_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    for path in (None, tmp_path / "other.yaml"):
        with pytest.raises(ConfigError, match="accel-ci init"):
            load_project(path)


TOLERANCE = {"ops": ["mm"], "atol": 0.01, "rtol": 0, "reason": "upstream_bug"}
SMOKE = {"stage": "smoke", "paths": ["tests/smoke"]}


@pytest.mark.parametrize(
    ("suite", "device", "mistake"),
    [
        ({}, None, "suites.unit.paths: is missing"),
        ({"paths": []}, None, "suites.unit.paths: needs at least 1 entry"),
        ({"kind": "op_db", "paths": ["tests"]}, {"type": "emu"}, "suites.unit.kind: 'op_db' has its own tests"),
        ({"kind": "op_db", "source": "upstream"}, {"type": "emu"}, "suites.unit.kind: 'op_db' has its own tests"),
        ({"kind": "op_db"}, None, "suites.unit: needs the section 'device'"),
        ({"source": "upstream", "paths": ["test/a.py"]}, None, "suites.unit: needs the section 'device'"),
        (
            {"paths": ["tests"], "variants": ["py33"]},
            None,
            "suites.unit.variants[0]: there is no variant 'py33'; did you mean",
        ),
        ({"source": "upstream", "paths": ["../a.py"]}, {"type": "emu"}, "suites.unit.paths[0]: must be a path below"),
        (
            {"paths": ["tests"], "scope": {"tolerances": [TOLERANCE]}},
            None,
            "suites.unit.scope.tolerances: are only for PyTorch's own tests on the backend's device",
        ),
        (
            {"kind": "op_db", "instances": "cpu", "scope": {"tolerances": [TOLERANCE]}},
            None,
            "suites.unit.scope.tolerances: are only for PyTorch's own tests on the backend's device",
        ),
        (
            {"kind": "op_db", "scope": {"tolerances": [{**TOLERANCE, "atol": -1}]}},
            {"type": "emu"},
            "suites.unit.scope.tolerances[0].atol: ",
        ),
        ({"kind": "op_db"}, {"type": "cuda:0"}, "device.type: must be a type of devices for PyTorch, such as 'emu'"),
    ],
)
def test_suites_of_pytorchs_tests(suite: dict[str, object], device: dict[str, str] | None, mistake: str) -> None:
    content = {**minimal_config(), "suites": {"smoke": SMOKE, "unit": suite}, **({"device": device} if device else {})}
    with pytest.raises(ConfigError) as raised:
        parse_settings(yaml.safe_dump(content))
    assert mistake in str(raised.value)


def test_a_suite_runs_in_its_variants_alone() -> None:
    variants = [{"name": name, "python": "3.11", "torch": "torch", "runtime": "none"} for name in ("a", "b")]
    suites = {"smoke": SMOKE, "unit": {"paths": ["tests"], "variants": ["a"], "test_timeout_seconds": 4000}}
    settings = parse_settings(yaml.safe_dump({**minimal_config(), "variants": variants, "suites": suites}))
    assert [*settings.suites_of("nightly", "device", variant="a")] == ["unit"]
    assert [*settings.suites_of("nightly", "device", variant="b")] == []
    assert [*settings.suites_of("nightly", "device")] == ["unit"]
    assert settings.longest_test_s == 4000


LINT = {"stage": "deviceless", "commands": [["ruff", "check", "."]]}


def with_lint(**sections: Any) -> dict[str, Any]:
    """Return a configuration whose pull requests run a deviceless suite."""
    document: dict[str, Any] = copy.deepcopy(minimal_config())
    document["suites"]["lint"] = LINT
    document["jobs"]["pr"]["suites"].append("lint")
    return {**document, "github": {"repository": "org/backend"}, **sections}


@pytest.mark.parametrize(
    ("suite", "mistake"),
    [
        ({"stage": "deviceless"}, "suites.lint.paths: is missing"),
        ({"stage": "deviceless", "commands": []}, "suites.lint.commands: needs at least 1 entry"),
        ({"stage": "deviceless", "commands": ["ruff"]}, "suites.lint.commands[0]: must be a list, as in [a, b]"),
        ({"stage": "smoke", "commands": [["ruff"]]}, "suites.lint.commands: hold no card: set 'stage: deviceless'"),
        ({"commands": [["ruff"]]}, "suites.lint.commands: hold no card: set 'stage: deviceless'"),
        ({**LINT, "paths": ["tests"]}, "suites.lint.paths: is for tests; a suite has either these or 'commands'"),
        ({"stage": "deviceless", "paths": ["tests"], "cards": 2}, "suites.lint.cards: deviceless tests hold none"),
        ({"stage": "devicless", "paths": ["tests"]}, "suites.lint.stage: must be 'deviceless', 'smoke' or 'device'"),
    ],
)
def test_mistakes_in_deviceless_suites(suite: dict[str, object], mistake: str) -> None:
    document = with_lint()
    document["suites"]["lint"] = suite
    assert mistake in "\n".join(mistakes(document))


def test_a_job_needs_more_than_suites_without_a_card() -> None:
    document = with_lint()
    document["jobs"]["main"]["suites"] = ["smoke", "lint"]
    [line] = mistakes(document)
    assert "jobs.main.suites: has no suite of the stage 'device'" in line


CONTAINERS = {
    "pool": DOCKER, "wheels": {"builder": "a@sha256:" + "0" * 64}, "image": {"base": "a@sha256:" + "0" * 64},
}  # fmt: skip


@pytest.mark.parametrize(
    ("pulls", "sections", "mistake"),
    [
        ({}, {}, "pull_requests.strangers: needs 'strangers_user', a user for their code, or a pool of containers"),
        ({"strangers_user": "0:0"}, {}, "pull_requests.strangers: needs 'strangers_user'"),
        (
            {"strangers_user": "7:8"},
            {"pool": {"card_environment": "X", "cards": 2, "user": "7"}},
            "pull_requests.strangers_user: must be another user than pool.user",
        ),
        ({}, {**CONTAINERS, "wheels": {}}, "pull_requests.strangers: needs 'wheels.builder'"),
        ({}, {**CONTAINERS, "image": None}, "pull_requests.strangers: needs the section 'image' for py3"),
        (
            {},
            {**CONTAINERS, "image": {**CONTAINERS["image"], "registry": "r/a", "builder": {"kind": "buildah"}}},
            "pull_requests.strangers: needs images by a Docker engine",
        ),
        (
            {},
            {**CONTAINERS, "pool": {"kind": "kubernetes"}, "image": {**CONTAINERS["image"], "registry": "r/a"}},
            "pull_requests.strangers: needs 'image.registry_of_pulls' for py3",
        ),
        ({"strangers_user": "7:8"}, {"jobs": None}, "pull_requests.strangers: needs a suite with 'stage: deviceless'"),
        ({"refs": {"trust_all": True}, "strangers_user": "7:8"}, {}, "pull_requests.strangers: is for GitHub"),
    ],
)
def test_strangers_are_tested_only_where_something_holds_their_code(
    pulls: dict[str, object], sections: dict[str, Any], mistake: str
) -> None:
    document = with_lint(pull_requests={"strangers": "deviceless", **pulls}, **sections)
    assert mistake in "\n".join(mistakes(document))


@pytest.mark.parametrize(("pulls", "sections"), [({"strangers_user": "7:8"}, {}), ({}, CONTAINERS)])
def test_strangers_may_be_tested_apart(pulls: dict[str, object], sections: dict[str, Any]) -> None:
    document = with_lint(pull_requests={"strangers": "deviceless", **pulls}, **sections)
    assert parse_settings(yaml.safe_dump(document)).pull_requests is not None
