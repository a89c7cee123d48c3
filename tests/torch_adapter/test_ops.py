from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import commrt.torch as hvd

Holds = Callable[..., None]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    "reduce", [hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_]
)
def test_average_and_op_together_are_refused(reduce: object) -> None:
    with pytest.raises(ValueError, match="not both"):
        reduce(torch.ones(2), average=True, op=hvd.Sum)  # type: ignore[operator]


@pytest.mark.usefixtures("world")
def test_an_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="averaged"):
        hvd.allreduce(torch.ones(1), averaged=True)  # type: ignore[call-arg]


@pytest.mark.usefixtures("world")
def test_results_are_new_tensors() -> None:
    x = torch.ones(2, 3)
    for y in (
        hvd.allreduce(x), hvd.allgather(x), hvd.broadcast(x, 0), hvd.alltoall(x),
        hvd.reducescatter(x), *hvd.grouped_allreduce([x]), *hvd.grouped_allgather([x]),
        *hvd.grouped_reducescatter([x]), hvd.synchronize(hvd.broadcast_async(x, 0)),
    ):  # fmt: skip
        assert y.data_ptr() != x.data_ptr()
        assert torch.equal(y, x)


@pytest.mark.usefixtures("world")
def test_operations_in_place_return_their_tensor() -> None:
    x = torch.ones(2, 3)
    assert hvd.allreduce_(x) is x
    assert hvd.broadcast_(x, 0) is x
    assert hvd.grouped_allreduce_([x])[0] is x
    assert hvd.synchronize(hvd.grouped_allreduce_async_([x]))[0] is x
    assert hvd.synchronize(hvd.broadcast_async_(x, 0)) is x
    handle = hvd.allreduce_async_(x, op=hvd.Sum)
    assert hvd.synchronize(handle) is x
    assert hvd.poll(handle)


@pytest.mark.usefixtures("world")
def test_a_handle_is_synchronized_once() -> None:
    handle = hvd.allreduce_async(torch.ones(2), name="twice")
    hvd.synchronize(handle)
    with pytest.raises(ValueError, match="twice"):
        hvd.synchronize(handle)


@pytest.mark.usefixtures("world")
def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(hvd.ArgumentError, match=r"torch\.Tensor is needed, not float"):
        hvd.allreduce(1.0)  # type: ignore[arg-type]
    for group in (torch.ones(2), [], [1.0]):
        with pytest.raises(hvd.ArgumentError, match="needed"):
            hvd.grouped_allreduce(group)  # type: ignore[arg-type]


@pytest.mark.usefixtures("world")
def test_a_sparse_tensor_is_refused_where_dense_ones_are_added() -> None:
    with pytest.raises(hvd.ArgumentError, match=r"to_dense"):
        hvd.allreduce(torch.eye(2).to_sparse())
    with pytest.raises(hvd.ArgumentError, match="layout"):
        hvd.sparse_allreduce_async(torch.eye(2), "x", hvd.Sum)
    with pytest.raises(hvd.ArgumentError, match="Average or Sum"):
        hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "x", hvd.Max)


@pytest.mark.usefixtures("world")
def test_rows_received_have_the_dtype_of_the_splits() -> None:
    x = torch.ones(2, 3)
    assert hvd.alltoall(x, [2])[1].dtype is torch.int32
    assert hvd.alltoall(x, torch.tensor([2]))[1].dtype is torch.int64
    assert isinstance(hvd.alltoall(x), torch.Tensor)


@pytest.mark.usefixtures("world")
def test_join_takes_horovods_device() -> None:
    assert hvd.join(device=0) == 0


