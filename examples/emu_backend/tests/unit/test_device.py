"""Mistakes that a device which wraps the tensors of another device makes easily."""

import pytest
import torch


def test_devices_do_not_mix() -> None:
    """As on any accelerator, the host's tensors must be moved before a card can use them."""
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device="emu") + torch.ones(2)


def test_a_number_mixes_with_everything() -> None:
    """A tensor without dimensions counts as a number, as in all of PyTorch."""
    assert (torch.ones(2, device="emu") + torch.tensor(2.0)).tolist() == [3.0, 3.0]


def test_a_card_that_is_not_seen_is_refused() -> None:
    """The message lists the devices that exist."""
    with pytest.raises(RuntimeError, match=r"emu:100 does not exist: \d+ visible"):
        torch.ones(2, device="emu:100")


def test_a_view_shares_its_memory() -> None:
    """Writing through a view changes its base, and the other way round."""
    whole = torch.zeros(2, 3, device="emu")
    whole.t()[1].fill_(5)
    assert whole.tolist() == [[0, 5, 0], [0, 5, 0]]
    row = whole[0]
    whole.add_(1)
    assert row.tolist() == [1, 6, 1]


def test_shape_follows_an_operator_that_changes_it_in_place() -> None:
    """The wrapper describes the memory as it is now."""
    x = torch.arange(6.0, device="emu").reshape(2, 3)
    x.t_()
    assert (x.shape, x.stride()) == ((3, 2), (1, 3))
    x.unsqueeze_(0)
    assert x.shape == (1, 3, 2)
    out = torch.empty(0, device="emu")
    torch.add(torch.ones(4, device="emu"), 1, out=out)
    assert out.shape == (4,)
    assert out.tolist() == [2.0] * 4


def test_data_can_be_exchanged() -> None:
    """Assigning .data replaces the values, not only the shape and dtype."""
    x = torch.zeros(2, device="emu", requires_grad=True)
    x.data = torch.ones(3, device="emu")
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert x.data.requires_grad is False


def test_a_pending_conjugation_is_seen() -> None:
    """An operator that does not know of conjugate views must still get conjugated numbers."""
    x = torch.tensor([1 + 2j, 3 - 4j])
    on_card = x.to("emu").conj()
    assert on_card.is_conj()
    torch.testing.assert_close(torch.fft.fft(on_card).cpu(), torch.fft.fft(x.conj()))
    torch.testing.assert_close((on_card.imag + 1).cpu(), x.conj().imag + 1)


def test_a_kernel_resolves_its_own_conjugations() -> None:
    """A kernel that is made of other operators takes conjugate views of its intermediate results."""
    x = torch.tensor([[1 + 2j, 3], [4j, 5 - 1j]])
    torch.testing.assert_close(torch.linalg.pinv(x.to("emu")).cpu(), torch.linalg.pinv(x))


def test_random_numbers_are_repeatable() -> None:
    """The state that can be read and set determines the random numbers."""
    torch.manual_seed(3)
    state = torch.emu.get_rng_state()
    first = torch.rand(3, device="emu").tolist()
    torch.emu.set_rng_state(state)
    assert torch.rand(3, device="emu").tolist() == first


def test_another_layout_is_refused() -> None:
    """There are no sparse tensors, and the message explains that."""
    with pytest.raises(NotImplementedError, match="sparse"):
        torch.eye(2, device="emu").to_sparse()
