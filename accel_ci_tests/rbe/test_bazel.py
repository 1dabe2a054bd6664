"""The command line and the cleanup of Bazel. A script takes the place of Bazel in tests that end it."""

from __future__ import annotations

import json
import re
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from accel_ci.errors import BuildError
from accel_ci.model import SourceBuild
from accel_ci.process.tree import with_argument
from accel_ci.rbe.bazel import (
    BAZEL_ENVIRONMENT,
    BazelContext,
    clean_up_abandoned,
    find_bazel,
    read_secrets,
)
from accel_ci.rbe.credentials import credentials_pipe
from accel_ci_tests.fixtures.bazel import rbe_settings, run_passes, source_build, start_driver
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.recorded import player

SECRET = """s3cr3t=t'o"k<e>n&\\x"""

# A Bazel that starts a server in its own session, as the real one does, records what it got, and waits.
_HANGING = """
import json, os, subprocess, time
server = [sys.executable, "-c", "import time; time.sleep(600)", "--output_base=" + options["--output_base"]]
subprocess.Popen(server, start_new_session=True)
pathlib.Path({seen!r}).write_text(json.dumps([mode, said, sys.argv, dict(os.environ)]))
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _no_bazel_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BAZEL_ENVIRONMENT, raising=False)


@pytest.fixture
def sources(tmp_path: Path) -> SourceBuild:
    workspace = tmp_path / "sources"
    workspace.mkdir()
    return source_build(workspace)


def everything_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_only_this_user_can_read_the_credentials_which_are_on_no_disk(tmp_path: Path) -> None:
    with credentials_pipe(tmp_path / "private", {"x-key": 'a"b\\c d'}, events=True) as pipe, ThreadPoolExecutor() as threads:
        assert stat.S_IMODE(pipe.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(pipe.path.parent.stat().st_mode) == 0o700
        pipe.serve()  # nobody reads, and nobody waits
        for _ in range(2):  # whoever opens it gets all of it, however often
            read = threads.submit(pipe.path.read_text)
            while not read.done():
                pipe.serve()
            lines = [r'build "--remote_header=x-key=a\"b\\c d"', r'build "--bes_header=x-key=a\"b\\c d"']
            assert read.result().splitlines()[:2] == lines
            assert set(read.result().splitlines()) == set(lines)  # a slow reader gets it twice, which changes nothing
        assert pipe.path.is_fifo()
    assert not pipe.path.exists()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_pipe_of_credentials_goes_after_any_error(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), credentials_pipe(tmp_path, {"x": "y"}, events=False) as pipe:
        raise error
    assert not pipe.path.exists()


def test_the_variable_of_a_missing_secret_is_named() -> None:
    settings = rbe_settings("bazel", headers={"x-key": "SOME_KEY"})
    with pytest.raises(BuildError, match=r"^rbe\.headers\.x-key: SOME_KEY is not set in the environment"):
        read_secrets(settings, {})
    with pytest.raises(BuildError, match="SOME_KEY holds a line break") as caught:
        read_secrets(settings, {"SOME_KEY": "abc\nbuild --x"})
    assert "abc" not in str(caught.value)
    assert read_secrets(settings, {"SOME_KEY": SECRET}) == {"x-key": SECRET}


def test_a_missing_bazel_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no-such-bazel is not installed; install bazelisk"):
        find_bazel(rbe_settings("no-such-bazel"), {"PATH": str(tmp_path)})


def test_the_command_line_and_environment_of_bazel(
    tmp_path: Path, sources: SourceBuild, context: BazelContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", SECRET)
    monkeypatch.setenv("SDK", "here")
    monkeypatch.setenv("OTHER", "there")
    seen = tmp_path / "seen"
    seen.mkdir()
    extra = f"""
