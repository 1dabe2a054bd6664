"""Everything that depends on the environment, seen from outside: real processes, as a CI system starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

ADD = "import torch; print((torch.ones(2, device='emu') + 1).tolist())"
RIGHT, WRONG = "[2.0, 2.0]", "[5.0, 5.0]"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs Python with only the given settings of the backend in its environment."""

    def start(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("EMU_")}
        environment = {**clean, "EMU_STATE_DIR": str(tmp_path / "state"), **settings}
        return subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, cwd=tmp_path
        )

    return start


def output(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a process that succeeded."""
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def health(run: Run, **settings: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code of the health probe and its result for each card."""
    done = run("-m", "torch_emu.health", **settings)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


HEALTHY = [{"card": 0, "healthy": True, "reason": None}, {"card": 1, "healthy": True, "reason": None}]


def test_healthy_cards(run: Run) -> None:
    """One line for each card, and success."""
    assert health(run) == (0, HEALTHY)


def test_the_probe_names_physical_cards(run: Run) -> None:
    """A card keeps its id if it is the only visible one."""
    code, lines = health(run, EMU_CARDS="3", EMU_VISIBLE_CARDS="2", EMU_FAULTS="bad_card:0")
    assert (code, lines) == (0, [{"card": 2, "healthy": True, "reason": None}])


@pytest.mark.parametrize(
    "settings",
    [{"EMU_FAULTS": "missing_device"}, {"EMU_VISIBLE_CARDS": ""}, {"EMU_CARDS": "0"}],
    ids=["missing", "hidden", "none"],
)
def test_no_card_is_a_failure(run: Run, settings: dict[str, str]) -> None:
    """The probe reports that no card is visible."""
    code, lines = health(run, **settings)
    assert code == 1
    assert [line["reason"] for line in lines] == ["no card is visible"]


def test_a_bad_card_is_found(run: Run) -> None:
    """The probe fails and reports the card and its fault."""
    code, lines = health(run, EMU_FAULTS="bad_card:1")
    assert code == 1
    assert lines[0] == HEALTHY[0]
    assert lines[1]["card"] == 1
    assert not lines[1]["healthy"]
    assert "wrong numbers" in lines[1]["reason"]


def test_a_bad_card_computes_wrongly_and_the_other_does_not(run: Run) -> None:
    """The fault follows the physical card, not the device index."""
    code = "import torch\nfor i in 0, 1: print((torch.ones(2, device=f'emu:{i}') + 1).tolist())"
    found = output(run("-c", code, EMU_FAULTS="bad_card:0", EMU_VISIBLE_CARDS="1,0")).splitlines()
    assert found[0] == RIGHT
    assert found[1] != RIGHT


def test_a_card_goes_bad_and_stays_bad(run: Run) -> None:
    """After its last good kernel it is bad in that process, in each later one, and for the probe."""
    code = (
        "import torch\nx = torch.empty(1, device='emu').copy_(torch.ones(1))\nfor _ in range(5): print((x + 1).item())"
    )
    settings = {"EMU_FAULTS": "bad_card:0@8"}
    assert health(run, **settings) == (0, HEALTHY)
    assert output(run("-c", code, **settings)).split() == ["2.0"] * 5
    assert output(run("-c", code, **settings)).split() == ["2.0"] * 3 + ["5.0"] * 2
    assert output(run("-c", code, **settings)).split() == ["5.0"] * 5
    code_of_probe, lines = health(run, **settings)
    assert code_of_probe == 1
    assert [line["healthy"] for line in lines] == [False, True]


def test_a_slow_card_takes_longer_and_is_healthy(run: Run) -> None:
    """Each kernel takes longer by the factor, with correct results."""
    code = """if True:
        import time, torch
        def seconds(device):
            x = torch.ones(300, 300, device=device)
            start = time.perf_counter()
            for _ in range(20): x @ x
            return time.perf_counter() - start
        seconds("emu:0"), seconds("emu:1")
        print(seconds("emu:1") / seconds("emu:0"))
    """
    settings = {"EMU_FAULTS": "slow_card:1@10", "OMP_NUM_THREADS": "1"}
    assert float(output(run("-c", code, **settings))) > 4
    assert health(run, **settings) == (0, HEALTHY)


def test_a_missing_card(run: Run) -> None:
    """The other cards keep their ids."""
    code = "import torch; print(torch.emu.device_count(), torch.emu.get_device_name(0))"
    assert output(run("-c", code, EMU_FAULTS="missing_device:0")) == "1 emulated card 1"


def test_no_card_leaves_a_usable_torch(run: Run) -> None:
    """Without cards, the accelerator is not available, and using it gives the reason."""
    code = """if True:
        import torch
        print(torch.accelerator.is_available(), torch.emu.device_count(), torch.ones(2).sum().item())
        torch.ones(2, device="emu")
    """
    done = run("-c", code, EMU_FAULTS="missing_device")
    assert done.stdout.strip() == "False 0 2.0"
    assert "no card is visible" in done.stderr


def test_a_flaky_operator_is_wrong_in_one_of_three_processes(run: Run) -> None:
    """Wrong, right, right, wrong; always the same within a process, and for in-place and out variants too."""
    code = """if True:
        import torch
        x = torch.ones(2, device="emu")
        print((x + 1).tolist(), x.clone().add_(1).tolist(), torch.add(x, 1, out=torch.empty(2, device="emu")).tolist())
    """
    settings = {"EMU_FAULTS": "flaky:add"}
    runs = [output(run("-c", code, **settings)) for _ in range(4)]
    assert runs == [" ".join([turn] * 3) for turn in (WRONG, RIGHT, RIGHT, WRONG)]
    assert health(run, **settings) == (0, HEALTHY)


def test_a_process_that_does_not_run_the_operator_takes_no_turn(run: Run) -> None:
    """Only processes with the fault count."""
    settings = {"EMU_FAULTS": "flaky:add"}
    output(run("-c", "import torch; torch.ones(2, device='emu') * 2", **settings))
    assert output(run("-c", ADD, **settings)) == WRONG


def test_a_crashing_operator_kills_the_process(run: Run) -> None:
    """The process dies from the signal; its earlier output remains, and the probe survives."""
    settings = {"EMU_FAULTS": "crash:add"}
    done = run("-c", "import torch; print('before', flush=True)\n" + ADD, **settings)
    assert done.returncode == -signal.SIGSEGV
    assert done.stdout.split() == ["before"]
    assert health(run, **settings) == (0, HEALTHY)


def test_a_hanging_operator_never_returns(run: Run, tmp_path: Path) -> None:
    """The process stays alive and silent until it is ended, and then ends."""
    code = "import torch; x = torch.ones(2, device='emu'); print('before', flush=True); x + 1; print('after')"
    environment = {**os.environ, "EMU_FAULTS": "hang:add", "EMU_STATE_DIR": str(tmp_path / "state")}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "before\n"
        time.sleep(0.5)
        assert process.poll() is None
        process.terminate()
        assert process.wait(10) == -signal.SIGTERM
        assert process.stdout.read() == ""
    assert health(run, EMU_FAULTS="hang:add") == (0, HEALTHY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"EMU_FAULTS": "explode:add"}, "'explode:add' is not a known fault; allowed"),
        ({"EMU_FAULTS": "flaky:no_such_op"}, "aten has no operator 'no_such_op'"),
        ({"EMU_FAULTS": "crash:linear"}, "decomposes 'linear'"),
        ({"EMU_VISIBLE_CARDS": "first"}, "'first' is not a card"),
        ({"EMU_CARDS": "many"}, "EMU_CARDS='many'"),
    ],
    ids=["fault", "operator", "composite", "visible", "cards"],
)
def test_a_mistake_is_an_error_at_import(run: Run, settings: dict[str, str], message: str) -> None:
    """A misspelt setting must not look like a machine without faults."""
    done = run("-c", "import torch", **settings)
    assert done.returncode == 1
    assert message in done.stderr