_RANKS = """
@fact
def reductions():
    mine = torch.arange(6.0).reshape(2, 3) + rank
    total = 2 * torch.arange(6.0).reshape(2, 3) + 1
    assert torch.equal(hvd.allreduce(mine), total / 2)
    assert torch.equal(hvd.allreduce(mine, average=False), total)
    assert torch.equal(hvd.allreduce(mine, op=hvd.Sum, process_set=PAIR), total)
    assert torch.equal(hvd.allreduce(mine, op=hvd.Min), mine - rank)
    assert torch.equal(hvd.allreduce(mine, op=hvd.Max), mine - rank + 1)
    assert torch.equal(hvd.allreduce(mine, op=hvd.Product), (mine - rank) * (mine - rank + 1))
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
def mixed_groups():
    group = [torch.full((3,), rank + 1.0), torch.full((2,), rank + 1, dtype=torch.int64)]
    assert [t.tolist() for t in hvd.grouped_allreduce(group, op=hvd.Sum)] == [[3.0] * 3, [3, 3]]
    rows = hvd.grouped_allgather([torch.ones(rank, 2), torch.tensor([rank])])
    assert rows[0].shape == (1, 2) and rows[1].tolist() == [0, 1]
    handle = hvd.grouped_reducescatter_async([torch.arange(3.0)], op=hvd.Sum)
    assert hvd.synchronize(handle)[0].tolist() == ([4.0] if rank else [0.0, 2.0])
    hvd.grouped_allreduce_(group)
    assert group[0].tolist() == [1.5] * 3 and group[1].tolist() == [1, 1]


@fact
def movements():
    rows = hvd.allgather(torch.full((rank + 1, 2), float(rank)))
    assert rows.tolist() == [[0, 0], [1, 1], [1, 1]]
    assert hvd.broadcast(torch.tensor(rank), 1).item() == 1
    wide = torch.full((3, 4), float(rank)).t()
    hvd.broadcast_(wide, 1)
    assert torch.equal(wide, torch.ones(4, 3))
    moved, received = hvd.alltoall(torch.tensor([rank, 10 + rank, 20 + rank]), [2 - rank, 1 + rank])
    assert moved.tolist() == ([20, 11, 21] if rank else [0, 10, 1])
    assert received.tolist() == ([1, 2] if rank else [2, 1])
    moved, received = hvd.synchronize(hvd.alltoall_async(torch.tensor([rank, 10 + rank])))
    assert moved.tolist() == [10 * rank, 10 * rank + 1] and received.tolist() == [1, 1]
    assert torch.is_tensor(received)
    moved, received = hvd.synchronize(hvd.alltoall_async(torch.ones(2, dtype=torch.bfloat16)))
    assert moved.dtype is torch.bfloat16 and received.tolist() == [1, 1]
    none, received = hvd.alltoall(torch.ones(0, 3), [0, 0])
    assert none.shape == (0, 3) and received.tolist() == [0, 0]
    assert hvd.allgather_object({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    assert hvd.broadcast_object(rank, root_rank=1) == 1


@fact
def out_of_order():
    handles = [hvd.allreduce_async(torch.full((3,), float(i)), name=f"h{i}") for i in range(8)]
    for i in reversed(range(8)):
        assert hvd.synchronize(handles[i]).tolist() == [i] * 3
    for i in range(100):
        hvd.allreduce_async_(torch.ones(1000), name=f"never.{i}")
    hvd.barrier()


@fact
def sparse():
    grad = torch.sparse_coo_tensor([[0, 0, 2 + rank]], [[1.0, 1], [1, 1], [4, 4]], (4, 2))
    wait = hvd.sparse_allreduce_async(grad, "embedding", hvd.Sum)
    assert callable(wait)
    assert wait().to_dense().tolist() == [[4.0, 4], [0, 0], [4, 4], [4, 4]]
    mean = hvd.sparse_allreduce_async(grad, None, hvd.Average)()
    assert mean.is_sparse and mean.to_dense().tolist() == [[2.0, 2], [0, 0], [2, 2], [2, 2]]
    empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0, 2), (4, 2))
    one = hvd.sparse_allreduce_async(grad if rank else empty, "one", hvd.Sum)()
    assert one.to_dense().tolist() == [[2.0, 2], [0, 0], [0, 0], [4, 4]]


@fact
def sparse_shapes():
    grad = torch.sparse_coo_tensor([[0]], [1.0], (4 + rank,))
    try:
        hvd.sparse_allreduce_async(grad, "shapes", hvd.Sum)()
    except hvd.MismatchError as error:
        assert "4" in str(error) and "5" in str(error)
    else:
        raise AssertionError("no error")


@fact
def joined():
    if rank == 0:
        assert hvd.allreduce(torch.full((2,), 3.0), name="more", op=hvd.Sum).tolist() == [3, 3]
    last = hvd.join()
    assert hvd.allgather_object(last) == [last] * size
"""


@pytest.mark.ranks
def test_ranks_reduce(holds: Holds) -> None:
    holds(_RANKS, "reductions")


@pytest.mark.ranks
def test_16_bit_floats_are_added_in_32(holds: Holds) -> None:
    holds(_RANKS, "narrow_floats")


@pytest.mark.ranks
def test_tensors_of_a_group_may_differ_in_dtype(holds: Holds) -> None:
    holds(_RANKS, "mixed_groups")


@pytest.mark.ranks
def test_ranks_gather_and_broadcast(holds: Holds) -> None:
    holds(_RANKS, "movements")


@pytest.mark.ranks
def test_handles_are_waited_for_in_any_order_or_never(holds: Holds) -> None:
    holds(_RANKS, "out_of_order")


@pytest.mark.ranks
def test_sparse_tensors_are_added_by_their_indices(holds: Holds) -> None:
    holds(_RANKS, "sparse")


@pytest.mark.ranks
def test_sparse_tensors_of_different_shapes_are_an_error_on_every_rank(holds: Holds) -> None:
    holds(_RANKS, "sparse_shapes")


@pytest.mark.ranks
def test_a_rank_that_has_joined_adds_nothing(holds: Holds) -> None:
    holds(_RANKS, "joined")
