"""A GAN: two networks, two optimizers, in Horovod's style.

    commrun -np 2 python docs/examples/horovod_gan.py

The generator learns to draw points from eight clusters on a circle. Every rank draws points of
its own; after each backward pass the gradients are averaged over the ranks.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import torch
from torch import nn

import commrt.torch as hvd

CLUSTERS = 8
RADIUS = 2.0
SPREAD = 0.1
NOISE = 16  # numbers that the generator makes a point of


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="a GAN on several ranks")
    parser.add_argument("--batch-size", type=int, default=256, help="points a rank and step")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=250, help="steps between two reports")
    return parser.parse_args()


def centres() -> torch.Tensor:
    angles = torch.arange(CLUSTERS) * (2 * math.pi / CLUSTERS)
    return RADIUS * torch.stack([angles.cos(), angles.sin()], dim=1)


def real_points(n: int) -> torch.Tensor:
    return centres()[torch.randint(CLUSTERS, (n,))] + SPREAD * torch.randn(n, 2)


def mlp(inputs: int, outputs: int, width: int = 128) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )


def distribute(model: nn.Module, lr: float, prefix: str) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.5, 0.999))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    # Both networks call their layers alike; the prefix keeps their gradients apart.
    named = [(f"{prefix}.{name}", param) for name, param in model.named_parameters()]
    return hvd.DistributedOptimizer(optimizer, named_parameters=named)


def loss_of(scores: torch.Tensor, target: float) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, target))


def train_discriminator(
    discriminator: nn.Module, optimizer: torch.optim.Optimizer, fake: torch.Tensor
) -> torch.Tensor:
    real = real_points(len(fake))
    optimizer.zero_grad()
    # detach(): the generator gets no gradient here, so nothing of it is sent either.
    loss = loss_of(discriminator(real), 0.9) + loss_of(discriminator(fake.detach()), 0.0)
    loss.backward()
    optimizer.step()
    return loss.detach()


def train_generator(
    discriminator: nn.Module, optimizer: torch.optim.Optimizer, fake: torch.Tensor
) -> torch.Tensor:
    optimizer.zero_grad()
    # Frozen for this pass: Horovod would reduce the discriminator's gradients too, and then
    # refuse its next zero_grad().
    discriminator.requires_grad_(False)
    loss = loss_of(discriminator(fake), 1.0)
    loss.backward()
    discriminator.requires_grad_(True)
    optimizer.step()
    return loss.detach()


def judge(generator: nn.Module, n: int = 2000) -> tuple[float, int]:
    """Return the share of points near a cluster, and the number of clusters that have some.

    Over the points of all ranks: every rank draws n of them.
    """
    with torch.no_grad():
        distances, nearest = torch.cdist(generator(torch.randn(n, NOISE)), centres()).min(dim=1)
    near = distances < 4 * SPREAD
    hits = torch.bincount(nearest[near], minlength=CLUSTERS).float()
    hits = hvd.allreduce(hits, name="hits", op=hvd.Sum)
    total = n * hvd.size()
    return hits.sum().item() / total, int((hits > 0.01 * total).sum())


def replicas_are_equal(models: Sequence[nn.Module]) -> bool:
    """Tell whether all ranks hold the same weights, to the last bit."""
    flat = torch.cat([p.detach().flatten() for model in models for p in model.parameters()])
    replicas = hvd.allgather(flat.unsqueeze(0), name="replicas")
    return all(torch.equal(replica, replicas[0]) for replica in replicas)


def main() -> None:
    args = parse_args()
    hvd.init()
    torch.manual_seed(args.seed + hvd.rank())
    torch.set_num_threads(1)  # ranks on one machine share its cores

    generator, discriminator = mlp(NOISE, 2), mlp(2, 1)
    optimizer_g = distribute(generator, args.lr, "generator")
    optimizer_d = distribute(discriminator, args.lr, "discriminator")

    for step in range(1, args.steps + 1):
        fake = generator(torch.randn(args.batch_size, NOISE))
        loss_d = train_discriminator(discriminator, optimizer_d, fake)
        loss_g = train_generator(discriminator, optimizer_g, fake)
        if step % args.log_interval == 0:
            near, found = judge(generator)
            if hvd.rank() == 0:
                print(
                    f"step {step}: loss D {loss_d:.3f}, G {loss_g:.3f}; "
                    f"{near:.0%} of the points lie in a cluster, {found} of {CLUSTERS} found"
                )

    equal = replicas_are_equal([generator, discriminator])
    if hvd.rank() == 0:
        print(f"replicas are equal on {hvd.size()} rank(s): {equal}")


if __name__ == "__main__":
    main()