def test_import_in_every_order_and_again(run: Run) -> None:
    """Backend first, torch first, both again from nothing, and children of both kinds."""
    code = """if True:
        import importlib, multiprocessing, os, sys
        import torch_emu, torch
        importlib.reload(torch_emu)
        for name in [name for name in sys.modules if name.startswith("torch_emu")]:
            del sys.modules[name]
        import torch_emu
        torch_emu._autoload()
        def add(connection):
            connection.send((torch.ones(2, device="emu") + 1).tolist())
        add_here = (torch.ones(2, device="emu") + 1).tolist()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if (torch.ones(2, device="emu") + 1).tolist() == [2.0, 2.0] else 1)
        print(add_here, os.waitpid(pid, 0)[1], torch_emu.__version__.startswith("0.1.0"))
    """
    assert output(run("-c", code)) == f"{RIGHT} 0 True"


def test_a_spawned_child_has_the_device(run: Run, tmp_path: Path) -> None:
    """A tensor can be made on the card in a child that imports everything again."""
    script = tmp_path / "spawn.py"
    script.write_text(
        "import multiprocessing, torch\n"
        "def total(size): return torch.ones(size, device='emu').sum().item()\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(total, [3]))\n"
    )
    assert output(run(str(script))) == "[3.0]"


def test_autoload_can_be_turned_off(run: Run) -> None:
    """Torch then does not know the device until the backend is imported."""
    code = "import torch; print(hasattr(torch, 'emu')); import torch_emu; print(torch.emu.device_count())"
    assert output(run("-c", code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")).split() == ["False", "2"]
