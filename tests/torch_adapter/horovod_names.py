"""The public names of `horovod.torch` 0.28, and `horovod.run`: parameters and their defaults.

`none` stands for `Compression.none`, `world` for the set of all ranks.
"""

from __future__ import annotations

_REDUCE = "average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0"
_REDUCE_SYNC = _REDUCE.replace("op=None", "compression=none, op=None")
_SCATTER = "op=Average, process_set=world, prescale_factor=1.0, postscale_factor=1.0"

FUNCTIONS = {
    "init": "comm=None, process_sets=None",
    "shutdown": "",
    "is_initialized": "",
    "start_timeline": "file_path, mark_cycles=False",
    "stop_timeline": "",
    "size": "",
    "local_size": "",
    "cross_size": "",
    "rank": "",
    "local_rank": "",
    "cross_rank": "",
    "is_homogeneous": "",
    "mpi_threads_supported": "",
    "mpi_enabled": "",
    "mpi_built": "",
    "gloo_enabled": "",
    "gloo_built": "",
    "nccl_built": "",
    "ddl_built": "",
    "ccl_built": "",
    "cuda_built": "",
    "rocm_built": "",
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "allreduce": f"tensor, {_REDUCE_SYNC}, process_set=world",
    "allreduce_": f"tensor, {_REDUCE}, process_set=world",
    "allreduce_async": f"tensor, {_REDUCE}, process_set=world",
    "allreduce_async_": f"tensor, {_REDUCE}, process_set=world",
    "grouped_allreduce": f"tensors, {_REDUCE_SYNC}, process_set=world",
    "grouped_allreduce_": f"tensors, {_REDUCE}, process_set=world",
    "grouped_allreduce_async": f"tensors, {_REDUCE}, process_set=world",
    "grouped_allreduce_async_": f"tensors, {_REDUCE}, process_set=world",
    "sparse_allreduce_async": "tensor, name, op, process_set=world",
    "allgather": "tensor, name=None, process_set=world",
    "allgather_async": "tensor, name=None, process_set=world",
    "grouped_allgather": "tensors, name=None, process_set=world",
    "grouped_allgather_async": "tensors, name=None, process_set=world",
    "broadcast": "tensor, root_rank, name=None, process_set=world",
    "broadcast_": "tensor, root_rank, name=None, process_set=world",
    "broadcast_async": "tensor, root_rank, name=None, process_set=world",
    "broadcast_async_": "tensor, root_rank, name=None, process_set=world",
    "alltoall": "tensor, splits=None, name=None, process_set=world",
    "alltoall_async": "tensor, splits=None, name=None, process_set=world",
    "reducescatter": f"tensor, name=None, compression=none, {_SCATTER}",
    "reducescatter_async": f"tensor, name=None, {_SCATTER}",
    "grouped_reducescatter": f"tensors, name=None, compression=none, {_SCATTER}",
    "grouped_reducescatter_async": f"tensors, name=None, {_SCATTER}",
    "join": "device=-1",
    "barrier": "process_set=world",
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=world",
    "allgather_object": "obj, name=None",
    "DistributedOptimizer": (
        "optimizer, named_parameters=None, compression=none, backward_passes_per_step=1, "
        "op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, "
        "sparse_as_dense=False, process_set=world"
    ),
    "SyncBatchNorm": (
        "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True"
    ),
    "run": (
        "func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None, slots=None, "
        "reset_limit=None, cooldown_range=None, hosts=None, hostfile=None, start_timeout=None, "
        "ssh_port=None, ssh_identity_file=None, disable_cache=None, output_filename=None, "
        "verbose=None, use_gloo=None, use_mpi=None, mpi_args=None, network_interface=None, "
        "executable=None, np=None, min_np=None, max_np=None"
    ),
}

VALUES = (
    "Average", "Sum", "Adasum", "Min", "Max", "Product", "Compression", "global_process_set",
    "HorovodInternalError",
)  # fmt: skip

COMPRESSIONS = ("none", "fp16")

OF_A_PROCESS_SET = ("ranks", "process_set_id", "size", "rank", "included")

OF_AN_OPTIMIZER = (
    "step", "zero_grad", "synchronize", "skip_synchronize", "set_backward_passes_per_step",
    "state_dict", "load_state_dict", "add_param_group",
)  # fmt: skip
