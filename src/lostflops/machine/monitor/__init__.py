"""Samples what a node's GPUs, cores, memory, disks and networks do: a process beside the job."""
