from __future__ import annotations

import pytest

from accel_ci.wheels.uv_environment import PackageSource, uv_environment


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
