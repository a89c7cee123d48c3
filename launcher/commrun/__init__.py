"""Starts the ranks of a job through the MPI launcher that is there, and watches them."""
