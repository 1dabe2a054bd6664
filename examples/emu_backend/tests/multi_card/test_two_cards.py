"""Two cards at once: they are distinct, and data can be copied from one to the other."""

import pytest
import torch


@pytest.fixture(autouse=True)
def two_cards() -> None:
    """Report what is missing instead of failing at the first tensor."""
    if torch.accelerator.device_count() < 2:
        pytest.fail(f"two cards are needed, {torch.accelerator.device_count()} visible")


def test_both_cards_are_seen() -> None:
    """Each card has its own name."""
    assert torch.emu.get_device_name(0) != torch.emu.get_device_name(1)


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
def test_a_tensor_goes_from_card_to_card(source: int, target: int) -> None:
    """Copies work in both directions and are independent."""
    numbers = torch.arange(6.0, device=f"emu:{source}")
    there = numbers.to(f"emu:{target}")
    numbers.zero_()
    assert there.device == torch.device("emu", target)
    assert there.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_tensors_of_two_cards_do_not_mix() -> None:
    """As with any accelerator: a tensor has to be moved first."""
    with pytest.raises(RuntimeError):
        torch.ones(2, device="emu:0") + torch.ones(2, device="emu:1")


def test_a_batch_is_split_over_the_cards() -> None:
    """A replica of the model on each card computes half of the batch."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 2)
    batch = torch.randn(8, 4)
    answers = []
    for index, half in enumerate(batch.chunk(2)):
        replica = torch.nn.Linear(4, 2)
        replica.load_state_dict(layer.state_dict())
        replica.to(f"emu:{index}")
        answers.append(replica(half.to(f"emu:{index}")).detach().cpu())
    torch.testing.assert_close(torch.cat(answers), layer(batch).detach())


def test_a_model_is_split_over_the_cards() -> None:
    """One layer on each card: the forward pass crosses over. (Python backends have no backward pass beyond card 0.)"""
    torch.manual_seed(0)
    first, second = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)
    batch = torch.randn(5, 4)
    with torch.no_grad():
        expected = second(torch.relu(first(batch)))
        first.to("emu:0")
        second.to("emu:1")
        found = second(torch.relu(first(batch.to("emu:0"))).to("emu:1"))
    assert found.device == torch.device("emu", 1)
    torch.testing.assert_close(found.cpu(), expected)
