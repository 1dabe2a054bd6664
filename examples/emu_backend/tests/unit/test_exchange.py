"""The memory of a card in the hands of others: DLPack and storages."""

import copy

import numpy
import pytest
import torch


def test_a_tensor_from_dlpack_shares_the_memory() -> None:
    """Both tensors are on the card, and see what is written to the other, also through views."""
    x = torch.arange(6.0, device="emu").reshape(2, 3)
    y = torch.from_dlpack(x.t())
    assert (y.device, y.shape, y.stride()) == (torch.device("emu:0"), (3, 2), (1, 3))
    y.add_(1)
    x[0].fill_(7)
    assert (y + torch.zeros(3, 2, device="emu")).tolist() == [[7, 4], [7, 5], [7, 6]]
    assert torch.equal(y.cpu(), x.t().cpu())
    assert y.t()[1].tolist() == [4, 5, 6]


def test_the_device_keeps_its_index() -> None:
    """A second card has another number."""
    if torch.emu.device_count() < 2:
        pytest.skip("needs two cards")
    assert torch.from_dlpack(torch.ones(2, device="emu:1")).device == torch.device("emu:1")


def test_memory_outlives_the_tensor_that_it_came_from() -> None:
    """A capsule, a tensor of it, and a storage keep the memory alive."""
    y = torch.from_dlpack(torch.full((1000,), 3.0, device="emu"))
    storage = torch.full((1000,), 3.0, device="emu").untyped_storage()
    others = [torch.zeros(1000, device="emu") for _ in range(10)]
    assert len(others) == 10
    assert y.tolist() == [3.0] * 1000
    assert torch.empty(0, device="emu").set_(storage).tolist() == [3.0] * 1000


def test_dlpack_copies_to_and_from_the_host() -> None:
    """Another library gets the values on the host when it asks for that."""
    x = torch.arange(3.0, device="emu")
    assert torch.from_dlpack(x, device="cpu").device.type == "cpu"
    assert torch.from_dlpack(numpy.arange(3.0), device="emu").tolist() == [0, 1, 2]
    assert numpy.asarray(torch.from_dlpack(x, device="cpu")).tolist() == [0, 1, 2]


@pytest.mark.parametrize("what", ["gradient", "conjugation"])
def test_what_dlpack_cannot_express_is_refused(what: str) -> None:
    """The message says what to do."""
    x = torch.ones(2, dtype=torch.complex64, device="emu")
    x = x.requires_grad_() if what == "gradient" else x.conj()
    with pytest.raises(BufferError, match="detach"):
        x.__dlpack__()


def test_a_storage_is_the_memory_of_a_tensor_and_its_views() -> None:
    """It has the device, the size of the whole, and the bytes."""
    x = torch.arange(4, dtype=torch.uint8, device="emu")
    storage = x[1:3].untyped_storage()
    assert (storage.device, storage.nbytes(), storage.data_ptr()) == (x.device, 4, x.untyped_storage().data_ptr())
    assert storage.cpu().tolist() == [0, 1, 2, 3]
    storage.fill_(9)
    assert x.tolist() == [9] * 4
    assert torch.empty(0, device="emu").untyped_storage().nbytes() == 0


def test_a_tensor_is_set_to_a_storage() -> None:
    """The tensor then shares the memory."""
    x = torch.arange(4.0, device="emu")
    y = torch.empty(0, device="emu").set_(x.untyped_storage(), 1, (2,), (2,))
    assert y.tolist() == [1, 3]
    y.zero_()
    assert x.tolist() == [0, 0, 2, 0]


def test_a_deep_copy_has_memory_of_its_own() -> None:
    """PyTorch copies tensors without a pointer in another way."""
    x = torch.ones(2, device="emu")
    y = copy.deepcopy(x)
    y.zero_()
    assert x.tolist() == [1, 1]
