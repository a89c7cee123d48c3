from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch

import commrt
import commrt.torch as hvd

Holds = Callable[..., None]


def test_the_adapter_has_every_name_of_the_package() -> None:
    own = {"__version__"}
    assert set(commrt.__all__) - own <= set(hvd.__all__)
    for name in hvd.__all__:
        assert hasattr(hvd, name)


def test_allreduce_has_the_signature_of_horovod() -> None:
    parameters = inspect.signature(hvd.allreduce).parameters
    assert list(parameters) == [
        "tensor", "average", "name", "compression", "op", "prescale_factor", "postscale_factor",
        "process_set",
    ]  # fmt: skip
    assert parameters["compression"].default is hvd.Compression.none
    assert parameters["process_set"].default is hvd.global_process_set


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    "reduce", [hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_]
)
def test_average_and_op_together_are_refused(reduce: object) -> None:
    with pytest.raises(ValueError, match="not both"):
        reduce(torch.ones(2), average=True, op=hvd.Sum)  # type: ignore[operator]


@pytest.mark.usefixtures("world")
def test_an_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="groups"):
        hvd.DistributedOptimizer(
            torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), groups=2
        )
    with pytest.raises(TypeError, match="averaged"):
        hvd.allreduce(torch.ones(1), averaged=True)


@pytest.mark.usefixtures("world")
def test_results_are_new_tensors_detached_from_the_graph() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    for y in (hvd.allreduce(x), hvd.allgather(x), hvd.broadcast(x, 0), *hvd.grouped_allreduce([x])):
        assert not y.requires_grad
        assert y.data_ptr() != x.data_ptr()
        assert torch.equal(y, x)


@pytest.mark.usefixtures("world")
def test_operations_in_place_return_their_tensor() -> None:
    x = torch.ones(2, 3)
    assert hvd.allreduce_(x) is x
    assert hvd.broadcast_(x, 0) is x
    handle = hvd.allreduce_async_(x, op=hvd.Sum)
    assert hvd.synchronize(handle) is x
    assert hvd.poll(handle)


@pytest.mark.usefixtures("world")
def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(hvd.ArgumentError, match=r"torch\.Tensor is needed, not float"):
        hvd.allreduce(1.0)  # type: ignore[arg-type]


@pytest.mark.usefixtures("world")
def test_only_the_compressions_of_the_runtime_are_taken() -> None:
    assert torch.equal(
        hvd.allreduce(torch.ones(3), compression=hvd.Compression.fp16), torch.ones(3)
    )
    with pytest.raises(hvd.ArgumentError, match="compression must be"):
        hvd.allreduce(torch.ones(3), compression="fp16")  # type: ignore[arg-type]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, dtype=torch.complex64), torch.eye(2).to_sparse()],
    ids=["complex", "sparse"],
)
def test_tensors_that_cannot_be_summed_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(hvd.ArgumentError):
        hvd.allreduce(tensor)


_RANKS = """
@fact
def reductions():
    mine = torch.arange(6.0).reshape(2, 3) + rank
    total = 2 * torch.arange(6.0).reshape(2, 3) + 1
    assert torch.equal(hvd.allreduce(mine), total / 2)
    assert torch.equal(hvd.allreduce(mine, average=False), total)
    assert torch.equal(hvd.allreduce(mine, op=hvd.Sum, process_set=PAIR), total)
    fine = torch.full((4,), 1.0 + 2**-12)
    assert torch.equal(hvd.allreduce(fine), fine)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        assert torch.equal(hvd.allreduce(fine, compression=compression), torch.ones(4))
    a, b = hvd.grouped_allreduce([mine, mine[0]], op=hvd.Sum)
    assert torch.equal(a[0], b)
    scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25)
    assert torch.equal(scaled, total / 2)


@fact
def narrow_floats():
    large = torch.full((4,), 40000.0, dtype=torch.float16)
    assert torch.equal(hvd.allreduce_(large), torch.full((4,), 40000.0, dtype=torch.float16))
    total = hvd.allreduce(torch.ones(4, dtype=torch.bfloat16), op=hvd.Sum)
    assert total.dtype is torch.bfloat16 and torch.equal(total.float(), torch.full((4,), 2.0))


@fact
def movements():
    rows = hvd.allgather(torch.full((rank + 1, 2), float(rank)))
    assert rows.tolist() == [[0, 0], [1, 1], [1, 1]]
    assert hvd.broadcast(torch.tensor(rank), 1).item() == 1
    wide = torch.full((3, 4), float(rank)).t()
    hvd.broadcast_(wide, 1)
    assert torch.equal(wide, torch.ones(4, 3))
    assert hvd.allgather_object({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    assert hvd.broadcast_object(rank, root_rank=1) == 1
"""


@pytest.mark.ranks
def test_ranks_reduce(holds: Holds) -> None:
    holds(_RANKS, "reductions")


@pytest.mark.ranks
def test_16_bit_floats_are_added_in_32(holds: Holds) -> None:
    holds(_RANKS, "narrow_floats")


@pytest.mark.ranks
def test_ranks_gather_and_broadcast(holds: Holds) -> None:
    holds(_RANKS, "movements")
