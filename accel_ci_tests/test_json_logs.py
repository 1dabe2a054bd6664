"""Log lines as JSON: of a run by the handlers of the cluster's `dagster.yaml`, and of the command line."""

import json
import logging
import subprocess
import sys
import threading
from typing import Any

import dagster as dg
import pytest
import yaml

from accel_ci.errors import ConfigError
from accel_ci.json_logs import FORMAT_ENVIRONMENT, JsonLines, about, log_formatter
from accel_ci.redaction import Redactor
from accel_ci_tests.fixtures.checkout import ROOT


def lines_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_the_lines_of_a_run_have_its_ids(capsys: pytest.CaptureFixture[str]) -> None:
    section = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "base" / "dagster.yaml").read_text())["python_logs"]
    logger = logging.getLogger("accel_ci.somewhere")

    @dg.op
    def waits(context: dg.OpExecutionContext) -> None:
        context.log.info("of the step\nin two lines")
        thread = threading.Thread(target=logger.warning, args=("of a %s", "thread"))
        thread.start()
        thread.join()

    @dg.job
    def nightly() -> None:
        waits()

    tags = {"dagster/partition/revision": "nightly-20261127", "dagster/partition/variant": "py3"}
    logging.getLogger("accel_ci").setLevel(logging.INFO)
    with dg.DagsterInstance.local_temp(overrides={"python_logs": section, "telemetry": {"enabled": False}}) as instance:
        result = nightly.execute_in_process(instance=instance, tags=tags)
    found = {line["message"]: line for line in lines_of(capsys.readouterr().out)}
    assert {"of the step\nin two lines", "of a thread"} <= found.keys()
    for message, logger_name, level in (
        ("of the step\nin two lines", "dagster", "info"),
        ("of a thread", "accel_ci", "warning"),
    ):
        line = found[message]
        assert (line["run"], line["build"], line["job"], line["step"], line["level"]) == (
            result.run_id, "nightly-20261127~py3", "nightly", "waits", level,
        )  # fmt: skip
        assert line["logger"].startswith(logger_name)


def test_the_command_line_has_the_ids_of_the_stage_in_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_ENVIRONMENT, "json")
    formatter, record = log_formatter(), logging.LogRecord("accel_ci.x", logging.INFO, "f.py", 1, "%d tries", (3,), None)
    shown: list[str] = []
    with about(run="r1", build="b~v", stage="wheel"):
        thread = threading.Thread(target=lambda: shown.append(formatter.format(record)))
        thread.start()
        thread.join()
    [line] = lines_of("\n".join([*shown]))
    assert (line["run"], line["build"], line["stage"], line["message"]) == ("r1", "b~v", "wheel", "3 tries")
    assert "run" not in json.loads(formatter.format(record))


def test_an_exception_and_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_ci.json_logs.redact", Redactor(["hunter22-secret"]).text)
    try:
        raise ValueError("with hunter22-secret")
    except ValueError:
        record = logging.LogRecord("accel_ci", logging.ERROR, "f.py", 1, 'said "%s"', ("hunter22-secret",), sys.exc_info())
    line = json.loads(JsonLines().format(record))
    assert line["message"] == 'said "***"'
    assert line["exception"].endswith("ValueError: with ***")


def test_an_unknown_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_ENVIRONMENT, "xml")
    with pytest.raises(ConfigError, match="ACCEL_CI_LOG_FORMAT is 'xml'; set it to text or json"):
        log_formatter()


def test_the_command_line_refuses_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_ENVIRONMENT, "xml")
    done = subprocess.run(
        [sys.executable, "-m", "accel_ci.cli", "validate"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "accel-ci: ACCEL_CI_LOG_FORMAT is 'xml'; set it to text or json\n"
