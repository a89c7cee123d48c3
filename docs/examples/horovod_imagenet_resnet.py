"""A residual network trained by Horovod's recipe for ImageNet, on synthetic images.

    commrun -np 2 python docs/examples/horovod_imagenet_resnet.py
    commrun -np 2 python docs/examples/horovod_imagenet_resnet.py --batches-per-allreduce 2
    commrun -np 2 python docs/examples/horovod_imagenet_resnet.py --use-adasum

The recipe: a learning rate that grows with the number of ranks, warm-up epochs that lead up to
it, decays; with --checkpoint-format 'name-{epoch}.pt' also checkpoints by rank 0, from which the
next run goes on.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

import commrt.torch as hvd

CLASSES = 10
PIXELS = 24
DECAYS = (1 / 3, 2 / 3, 8 / 9)  # at these parts of the training the rate falls to a tenth


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ImageNet's recipe on several ranks")
    parser.add_argument("--checkpoint-format", help="file name with {epoch}; without it none")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument(
        "--batches-per-allreduce", type=int, default=1, help="backward passes in one step"
    )
    parser.add_argument("--use-adasum", action="store_true", help="combine by Adasum, not by mean")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    parser.add_argument("--train-images", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=32, help="images a rank and pass")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--base-lr", type=float, default=0.0125, help="of one rank and one pass")
    parser.add_argument("--warmup-epochs", type=float, default=1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=5e-5, help="weight decay")
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


class Block(nn.Module):
    """Two convolutions and a way past them. The first one may take every second pixel only."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(inner)) + self.shortcut(x)).relu()


def small_resnet(widths: tuple[int, ...] = (16, 32, 64)) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, widths[0], 3, padding=1, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
    ]
    for inputs, outputs in zip((widths[0], *widths), widths, strict=False):
        layers.append(Block(inputs, outputs, stride=1 if inputs == outputs else 2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def synthetic_images(n: int, seed: int) -> TensorDataset:
    """Return n images, each a pattern of its class under noise; the same on every rank."""
    patterns = torch.randn(CLASSES, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    patterns = nn.functional.interpolate(patterns, PIXELS)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    noise = torch.randn(n, 3, PIXELS, PIXELS, generator=generator)
    return TensorDataset(patterns[labels] + 3 * noise, labels)


def make_loader(dataset: TensorDataset, batch_size: int, shuffle: bool) -> DataLoader:
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=shuffle)
    # Without drop_last the last step could have fewer passes than --batches-per-allreduce.
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=shuffle)


class Metric:
    """The mean of a value over everything that any rank has seen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sums = torch.zeros(2, dtype=torch.float64)

    def update(self, mean: torch.Tensor, n: int) -> None:
        self.sums += torch.tensor([float(mean) * n, n], dtype=torch.float64)

    def average(self) -> float:
        """Average over the ranks: all must call it."""
        total, n = hvd.allreduce(self.sums, name=self.name, op=hvd.Sum).tolist()
        return total / n


def accuracy(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (output.argmax(dim=1) == labels).float().mean()


def lr_scaler(args: argparse.Namespace) -> float:
    """A step over more images may be larger; Adasum finds the size over ranks by itself."""
    return args.batches_per_allreduce * (1 if args.use_adasum else hvd.size())


def adjust_learning_rate(
    optimizer: torch.optim.Optimizer, epoch: float, args: argparse.Namespace
) -> None:
    """Set the rate for a moment of the training, such as 1.5: in the middle of the second epoch."""
    if epoch < args.warmup_epochs:
        scale = 1 + (lr_scaler(args) - 1) * epoch / args.warmup_epochs
    else:
        scale = lr_scaler(args) * 0.1 ** sum(epoch >= part * args.epochs for part in DECAYS)
    for group in optimizer.param_groups:
        group["lr"] = args.base_lr * scale


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader,
    epoch: int,
    args: argparse.Namespace,
) -> None:
    model.train()
    loader.sampler.set_epoch(epoch)
    loss_metric, accuracy_metric = Metric("train_loss"), Metric("train_accuracy")
    steps = tqdm(loader, desc=f"epoch {epoch + 1}", disable=hvd.rank() != 0, mininterval=1)
    for step, (images, labels) in enumerate(steps):
        adjust_learning_rate(optimizer, epoch + step / len(loader), args)
        optimizer.zero_grad()
        for part in torch.arange(len(labels)).split(args.batch_size):
            output = model(images[part])
            loss = nn.functional.cross_entropy(output, labels[part])
            loss_metric.update(loss.detach(), len(part))
            accuracy_metric.update(accuracy(output, labels[part]), len(part))
            # Passes are added up, so divide for their mean. The last one sends the gradients.
            (loss / args.batches_per_allreduce).backward()
        optimizer.step()
    loss_average, accuracy_average = loss_metric.average(), accuracy_metric.average()
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1}: loss {loss_average:.4f}, accuracy {accuracy_average:.2%}")


def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    metric = Metric("val_accuracy")
    with torch.no_grad():
        for images, labels in loader:
            metric.update(accuracy(model(images), labels), len(labels))
    return metric.average()


def save_checkpoint(
    model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, args: argparse.Namespace
) -> None:
    if hvd.rank() == 0 and args.checkpoint_format:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, args.checkpoint_format.format(epoch=epoch))


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, args: argparse.Namespace) -> int:
    """Start all ranks from the latest checkpoint that rank 0 has; return the epochs done."""
    done = 0
    if hvd.rank() == 0 and args.checkpoint_format:
        names = {e: args.checkpoint_format.format(epoch=e) for e in range(1, args.epochs + 1)}
        done = max((e for e, name in names.items() if os.path.exists(name)), default=0)
    # Only rank 0 needs to see the file; the others hear from it which epoch comes next.
    done = int(hvd.broadcast(torch.tensor(done), root_rank=0, name="resume_from_epoch"))
    if done and hvd.rank() == 0:
        state = torch.load(args.checkpoint_format.format(epoch=done))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"resumed after epoch {done}")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return done


def main() -> None:
    args = parse_args()
    hvd.init()
    torch.manual_seed(args.seed + hvd.rank())
    torch.set_num_threads(1)  # ranks on one machine share its cores

    step_size = args.batch_size * args.batches_per_allreduce
    train_loader = make_loader(synthetic_images(args.train_images, 1), step_size, shuffle=True)
    val_loader = make_loader(synthetic_images(512, 2), args.batch_size, shuffle=False)

    model = small_resnet()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.base_lr, momentum=args.momentum, weight_decay=args.wd
    )
    start = resume(model, optimizer, args)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.batches_per_allreduce,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    for epoch in range(start, args.epochs):
        train(model, optimizer, train_loader, epoch, args)
        save_checkpoint(model, optimizer, epoch + 1, args)
    reached = validate(model, val_loader)
    if hvd.rank() == 0:
        print(f"validation accuracy: {reached:.2%}")


if __name__ == "__main__":
    main()
