"""What of an Nsight Systems export's tables is private, whichever form the export has.

An export holds the environment of the profiled process, its command line, its output and its paths. What may
stay of the tables of names and values is listed here; all else in them goes. Other tables' text is cleaned.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lostflops.privacy.cleaner import ENVIRONMENT, USERS, Cleaner
from lostflops.privacy.secrets import without_secrets

VALUES = ("META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV")
# Columns that hold ids of texts with whole files: what was printed and captured.
CONTENTS = {"ProcessStreams": ("contentId",), "ANALYSIS_FILE": ("contentId",)}

_PLAIN = {"", "true", "false", "none", "0", "1"}
_ALLOWED = re.compile(
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
_SETTING = re.compile(
    r"(?:CUDA|NCCL|TORCH|PYTORCH|OMP|FI|UCX|GLOO|MKL|NUMEXPR)_(?!.*(?:TOKEN|KEY|SECRET|PASS|HOST|ADDR|DIR|PATH|FILE))\w+"
)
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NUMBERS = re.compile(r"[\w.,:+-]{0,64}")


def learn(pairs: Sequence[tuple[str, str]], cleaner: Cleaner) -> None:
    """Note the machines that a table of names and values names."""
    for name, value in pairs:
        if _MACHINE.fullmatch(name):
            cleaner.host(value.encode())


def values(pairs: Sequence[tuple[str, str]], cleaner: Cleaner) -> list[str]:
    """The clean values of a table of names and values, in order."""
    words = [value for name, value in pairs if _WORD.fullmatch(name)]
    kept = iter(without_secrets(words))
    return [
        _value(name, value, next(kept) if _WORD.fullmatch(name) else "", cleaner) for name, value in pairs
    ]


def _value(name: str, value: str, word: str, cleaner: Cleaner) -> str:
    if not value:
        return value
    raw = value.encode(errors="surrogateescape")
    if _MACHINE.fullmatch(name):
        return _text(cleaner.text(b'"host_name": "%s"' % raw)[14:-1])
    if _PERSON.fullmatch(name):
        return _text(cleaner.removed(USERS, raw))
    if _WORD.fullmatch(name):
        if word != value:
            cleaner.removed("secrets", raw)
        return _text(cleaner.text(word.encode(errors="surrogateescape")))
    if _PATH.fullmatch(name):
        return _text(cleaner.text(raw))
    if value.lower() in _PLAIN or _ALLOWED.fullmatch(name):
        return _text(cleaner.text(raw))
    variable = _VARIABLE.fullmatch(value)
    called = variable[1] if variable else name
    if _SETTING.fullmatch(called) and _NUMBERS.fullmatch(variable[2] if variable else value):
        return _text(cleaner.text(raw))
    if variable:
        return f"{called}={_text(cleaner.removed(ENVIRONMENT, variable[2].encode(errors='surrogateescape')))}"
    return _text(cleaner.removed(ENVIRONMENT, raw))


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")
