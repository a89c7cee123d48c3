"""Train a small convolutional network on handwritten digits, on as many ranks as you like.

    commrun -np 2 python docs/examples/train_digits.py

Every rank holds the whole model and a share of the images. After each backward pass the
optimizer averages the gradients over all ranks, so that all models take the same step.
The data are scikit-learn's 1797 digits of 8 x 8 pixels: nothing is downloaded.
"""

from __future__ import annotations

import sys
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from tqdm import tqdm

import commrt.torch as hvd

EPOCHS = 15
GLOBAL_BATCH = 64  # images in one step, over all ranks: the result depends little on their number
TEST_IMAGES = 360
WANTED_ACCURACY = 0.97


def load_shards() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return this rank's (images, labels) for training, and for testing."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    # One seed on all ranks: they shuffle alike, so their shards do not overlap.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test = order[:TEST_IMAGES][hvd.rank() :: hvd.size()]
    train = order[TEST_IMAGES:]
    # Every rank trains on equally many, or one would wait for partners that have finished.
    train = train[: len(train) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]
    return (images[train], labels[train]), (images[test], labels[test])


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64 * 4 * 4, 10),
    )


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> None:
    batch = max(1, GLOBAL_BATCH // hvd.size())
    model.train()
    progress = tqdm(range(EPOCHS), desc="epochs", disable=hvd.rank() != 0)
    for _ in progress:
        for chosen in torch.randperm(len(labels)).split(batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()  # gradients are sent off as they become ready
            optimizer.step()  # waits for their averages, then updates the weights
        progress.set_postfix(loss=f"{loss.item():.4f}")


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of right answers over all ranks' test images."""
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).sum()
    counts = hvd.allreduce(torch.tensor([float(right), float(len(labels))]), op=hvd.Sum)
    return float(counts[0] / counts[1])


def main() -> int:
    hvd.init()
    started = time.perf_counter()
    torch.set_num_threads(1)  # ranks on one machine share its cores
    torch.manual_seed(hvd.rank())
    train_shard, test_shard = load_shards()

    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    # The ranks drew different weights; all go on from those of rank 0.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    train(model, optimizer, *train_shard)
    reached = accuracy(model, *test_shard)

    seconds = time.perf_counter() - started
    waiting = hvd.stats().exposed_seconds / seconds
    if hvd.rank() == 0:
        print(f"{hvd.size()} rank(s), {seconds:.1f} s")
        print(f"test accuracy: {reached:.2%} (wanted: {WANTED_ACCURACY:.0%})")
        print(f"time spent waiting for communication: {waiting:.1%} (rank 0)")
    return 0 if reached >= WANTED_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
