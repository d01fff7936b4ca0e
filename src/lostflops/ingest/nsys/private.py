"""What of an Nsight Systems export's tables is private, whichever form the export has.

An export holds the environment of the profiled process, its command line, its output and its paths. What may
stay of the tables of names and values is listed here; all else in them goes. Other tables' text is cleaned.
"""

from __future__ import annotations

import re

from lostflops.ingest.nsys.folder import FOLDERS
from lostflops.ingest.nsys.report import SUFFIXES as REPORTS
from lostflops.ingest.private import Private, Settings

_STAYS = re.compile(
    r"""(?x)
    (?:PROCESS_\d+:)?(?:CAPTURE_EVENT_TYPE | DEVICE_TYPE | HOW_TO_ATTACH | (?:START|STOP)_TRIGGER
      | PROFILING_SESSION_UUID | START_DELAY_MS | RUN_DURATION_\w+ | (?:\w+_)?RATE_HZ | \w+_SCAN_FREQ
      | CUDA_GRAPH_TRACE_OPTIONS:\w+ | CUDA_FLUSH_\w+ | CUDA_TRACE_SCOPE | COLLECT_\w+ | (?:APPLICATION_)?PID)
    | EXPORT_(?:PRODUCT|SCHEMA)_\w+ | EXPORT_(?:PLATFORM|ARCH|TIME\w*)
    | EXPORT_(?:PARAM|CONFIG)_(?!\w*(?:PATH|FILE))\w+ | DERIVED_WINDOW_NS
    | CudaDriverVersion | NvDriverVersion | Cpu(?:Cores|SpeedMhz|Architecture|Description|EmcSpeedMhz)
    | Supported\w*ABIs | (?:Has|Is|Supports)\w+ | (?:Hard|Soft)warePlatform | OsDescription | KernelVersion
    | SoftwareReleaseVersion
    """
)
_MACHINE = re.compile(r"Host_?name|EXPORT_HOST|DEVICE_DISPLAY_NAME|(?:\w+_)?HOST_?NAME", re.IGNORECASE)
_PERSON = re.compile(r"(?:PROCESS_\d+:)?(?:EXPORT_)?USER(?:_?NAME)?|Username", re.IGNORECASE)
_WORD = re.compile(r"(?:PROCESS_\d+:)?(?:COMMAND|ARGUMENT_\d+)")
_PATH = re.compile(
    r"(?:PROCESS_\d+:)?WORKING_DIR|EXPORT_PARAM_\w*(?:PATH|FILE)\w*|TargetInstallDir|DERIVED_FROM"
)
# Variables whose values tell how a job was set up, and neither who nor where.
_VARIABLE = re.compile(
    r"(?:CUDA|NCCL|TORCH|PYTORCH|OMP|FI|UCX|GLOO|MKL|NUMEXPR)_(?!.*(?:TOKEN|KEY|SECRET|PASS|HOST|ADDR|DIR|PATH|FILE))\w+"
)

_SETTINGS = Settings(
    tables=("META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"),
    contents={"ProcessStreams": ("contentId",), "ANALYSIS_FILE": ("contentId",)},
    machine=_MACHINE,
    person=_PERSON,
    word=_WORD,
    path=_PATH,
    stays=_STAYS,
    variable=_VARIABLE,
)
_ONLY_NSYS = (
    "only nsys can open its reports, and they may hold the job's environment: export the report "
    "and clean the export"
)

PRIVATE = Private(
    stored={".sqlite": "database", **dict.fromkeys(FOLDERS, "export")},
    closed=dict.fromkeys(REPORTS, _ONLY_NSYS),
    settings=_SETTINGS,
)
