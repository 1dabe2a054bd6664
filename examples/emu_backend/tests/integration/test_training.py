"""Several parts of PyTorch together, as in a user's program."""

import copy
import io

import pytest
import torch
from torch import nn


def small_model() -> nn.Module:
    """Return a model with a convolution, a normalisation and dense layers, the same on every call."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4, 16),
        nn.GELU(),
        nn.Linear(16, 2),
    )


def task(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures that are brighter at the top or at the bottom, and a label for each."""
    torch.manual_seed(1)
    labels = torch.arange(32) % 2
    pictures = torch.randn(32, 1, 8, 8)
    pictures[labels == 0, :, :4] += 1.0
    pictures[labels == 1, :, 4:] += 1.0
    return pictures.to(device), labels.to(device)


def train(model: nn.Module, device: str, optimizer: type[torch.optim.Optimizer], steps: int = 15) -> list[float]:
    """Train for some steps and return the losses."""
    pictures, labels = task(device)
    parts = optimizer(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        parts.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        parts.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW], ids=lambda kind: kind.__name__
)
def test_the_loss_falls_as_on_the_cpu(optimizer: type[torch.optim.Optimizer]) -> None:
    """A model learns on the card, with the same losses as on the CPU at each step."""
    on_card = train(small_model().to("emu"), "emu", optimizer)
    on_cpu = train(small_model(), "cpu", optimizer)
    assert on_card[-1] < on_card[0]
    assert on_card == pytest.approx(on_cpu, rel=1e-3)


def test_a_state_dict_is_saved_and_loaded() -> None:
    """A trained model can be saved and loaded, on the card and on the CPU."""
    model = small_model().to("emu")
    train(model, "emu", torch.optim.Adam, steps=2)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    pictures, _ = task("emu")
    expected = model.eval()(pictures)

    file.seek(0)
    loaded = torch.load(file)
    assert {value.device.type for value in loaded.values()} == {"emu"}
    again = small_model().to("emu").eval()
    again.load_state_dict(loaded)
    torch.testing.assert_close(again(pictures).cpu(), expected.cpu())

    file.seek(0)
    on_cpu = torch.load(file, map_location="cpu")
    assert {value.device.type for value in on_cpu.values()} == {"cpu"}
    again = small_model().eval()
    again.load_state_dict(on_cpu)
    torch.testing.assert_close(again(pictures.cpu()), expected.cpu())


def test_a_model_is_copied_and_comes_back() -> None:
    """A deep copy is an independent model, and a model can be moved off the card."""
    model = small_model().to("emu")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight.zero_()
    assert model[0].weight.abs().sum().item() > 0
    assert {value.device.type for value in model.cpu().state_dict().values()} == {"cpu"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype: torch.dtype) -> None:
    """Products run in the lower precision, sums in float32, and the gradients have the type of the weights."""
    layer = nn.Linear(8, 8, device="emu")
    batch = torch.randn(4, 8, device="emu")
    with torch.autocast("emu", dtype=dtype):
        product = layer(batch)
        loss = torch.softmax(product, dim=-1).square().sum()
    assert product.dtype == dtype
    assert loss.dtype == torch.float32
    loss.backward()
    assert layer.weight.grad.dtype == torch.float32
    assert layer(batch).dtype == torch.float32


def test_a_data_loader_feeds_the_card() -> None:
    """Batches from worker processes, which have the backend too, reach the card."""
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    batches = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1)
    assert sum(batch.to("emu").sum().item() for (batch,) in batches) == 28.0
