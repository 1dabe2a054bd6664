"""The card that `emu` without an index means."""

import threading

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.emu.device_count() < 2, reason="needs two cards")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, device="emu"),
        lambda: torch.ones(2, device=torch.device("emu")),
        lambda: torch.tensor([1.0], device="emu"),
        lambda: torch.ones(2).to("emu"),
        lambda: torch.ones(2).to(torch.device("emu"), torch.float64),
        lambda: torch.ones(2).to(device="emu"),
        lambda: torch.ones(2).emu(),
        lambda: torch.nn.Linear(2, 2).to("emu").weight,
        lambda: torch.ones(2, device="emu") + 1,
    ],
)
def test_tensors_are_on_the_card_of_the_context(make) -> None:
    """However the device is named."""
    with torch.emu.device(1):
        assert make().device == torch.device("emu:1")
    assert make().device == torch.device("emu:0")


def test_contexts_nest_and_end() -> None:
    """The innermost one counts, and an exception ends it too."""
    with torch.emu.device("emu:1"):
        with pytest.raises(ZeroDivisionError), torch.emu.device(0):
            assert (torch.emu.current_device(), torch.ones(1, device="emu").device.index) == (0, 0)
            raise ZeroDivisionError
        assert (torch.emu.current_device(), torch.ones(1, device="emu").device.index) == (1, 1)
        assert torch.ones(1, device="emu:0").device.index == 0
        assert torch.ones(1).device.type == "cpu"
    assert torch.emu.current_device() == 0


def test_a_context_is_for_its_thread() -> None:
    """Another thread has its own current card."""
    found = []
    with torch.emu.device(1):
        other = threading.Thread(target=lambda: found.append((torch.emu.current_device(), torch.ones(1, device="emu"))))
        other.start()
        other.join()
    [(index, tensor)] = found
    assert (index, tensor.device.index) == (0, 0)


def test_a_card_that_does_not_exist_is_refused() -> None:
    """The message lists the cards."""
    with pytest.raises(RuntimeError, match="emu:100 does not exist"):
        torch.emu.device(100)
