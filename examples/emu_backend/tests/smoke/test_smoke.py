"""The first things that anybody does with the device; `import torch` must be enough for all of them."""

import torch


def test_the_device_is_found_through_autoload() -> None:
    """Nothing here imports the backend, and yet torch knows it."""
    assert torch.accelerator.current_accelerator() == torch.device("emu")
    assert torch.accelerator.is_available()
    assert torch.emu.is_available()
    assert torch.emu.device_count() == torch.accelerator.device_count() >= 1
    assert torch.emu.current_device() == torch.accelerator.current_device_index() == 0


def test_a_tensor_goes_to_the_card_and_back() -> None:
    """Values, type and shape survive both copies, and the copies are independent."""
    numbers = torch.arange(6, dtype=torch.int16).reshape(2, 3)
    on_card = numbers.to("emu")
    assert on_card.device == torch.device("emu", 0)
    assert on_card.is_emu
    numbers.zero_()
    assert on_card.cpu().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert on_card.cpu().dtype == torch.int16


def test_add() -> None:
    """One and one is two, on the card."""
    total = torch.ones(3, device="emu") + torch.ones(3, device="emu")
    assert total.device.type == "emu"
    assert total.tolist() == [2.0, 2.0, 2.0]


def test_a_tensor_can_be_made_on_the_card() -> None:
    """From numbers, from nothing, and at random."""
    assert torch.tensor([1.5, 2.5], device="emu").tolist() == [1.5, 2.5]
    assert torch.full((2,), 7, device="emu").tolist() == [7, 7]
    assert torch.arange(3, device="emu").tolist() == [0, 1, 2]
    assert torch.rand(4, device="emu").device.type == "emu"


def test_a_tensor_shows_its_device() -> None:
    """The printed form differs from that of a CPU tensor."""
    assert repr(torch.ones(2, device="emu")) == "tensor([1., 1.], device='emu:0')"


def test_backward() -> None:
    """The gradient is computed on the card and stays there."""
    x = torch.tensor([1.0, 2.0, 3.0], device="emu", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad is not None
    assert x.grad.device.type == "emu"
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


def test_linear() -> None:
    """A layer that is moved to the card has the same result as on the CPU."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 2)
    batch = torch.randn(3, 4)
    expected = layer(batch)
    found = layer.to("emu")(batch.to("emu"))
    assert layer.weight.device.type == "emu"
    torch.testing.assert_close(found.cpu(), expected)
