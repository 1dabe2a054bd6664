from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from accel_ci.errors import BuildError
from accel_ci.process.own_user import OwnUser
from accel_ci.wheels.uv_environment import PackageSource, resolve, uv_environment
from accel_ci_tests.wheels.wheel_files import write_wheel


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"PIP_INDEX_URL": "http://127.0.0.1/simple"}, {"UV_DEFAULT_INDEX": "http://127.0.0.1/simple"}),
        ({"PIP_EXTRA_INDEX_URL": "http://a http://b"}, {"UV_INDEX": "http://a http://b"}),
        ({"PIP_FIND_LINKS": "/wheels http://a/b"}, {"UV_FIND_LINKS": "/wheels,http://a/b"}),
        ({"PIP_NO_INDEX": "1"}, {"UV_NO_INDEX": "1"}),
        ({"PIP_CERT": "/ca.pem"}, {"SSL_CERT_FILE": "/ca.pem"}),
        ({"PIP_INDEX_URL": "http://pip", "UV_DEFAULT_INDEX": "http://uv"}, {"UV_DEFAULT_INDEX": "http://uv"}),
        ({"PIP_INDEX_URL": ""}, {}),
    ],
)
def test_settings_of_pip_reach_uv_and_those_of_uv_take_precedence(given: dict[str, str], expected: dict[str, str]) -> None:
    names = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_NO_INDEX", "SSL_CERT_FILE")
    environment = uv_environment(given)
    assert {name: environment[name] for name in names if name in environment} == expected


def test_the_environment_of_the_caller_does_not_leak_in() -> None:
    environment = uv_environment({"VIRTUAL_ENV": "/venv", "PYTHONPATH": "/sources", "PATH": "/bin"})
    assert "VIRTUAL_ENV" not in environment
    assert "PYTHONPATH" not in environment
    assert environment["PATH"] == "/bin"


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, ("--torch-backend", "cpu")),
        ({"PIP_FIND_LINKS": "/wheels"}, ()),  # a mirror has its own PyTorch
        ({"UV_TORCH_BACKEND": "cu130"}, ()),
    ],
)
def test_pytorch_comes_from_its_own_index_unless_the_user_configured_one(
    given: dict[str, str], options: tuple[str, ...]
) -> None:
    assert PackageSource.from_settings("cpu", given).options == options
    assert PackageSource.from_settings(None, given).options == ()


INDEX = "https://me:index-pass@h/simple"


def test_only_what_packages_need_passes() -> None:
    given = {
        "PATH": "/bin",
        "DEPLOY_TOKEN": "x",
        "AWS_PROFILE": "y",
        "CC": "gcc",
        "UV_INDEX": INDEX,
        "https_proxy": "http://p:1",
    }
    assert set(uv_environment(given)) & set(given) == {"PATH", "CC", "UV_INDEX", "https_proxy"}
    assert uv_environment(given, ["AWS_PROFILE"])["AWS_PROFILE"] == "y"


@pytest.mark.parametrize(
    "given",
    [
        {"UV_INDEX": INDEX}, {"PIP_INDEX_URL": INDEX}, {"UV_INDEX_MINE_PASSWORD": "index-pass"}, {"https_proxy": "http://a:b@p"},
        {"UV_KEYRING_PROVIDER": "subprocess"},
    ],
    ids=lambda given: next(iter(given)),
)  # fmt: skip
def test_code_does_not_see_the_password_of_an_index(given: dict[str, str], tmp_path: Path) -> None:
    source = PackageSource.from_settings(None, {"PATH": "/bin", **given})
    assert source.is_apart
    assert set(given) <= set(source.for_packages())
    assert source.for_packages()["UV_NO_BUILD"] == "1"
    code = source.for_code(tmp_path)
    assert not set(given) & set(code)
    assert not any("index-pass" in value for value in code.values())
    assert (code["HOME"], code["PATH"]) == (str(tmp_path), "/bin")


def test_a_build_sees_a_password_that_is_named_for_it(tmp_path: Path) -> None:
    source = PackageSource.from_settings(None, {"UV_INDEX": INDEX, "HOME": "/mine"}, keep=["UV_INDEX", "HOME"])
    assert not source.is_apart
    code = source.for_code(tmp_path)
    assert (code["UV_INDEX"], code["HOME"]) == (INDEX, "/mine")
    assert "UV_NO_BUILD" not in source.for_packages()


def test_a_login_in_netrc_is_a_password_of_the_index(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine h login me password netrc-pass\n")
    given = {"HOME": str(tmp_path), "UV_INDEX": "mine=https://h/simple"}
    assert PackageSource.from_settings(None, given).is_apart
    assert not PackageSource.from_settings(None, {**given, "UV_INDEX": "https://other/simple"}).is_apart


def test_without_passwords_builds_are_as_always(tmp_path: Path) -> None:
    source = PackageSource.from_settings(None, {"HOME": "/mine", "UV_DEFAULT_INDEX": "https://h/simple"})
    assert not source.is_apart
    code = source.for_code(tmp_path)
    assert code["UV_DEFAULT_INDEX"] == "https://h/simple"
    assert code["UV_CACHE_DIR"] == "/mine/.cache/uv"


def test_another_user_has_a_cache_of_its_own(tmp_path: Path) -> None:
    source = PackageSource.from_settings(None, {"HOME": "/mine"}, user=OwnUser(1, 1))
    assert source.is_apart
    assert source.for_code(tmp_path)["UV_CACHE_DIR"] == str(tmp_path / ".cache" / "uv")


def test_packages_that_a_wheel_asks_for_by_their_addresses_are_refused_with_only_wheels(tmp_path: Path) -> None:
    other = write_wheel(tmp_path / "private", name="other-1.0", files={
        "other-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: other\nVersion: 1.0\n", "toy/__init__.py": None,
        "other.py": b"",
    })  # fmt: skip
    metadata = f"Metadata-Version: 2.1\nName: toy\nVersion: 1.0\nRequires-Dist: other @ {other.as_uri()}\n"
    toy = write_wheel(tmp_path, files={"toy-1.0.dist-info/METADATA": metadata.encode()})
    source = PackageSource(uv_environment({**os.environ, "UV_NO_INDEX": "1"}))
    requirements, python = [f"toy @ {toy.as_uri()}"], sys.executable
    assert "other @" in resolve(requirements, python, source, timeout_s=60)
    with pytest.raises(BuildError, match=f"by their addresses.*other @ {other.as_uri()}"):
        resolve(requirements, python, replace(source, only_wheels=True), timeout_s=60)
    both = [*requirements, f"other @ {other.as_uri()}"]
    assert "other @" in resolve(both, python, replace(source, only_wheels=True), timeout_s=60)
