"""What other tools answer, and which recipe or command of ours does: `docs/coverage.md` is written from this.

A recipe may be followed by the options that make it the same question. Of several that are named, those that
exist are shown; a verb of the command line stands as `lostflops VERB`. What has none says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lostflops import cli
from lostflops.recipes import recipes
from lostflops.report.words.safe import as_command

VERB = "lostflops "
GRAPHICS = "graphics: out of scope"
NO_PLUGIN = "the plugin's rows are in no export whose layout is documented; none was found to test with"


@dataclass(frozen=True)
class Answered:
    """One name of another tool, what it asks, and what answers that here."""

    theirs: str
    question: str
    ours: tuple[str, ...] = ()
    without: str = ""  # why nothing answers it

    @property
    def shown(self) -> tuple[str, ...]:
        """Those of `ours` that exist."""
        return tuple(name for name in self.ours if exists(name))


def exists(ours: str) -> bool:
    """Whether there is such a recipe or command."""
    if ours.startswith(VERB):
        return ours.split()[1] in cli.commands()
    return ours.split()[0] in recipes()


def _of(rows: str) -> tuple[Answered, ...]:
    """A line per name: theirs | the question | ours, with commas between; a reason begins with 'none:'."""
    found: list[Answered] = []
    for line in rows.strip().splitlines():
        theirs, question, ours = (part.strip() for part in line.split("|"))
        reason = ours.removeprefix("none:").strip() if ours.startswith("none:") else ""
        names = () if reason else tuple(name.strip() for name in ours.split(","))
        found.append(Answered(theirs, question, names, reason))
    return tuple(found)


NSYS_RECIPES = _of(f"""
cuda_api_sum | Which CUDA API calls take the host's time? | api_call_summary
cuda_api_sync | Which API calls block the host until the GPU is done? | api_call_blocking
cuda_gpu_kern_sum | Which kernels take GPU time? | kernel_summary
cuda_gpu_kern_hist | How are a kernel's durations distributed? | kernel_histogram
cuda_gpu_kern_pace | Does one kernel keep its pace? | kernel_pace
cuda_gpu_mem_size_sum | How many bytes do copies move, by kind? | copy_summary_by_size
cuda_gpu_mem_time_sum | How much time do copies take, by kind? | copy_summary_by_time
cuda_gpu_time_util_map | When and where did kernels run? | gpu_utilization_map
cuda_memcpy_async | Which async copies became synchronous? | copy_pageable
cuda_memcpy_sync | Which copies block the host? | copy_blocking
cuda_memset_sync | Which memsets block the host? | copy_blocking
diff | How do two runs differ? | lostflops diff
dx12_mem_ops | Which Direct3D 12 memory operations are suspicious? | none: {GRAPHICS}
file_access_sum | Which files are read and written, how, how much? | file_access_summary
gfx_hotspot | Which host code limits frames? | host_hotspots
gpu_gaps | When is a GPU idle for longer than a threshold? | gpu_gaps
gpu_metric_util_map | How busy are SMs, issue slots, tensor cores over time? | metric_map
gpu_metric_util_sum | What is the average of each GPU metric? | metric_summary
gpu_time_util | Which stretches have low GPU utilisation? | gpu_utilization_low
gpu_vram_usage_trace | How does device memory use evolve? | memory_timeline
mpi_gpu_time_util_map | When do kernels and MPI run, and overlap? | library_utilization_map
mpi_sum | Which MPI calls take time? | library_call_summary --library MPI
nccl_gpu_overlap_trace | How much do they overlap? | communication_overlap_trace, communication_exposed
nccl_gpu_proj_sum | How long do NCCL ranges take on the GPU? | communication_summary
nccl_gpu_time_util_map | When do communication and compute run, and overlap? | communication_utilization_map
nccl_straggler | Which ranks repeatedly hold up collectives? | communication_imbalance, straggling_collectives
nccl_sum | Which communicators, operations and sizes take time? | communication_summary
network_map_aws | What do EFA counters show over time? | nic_map
network_sum | How much traffic passed NICs and switches? | nic_summary
network_traffic_map | When were devices sending, receiving, congested? | nic_map, nic_congestion
nvlink_sum | What throughput did NVLink reach? | nvlink_summary
nvtx_cpu_topdown | What bounds the CPU inside ranges (Arm top-down)? | none: {NO_PLUGIN}
nvtx_gpu_proj_pace | Does a range's GPU time keep its pace? | range_gpu_projection_pace
nvtx_gpu_proj_sum | How much GPU time does each range cause? | range_gpu_projection
nvtx_gpu_proj_trace | Where does each range land on the GPU? | range_gpu_projection_trace
nvtx_pace | Does a range keep its pace on the host? | range_pace
nvtx_sum | How long do ranges take on the host? | range_summary
osrt_sum | Which libc calls take host time? | os_call_summary
s3_access_sum | Which objects and buckets are read and written? | none: {NO_PLUGIN}
storage_util_map | When were storage devices busy? | metric_map --metric disk
ucx_gpu_time_util_map | When do kernels and UCX run, and overlap? | library_utilization_map --library UCX
nic_metric_map | What did NICs show over time (older versions)? | nic_map
""")

NSYS_REPORTS = _of(f"""
cuda_api_gpu_sum | API calls, kernels and copies in one ranking | activity_summary
cuda_api_sum | API time per function | api_call_summary
cuda_api_trace | Every API call | api_call_trace
cuda_gpu_kern_sum | Kernel time by name | kernel_summary
cuda_gpu_kern_gb_sum | Kernel time by name, grid and block | kernel_summary_by_grid
cuda_gpu_mem_size_sum | Copies by bytes | copy_summary_by_size
cuda_gpu_mem_time_sum | Copies by time | copy_summary_by_time
cuda_gpu_sum | Kernels and copies ranked | gpu_work_summary
cuda_gpu_trace | Kernels and copies listed | gpu_work_trace
cuda_kern_exec_sum | Launches split into API, queue and kernel time | launch_latency
cuda_kern_exec_trace | The same per launch | launch_latency_trace
mpi_event_sum | MPI time | library_call_summary --library MPI
mpi_event_trace | Every MPI event | library_call_trace --library MPI
mpi_msg_size_sum | MPI message sizes | mpi_message_sizes
network_congestion | When did a port have data it could not send? | nic_congestion
nvtx_sum | Range time | range_summary
nvtx_pushpop_sum | Push/pop range time | range_summary
nvtx_startend_sum | Start/end range time | range_summary
nvtx_pushpop_trace | Every range with depth, children and own time | range_trace
nvtx_gpu_proj_sum | Ranges projected to the GPU | range_gpu_projection
nvtx_gpu_proj_trace | The same per range | range_gpu_projection_trace
nvtx_kern_sum | Kernels inside each range | range_kernel_summary
nvvideo_api_sum | Video codec API time | library_call_summary --library video
openacc_sum | OpenACC time | library_call_summary --library OpenACC
openmp_sum | OpenMP time | library_call_summary --library OpenMP
osrt_sum | libc time | os_call_summary
syscall_sum | System call time | os_call_summary
um_cpu_page_faults_sum | CPU faults on managed memory | managed_memory_faults
um_sum | Migrations and faults | managed_memory_migrations, managed_memory_faults
um_total_sum | Totals of the above | managed_memory_migrations, managed_memory_faults
dx11_pix_sum, dx12_pix_sum, dx12_gpu_marker_sum | Graphics markers | none: {GRAPHICS}
opengl_khr_range_sum, opengl_khr_gpu_range_sum | Graphics markers | none: {GRAPHICS}
vulkan_marker_sum, vulkan_gpu_marker_sum, vulkan_api_sum, vulkan_api_trace | Vulkan | none: {GRAPHICS}
wddm_queue_sum | Windows GPU queues | none: {GRAPHICS}
""")

NSYS_RULES = _of(f"""
cuda_memcpy_async | Async copies from or to pageable memory | copy_pageable, copy_summary_by_time
cuda_memcpy_sync | Blocking copies | copy_blocking
cuda_memset_sync | Blocking memsets | copy_blocking
cuda_api_sync | Blocking synchronisation calls | api_call_blocking
gpu_gaps | The GPU idles for long | gpu_gaps, idle_summary
gpu_time_util | Stretches below a utilisation | gpu_utilization_low
dx12_mem_ops | Suspicious Direct3D 12 operations | none: {GRAPHICS}
""")

HTA = _of("""
TraceAnalysis(…) | Load all ranks | lostflops import
get_temporal_breakdown | How much is compute, other work, idle? | gpu_overlap, step_ledger
get_idle_time_breakdown | Why do streams wait? | stream_waits, idle_summary, gpu_gaps, idle_names
get_comm_comp_overlap | How much communication is hidden? | communication_exposed
get_gpu_kernel_breakdown | Which kernels take time? | kernel_summary, kernel_families, kernel_overlap
get_gpu_kernels_with_user_annotations | Which kernels belong to my ranges? | range_kernel_summary
get_gpu_user_annotation_breakdown | How long do my ranges take? | range_summary, range_gpu_projection
get_cuda_kernel_launch_stats | Are launches slow? | launch_latency, launch_latency_trace
get_aten_op_kernels_and_delay | Which kernels does an operator launch? | operator_kernel_summary
get_queue_length_time_series, …_summary | How far ahead is the host? | launch_queue_depth, launch_latency
get_time_spent_blocked_on_full_queue | Is the host blocked by a full queue? | launch_queue_full
get_memory_bw_time_series, …_summary | How fast are copies? | copy_bandwidth, copy_summary_by_size
generate_trace_with_counters | Show these as tracks | lostflops export
get_frequent_cuda_kernel_sequences | Which kernel sequences repeat? | kernel_sequences
get_potential_stragglers | Which rank is slow? | communication_imbalance, rank_imbalance
get_profiler_steps | Which steps are there? | step_time, counted_steps, outlier_steps
critical_path_analysis | What bounds the step? | lostflops whatif
critical_path_breakdown, summary | By what is the path bound? | lostflops whatif
get_cupti_counter_data_with_operators | Counters per operator? | none: the profiler no longer writes them
TraceDiff | What changed between two runs? | lostflops diff
MemoryAnalysis | What fills memory? | memory_peak_owners, memory_timeline
call stack, call graph | Who calls what? | operator_summary, python_hotspots
trace filter | Cut a trace | lostflops import
timeline plot | Look at it | lostflops view, lostflops export
Perfetto converter | Convert it | lostflops export
execution-trace correlation | Join with an execution trace | none: execution traces hold no times, and the \
profiler's trace has the same operators and shapes
""")

TENSORBOARD = _of("""
Overview: step time breakdown | Where does a step go? | step_ledger, data_loading
Overview: steps | Which steps are complete? | step_time, counted_steps
GPU utilisation | How busy is the GPU? | gpu_utilization_map
SM efficiency, occupancy | How much of the GPU has work? | kernel_occupancy
Tensor cores | Are they used? | precision_mix
Recommendations | What should I change? | lostflops why
Operator | Which operators take time? | operator_summary, operator_kernel_summary
Kernel | Which kernels? | kernel_summary, kernel_occupancy
Trace | Look at it | lostflops view, lostflops export
Module | Which modules? | module_summary, python_hotspots
Memory | Curve, peak, allocations per operator | memory_timeline, memory_peaks, memory_by_operator
Distributed | Who computes, overlaps, waits? | communication_wait, rank_imbalance, communication_summary
Diff | Two runs | lostflops diff
""")

PARAVER = _of("""
GPU Active; GPU Active Time | Is anything on the GPU? | gpu_utilization_map, gpu_overlap
GPU Useful; Useful Sum Time | Does a kernel compute? | gpu_overlap, compute_bursts
In Useful Kernel | How many kernels compute at once? | gpu_activity
GPU usage gap duration | How long is it idle? | gpu_gaps, idle_stretches
Useful time (bursts) | For how long at a time does it compute? | compute_bursts
Kernels in flight | How deep is the launch queue? | launch_queue_depth
Concurrency of computation during NCCL | What runs beside communication? | kernel_overlap
Overlap of computation during communication | How much communication is hidden? | communication_exposed
CUDA activity % | What takes the time, by name? | activity_summary
NCCL calls | How many communication operations? | communication_summary
Number of kernel threads | How large are kernels? | kernel_summary_by_grid
Kernel duration | How long are kernels? | gpu_work_trace, kernel_histogram
Kernel size; NCCL size | How large are they? | kernel_summary_by_grid, communication_overlap_trace
NVTX ranges, NCCL regions | Which range is the host in? | range_trace
Hardware counters | What did counters show? | metric_map, counter_summary
""")

POP = _of("""
Parallel efficiency | What share of the ranks' time computes? | parallel_efficiency
Load balance | Do ranks compute equally long? | parallel_efficiency, rank_imbalance, stragglers
Communication efficiency | What does communication cost? | parallel_efficiency, communication_exposed
Serialisation, transfer | Is it waiting or moving bytes? | parallel_efficiency, communication_wait
Device orchestration (TALP) | Does the CPU keep the GPU busy? | parallel_efficiency, idle_summary
Computation scaling | Do kernels slow down as the job grows? | lostflops diff
""")

TOOLS: Mapping[str, Sequence[Answered]] = {
    "Nsight Systems: recipes": NSYS_RECIPES,
    "Nsight Systems: stats reports": NSYS_REPORTS,
    "Nsight Systems: expert-system rules": NSYS_RULES,
    "Holistic Trace Analysis": HTA,
    "The former TensorBoard plugin": TENSORBOARD,
    "Paraver: public views": PARAVER,
    "POP and TALP: efficiencies": POP,
}


def page() -> str:
    """The tables of `docs/coverage.md`."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for tool, rows in TOOLS.items():
        yield f"### {tool}\n"
        yield "| theirs | question | ours |"
        yield "| --- | --- | --- |"
        for row in rows:
            ours = ", ".join(map(_link, row.shown)) or f"none: {row.without}"
            yield f"| {row.theirs} | {row.question} | {ours} |"
        yield ""


def _link(ours: str) -> str:
    if ours.startswith(VERB):
        verb = ours.split()[1]
        return f"[`{ours}`](reference/commands.md#{verb})"
    name, _, options = ours.partition(" ")
    command = as_command(name)
    return f"[{command}](reference/recipes.md#{command})" + (f" `{options}`" if options else "")
