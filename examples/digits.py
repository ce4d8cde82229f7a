"""Train a small classifier of handwritten digits with every tensor on the card.

    python examples/digits.py                 an MLP on the card
    python examples/digits.py --conv          a small convolutional network
    python examples/digits.py --device cpu    the same run on the CPU

Weights and batch order are drawn on the CPU from one seed and then moved, so that both devices
compute the same training run. The data set is the one that ships with scikit-learn (1 797 images
of 8 x 8 pixels).
"""

from __future__ import annotations

import argparse
import sys
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
    images, labels = (tensor.to(device) for tensor in testing.tensors)
    with torch.no_grad():
        accuracy = (network(images).argmax(1) == labels).float().mean().item()
    if progress:
        print(f"\n{device}: {accuracy:.1%} of {len(labels)} test images are right")
    return Run(device, losses, accuracy)


def main() -> None:
    """Read the flags, train, and say what fell back to the CPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="spyre", help="spyre, spyre:1, cpu")
    parser.add_argument("--conv", action="store_true", help="a convolutional network")
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    if arguments.device.startswith("spyre"):
        with torch.spyre.fallback_policy("silent"):
            train(arguments.device, arguments.conv, arguments.epochs)
        print(torch.spyre.fallback_report())
    else:
        train(arguments.device, arguments.conv, arguments.epochs)


if __name__ == "__main__":
    main()