import json, os
pathlib.Path({str(seen)!r}, str(len(os.listdir({str(seen)!r})))).write_text(json.dumps([sys.argv[1:], dict(os.environ)]))"""
    settings = rbe_settings(
        player(tmp_path, "cached", extra),
        targets=["//a/...", "-//a/b"],
        configs=["ci"],
        test_tag_filters=["gpu", "-tpu"],
        flaky_test_attempts=3,
        executor="grpcs://remote.example",
        headers={"x-key": "SOME_KEY"},
        pass_environment=["SDK"],
        flags=["--define=variant={variant}"],
        multi_card={"tag": "multi-card", "strategy": "local", "flags": ["--run_under=//ci:all"]},
    )
    assert run_passes(settings, sources, context) == [0, 0]
    (tests, environment), (several, _) = (json.loads((seen / name).read_text()) for name in ("0", "1"))
    assert tests[tests.index("--") :] == ["--", "//a/...", "-//a/b"]
    assert {
        "--test_tag_filters=gpu,-tpu,-multi-card", "--flaky_test_attempts=3", "--keep_going", "--config=ci",
        "--remote_executor=grpcs://remote.example", "--remote_download_outputs=minimal", "--define=variant=py3",
    } <= set(tests)  # fmt: skip
    assert {"--test_tag_filters=multi-card,-tpu", "--strategy=TestRunner=local", "--run_under=//ci:all"} <= set(several)
    assert environment["SDK"] == "here"
    assert not {"SOME_KEY", "OTHER"} & environment.keys()
    assert "s3cr3t" not in json.dumps([tests, several, environment])


def test_the_output_of_a_run_holds_no_secret(
    tmp_path: Path, sources: SourceBuild, context: BazelContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bazel repeats its options in its events, and the server in its log."""
    monkeypatch.setenv("SOME_KEY", SECRET)
    extra = """
print(said)
with events.open("a") as stream:
    import json
    secret = said.partition("x-key=")[2].rpartition('"')[0].replace('\\\\"', '"').replace("\\\\\\\\", "\\\\")
    stream.write('{"id":{"optionsParsed":{}},"optionsParsed":' + json.dumps({"cmdLine": [secret]}) + "}\\n")
    stream.write('{"id":{"progress":{}},"progress":' + json.dumps({"stderr": "x " + secret}) + "}\\n")
log = pathlib.Path(options["--output_base"], "java.log.1")
log.parent.mkdir(parents=True, exist_ok=True)
log.write_text(said)
"""
    settings = rbe_settings(player(tmp_path, "cached", extra), headers={"x-key": "SOME_KEY"})
    lines: list[str] = []
    assert run_passes(settings, sources, context, lines) == [0]
    kept = (context.results / "tests" / "bep.ndjson").read_text()
    assert "optionsParsed" not in kept
    assert "x ***" in kept
    assert "--remote_header=x-key=" in (context.results / "bazel.log").read_text()
    for place in (context.folder, context.results):
        assert b"s3cr3t" not in everything_below(place)
        assert not re.search(rb"t'o|k<e>n", everything_below(place))
    assert not context.private.exists()
    assert (context.results / "tests" / "testlogs" / "shim" / "parity_test" / "test.xml").is_file()
    assert lines[1].startswith("bazel: 1/5 ")


def test_bazel_is_ended_at_its_time_limit(tmp_path: Path, sources: SourceBuild, context: BazelContext) -> None:
    hanging = player(tmp_path, "cached", _HANGING.format(seen=str(tmp_path / "seen")))
    for limit in (5, 20, 60):  # a busy machine needs longer to get there
        assert run_passes(rbe_settings(hanging, timeout_seconds=limit), sources, context) == [None]
        if (tmp_path / "seen").is_file():
            break
    assert (tmp_path / "seen").is_file(), "it was running, with its server"
    assert not with_argument(f"--output_base={context.output_base}")
    assert (context.results / "tests" / "bep.ndjson").is_file(), "its output until then is kept"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_driver_that_is_ended_leaves_nothing(
    tmp_path: Path, sources: SourceBuild, context: BazelContext, number: signal.Signals
) -> None:
    """After SIGKILL, whoever looks next cleans up: the server, which a real Bazel ends by itself, and the files."""
    seen = tmp_path / "seen.json"
    bazel = player(tmp_path, "cached", _HANGING.format(seen=str(seen)))
    driver = start_driver(rbe_settings(bazel, headers={"x-key": "SOME_KEY"}), sources, context, {"SOME_KEY": "s3cr3t"})
    try:
        wait_for(lambda: driver.poll() is None and seen.is_file() and seen.stat().st_size > 0)
        mode, text, argv, environment = json.loads(seen.read_text())
        assert (mode, "s3cr3t" in text) == ("0o600", True)
        assert "s3cr3t" not in json.dumps([argv, environment])
        assert b"s3cr3t" not in everything_below(context.folder), "before the driver ends, too"
        driver.send_signal(number)
        driver.wait(60)
    finally:
        driver.kill()
        driver.wait()
    if number == signal.SIGKILL:
        wait_for(lambda: not with_argument(f"--symlink_prefix={context.private / 'bazel-'}"))  # the client
        folders = context.folder.parent
        assert clean_up_abandoned(folders, dry_run=True) == [str(context.folder)]
        assert context.private.exists()
        with FileLock(context.folder / "lock"):
            assert clean_up_abandoned(folders) == [], "a run has it now"
        assert clean_up_abandoned(folders) == [str(context.folder)]
        assert clean_up_abandoned(folders) == []
    assert not with_argument(f"--output_base={context.output_base}")
    assert not context.private.exists()
    assert b"s3cr3t" not in everything_below(context.folder)
