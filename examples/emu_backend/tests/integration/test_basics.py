"""The first steps of every user of the image: find the card, put numbers on it, and calculate."""

import pytest
import torch


def test_the_cards_are_enumerated() -> None:
    """Every visible card has an index and a name, and works."""
    count = torch.accelerator.device_count()
    assert count >= 1
    names = {torch.emu.get_device_name(index) for index in range(count)}
    assert len(names) == count
    assert [torch.ones(1, device=f"emu:{index}").item() for index in range(count)] == [1.0] * count


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool], ids=str
)
def test_numbers_survive_the_way_to_the_card_and_back(dtype: torch.dtype) -> None:
    """Tensors of every type that models use."""
    numbers = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    back = numbers.to("emu").cpu()
    assert back.dtype == dtype
    assert torch.equal(back, numbers)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "fmod", "eq", "less"])
def test_arithmetic(name: str) -> None:
    """An operator on two tensors has the same result on the card and on the CPU."""
    torch.manual_seed(0)
    one, other = torch.randn(4, 5), torch.randn(4, 5)
    operator = getattr(torch, name)
    torch.testing.assert_close(operator(one.to("emu"), other.to("emu")).cpu(), operator(one, other))


def test_products_and_sums() -> None:
    """The operators that models are made of."""
    torch.manual_seed(0)
    one, other = torch.randn(8, 16), torch.randn(16, 4)
    product = one.to("emu") @ other.to("emu")
    torch.testing.assert_close(product.cpu(), one @ other)
    torch.testing.assert_close(product.sum(dim=0).cpu(), (one @ other).sum(dim=0))
    torch.testing.assert_close(torch.softmax(product, dim=-1).cpu(), torch.softmax(one @ other, dim=-1))


def test_work_is_done_after_synchronize() -> None:
    """Waiting for the card works and loses nothing."""
    total = torch.arange(100.0, device="emu").sum()
    torch.emu.synchronize()
    assert total.item() == 4950.0
