"""Open MPI 4 (orterun) and 5 (prterun)."""

from __future__ import annotations

from dataclasses import dataclass

from commrun.flavours.base import Layout


@dataclass(frozen=True, slots=True)
class OpenMpi:
    """Open MPI's mpirun; `version` is such as `5.0.11`."""

    version: str

    @property
    def name(self) -> str:
        """The family and its version."""
        return f"Open MPI {self.version}"

    @property
    def rank_variables(self) -> tuple[str, str, str]:
        """Set by mpirun in each process, in both versions."""
        return (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        )

    @property
    def shared_memory(self) -> tuple[str, ...]:
        """`sm` in version 5, which knows the older name too; `vader` in version 4."""
        return ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory")

    def arguments(self, layout: Layout) -> tuple[str, ...]:
        """Return mpirun's words.

        Slots given by `--host` equal the ranks placed there, so mpirun places them as we did;
        `--oversubscribe` because it counts cores in its own way.
        """
        words = ["-np", str(layout.np)]
        if layout.hosts:
            words += ["--host", ",".join(f"{host.name}:{host.slots}" for host in layout.hosts)]
        words += ["--map-by", "slot", "--oversubscribe", "--bind-to", "none"]
        words += ["--mca", "osc", "^ucx"]
        if self._major >= 5:
            words += ["--mca", "btl_sm_eager_limit", "65536"]
        if layout.crowded:
            words += ["--mca", "mpi_yield_when_idle", "1"]
        for name in layout.forward:
            words += ["-x", name]
        return (*words, *layout.extra)

    def variables(self, root: bool) -> dict[str, str]:
        """Return the two variables without which mpirun refuses to work for root."""
        if not root:
            return {}
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    @property
    def _major(self) -> int:
        return int(self.version.partition(".")[0])
