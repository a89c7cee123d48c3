"""A language model that writes Python's manual letter by letter, in Horovod's style.

    commrun -np 2 python docs/examples/horovod_char_lm.py

The text is what `help()` shows of the language, from the standard library. The ranks have
different amounts of it: who is through joins, and the others go on without waiting.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pydoc_data.topics import topics

import torch
from torch import nn

import commrt.torch as hvd

PARALLEL = 16  # places in the text that are read at the same time
LENGTH = 64  # letters read between two steps


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="a character language model on several ranks")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--clip", type=float, default=0.5, help="largest norm of the gradients")
    parser.add_argument("--characters", type=int, help="use only so many of the text")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class CharModel(nn.Module):
    def __init__(self, characters: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 32)
        self.lstm = nn.LSTM(32, hidden)
        self.output = nn.Linear(hidden, characters)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, ...] | None) -> tuple:
        features, state = self.lstm(self.embedding(x), state)
        return self.output(features), tuple(part.detach() for part in state)


def load_text(limit: int | None) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Return the number of different characters, this rank's training text and its test text."""
    text = "".join(topics[name] for name in sorted(topics))[:limit]
    alphabet = {character: code for code, character in enumerate(sorted(set(text)))}
    codes = torch.tensor([alphabet[character] for character in text])
    split = len(codes) * 9 // 10
    train, test = codes[:split], codes[split:]
    # Rank 0 gets one part, rank 1 one and a half, rank 2 two, ...
    parts = torch.arange(hvd.size()) * 0.5 + 1
    ends = (parts.cumsum(0) / parts.sum() * len(train)).long().tolist()
    start = ends[hvd.rank() - 1] if hvd.rank() else 0
    return len(alphabet), train[start : ends[hvd.rank()]], test.chunk(hvd.size())[hvd.rank()]


def batches(text: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield inputs and targets of shape (LENGTH, PARALLEL)."""
    rows = (len(text) - 1) // PARALLEL
    inputs = text[: rows * PARALLEL].view(PARALLEL, rows).t()
    targets = text[1 : rows * PARALLEL + 1].view(PARALLEL, rows).t()
    for start in range(0, rows - LENGTH + 1, LENGTH):
        yield inputs[start : start + LENGTH], targets[start : start + LENGTH]


def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, text: torch.Tensor, clip: float
) -> int:
    """Train for an epoch; return the number of steps that this rank took."""
    model.train()
    state, steps = None, 0
    for inputs, targets in batches(text):
        optimizer.zero_grad()
        output, state = model(inputs, state)
        loss_of(output, targets).backward()
        optimizer.synchronize()  # from here on the gradients are averages: clip those
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        with optimizer.skip_synchronize():
            optimizer.step()
        steps += 1
    return steps


def catch_up(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Wait for the ranks that still train, then take over the weights they arrived at.

    Until then this rank takes part with gradients of zero, but makes no steps of its own.
    """
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    hvd.broadcast_optimizer_state(optimizer, root_rank=last)


def perplexity(model: nn.Module, text: torch.Tensor) -> float:
    """Return between how many characters the model wavers, over all ranks' test text."""
    model.eval()
    state, total, n = None, 0.0, 0
    with torch.no_grad():
        for inputs, targets in batches(text):
            output, state = model(inputs, state)
            total += loss_of(output, targets).item()
            n += 1
    sums = hvd.allreduce(torch.tensor([total, float(n)]), name="test_loss", op=hvd.Sum)
    return math.exp(sums[0] / sums[1])


def main() -> None:
    args = parse_args()
    hvd.init()
    torch.manual_seed(args.seed + hvd.rank())
    torch.set_num_threads(1)  # ranks on one machine share its cores
    characters, train_text, test_text = load_text(args.characters)

    model = CharModel(characters, args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    before = after = perplexity(model, test_text)
    for epoch in range(1, args.epochs + 1):
        steps = train(model, optimizer, train_text, args.clip)
        catch_up(model, optimizer)
        after = perplexity(model, test_text)
        taken = hvd.allgather(torch.tensor([steps]), name="steps").tolist()
        if hvd.rank() == 0:
            print(f"epoch {epoch}: perplexity {after:.2f}; steps of each rank: {taken}")
    if hvd.rank() == 0:
        print(f"perplexity fell from {before:.1f} to {after:.1f}")


if __name__ == "__main__":
    main()
