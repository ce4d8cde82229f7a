"""Train a small classifier of handwritten digits with every tensor on the card.

    python examples/digits.py                 an MLP on the card
    python examples/digits.py --conv          a small convolutional network
    python examples/digits.py --device cpu    the same run on the CPU

On the card the network is trained eagerly, op by op, and tested by ``torch.compile``. At the end
stands what the compiled network launches, and what ran on the CPU instead of the card.

Weights and batch order are drawn on the CPU from one seed and then moved, so that both devices
compute the same training run. The data set is the one that ships with scikit-learn (1 797 images
of 8 x 8 pixels).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True)
class Run:
    """What one training run reached."""

    device: str
    losses: list[float]
    accuracy: float
    predict: Callable[[torch.Tensor], torch.Tensor]


def data() -> tuple[TensorDataset, TensorDataset]:
    """Images (N, 1, 8, 8) float32 in 0..1 and labels (N,) int64: 1 437 to train on, 360 to test."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().div(16).unsqueeze(1)
    labels = torch.from_numpy(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    train, test = order[:1437], order[1437:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def model(conv: bool) -> nn.Module:
    """(N, 1, 8, 8) images to (N, 10) logits."""
    if not conv:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    features = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(256, 10))


def train(device: str, conv: bool = False, epochs: int = 12, progress: bool = True) -> Run:
    """Train from seed 0 on ``device`` and test; the whole run is a function of its arguments."""
    training, testing = data()
    torch.manual_seed(0)
    network = model(conv).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    order = torch.Generator().manual_seed(1)
    batches = DataLoader(
        training, 64, shuffle=True, generator=order, pin_memory=device.startswith("spyre")
    )
    losses = []
    for epoch in range(epochs):
        total = torch.zeros((), device=device)
        for images, labels in batches:
            images, labels = (t.to(device, non_blocking=True) for t in (images, labels))
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        losses.append(total.item() / len(batches))
        if progress:
            bar = "#" * (20 * (epoch + 1) // epochs)
            place = f"epoch {epoch + 1}/{epochs}"
            print(f"\r{device} [{bar:<20}] {place} loss {losses[-1]:.4f}", end="")
            sys.stdout.flush()
    predict = torch.compile(network, fullgraph=True) if device.startswith("spyre") else network
    accuracy = test(predict, device)
    if progress:
        print(f"\n{device}: {accuracy:.1%} of {len(testing)} test images are right")
    return Run(device, losses, accuracy, predict)


def test(predict: Callable[[torch.Tensor], torch.Tensor], device: str) -> float:
    """Return which part of the test images a network gets right."""
    images, labels = (tensor.to(device) for tensor in data()[1].tensors)
    with torch.no_grad():
        return (predict(images).argmax(1) == labels).float().mean().item()


def tell(run: Run) -> None:
    """Print what the compiled network launches for the test images, and all that fell back."""
    images = data()[1].tensors[0].to(run.device)
    with torch.no_grad():
        kernels = torch.spyre.explain(run.predict, images)
    print(f"\nCompiled, for {len(images)} images:\n{kernels}")
    print(f"\nOn the CPU instead of the card:\n{torch.spyre.fallback_report()}")


def main() -> None:
    """Read the flags, train, test, and say what ran where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="spyre", help="spyre, spyre:1, cpu")
    parser.add_argument("--conv", action="store_true", help="a convolutional network")
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    if arguments.device.startswith("spyre"):
        with torch.spyre.fallback_policy("silent"):
            tell(train(arguments.device, arguments.conv, arguments.epochs))
    else:
        train(arguments.device, arguments.conv, arguments.epochs)


if __name__ == "__main__":
    main()
