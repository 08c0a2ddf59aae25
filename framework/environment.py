"""What must be true before torch is imported: the machine is known and the allocator's variable is set.

torch reads its allocator variable once, while it is imported, so nothing here may import it. What the machine has
is asked of the driver and of torch's own version file instead.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

from framework.mistakes import ConfigError

OLD_NAME, NEW_NAME = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"

_INT, _FLOAT, _BOOL = re.compile(r"\d+"), re.compile(r"\d*\.\d+|\d+"), re.compile("True|False")
_WORD = re.compile("native|cudaMallocAsync")
_DIVISIONS = re.compile(r"\d+|\[(\d+|>):\d+(,(\d+|>):\d+)*\]")
_GRAMMAR = {
    "backend": (_WORD, "native or cudaMallocAsync"),
    "expandable_segments": (_BOOL, "True or False"),
    "max_split_size_mb": (_INT, "a whole number of MB"),
    "max_non_split_rounding_mb": (_INT, "a whole number of MB"),
    "garbage_collection_threshold": (_FLOAT, "a fraction such as 0.8"),
    "per_process_memory_fraction": (_FLOAT, "a fraction such as 0.8"),
    "roundup_power2_divisions": (_DIVISIONS, "a whole number, or [256:1,512:2,>:8]"),
    "release_lock_on_cudamalloc": (_BOOL, "True or False"),
    "graph_capture_record_stream_reuse": (_BOOL, "True or False"),
    "pinned_use_cuda_host_register": (_BOOL, "True or False"),
    "pinned_num_register_threads": (_INT, "a whole number"),
    "pinned_use_background_threads": (_BOOL, "True or False"),
    "pinned_reserve_segment_size_mb": (_INT, "a whole number of MB"),
}  # source: c10/core/AllocatorConfig.h and c10/cuda/CUDAAllocatorConfig.h


@dataclass(frozen=True)
class Machine:
    """What is known without importing torch. `gpus` are those that CUDA_VISIBLE_DEVICES leaves visible."""

    torch_version: tuple[int, int]
    cuda_build: bool
    gpus: int


def look() -> Machine:
    """Reads torch's version file and asks the CUDA driver how many devices it shows."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torch is not installed: run `pip install -e .` in the project's folder.")
    version = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    major, minor = re.findall(r"\d+", version["__version__"])[:2]
    return Machine((int(major), int(minor)), bool(version["cuda"]), _visible_gpus())


def _visible_gpus() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1" if sys.platform != "win32" else "nvcuda.dll")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def allocator_fault(setting: str) -> str | None:
    """A sentence about the first malformed part of an allocator setting, or None where all is well."""
    if not setting:
        return "it is empty: use null for PyTorch's own settings."
    for part in re.split(r",(?![^\[]*\])", setting):
        key, colon, value = part.partition(":")
        if key not in _GRAMMAR:
            return f"'{key}' is not an allocator setting: use {', '.join(sorted(_GRAMMAR))}."
        pattern, wanted = _GRAMMAR[key]
        if not colon or not pattern.fullmatch(value):
            return f"'{part}' should read {key}:VALUE, where VALUE is {wanted}."
    return None


def allocator_variables(torch_version: tuple[int, int]) -> tuple[str, ...]:
    """The names under which this torch reads the allocator setting for CUDA.

    Up to 2.8 only the older name exists. From 2.9 to 2.11 the newer name is documented but `expandable_segments` was
    seen to be honoured under the older one alone, so both are set, to the same value.
    Source: https://github.com/pytorch/pytorch/issues/183387
    """
    if torch_version < (2, 9):
        return (OLD_NAME,)
    return (OLD_NAME, NEW_NAME) if torch_version < (2, 12) else (NEW_NAME,)


def prepare(allocator: str | None, machine: Machine) -> None:
    """Sets the allocator's variable where the config asks for a setting; else a value that the user exported stays.

    Errors: ConfigError where an exported value is malformed, since torch would die of it with an unclear message, and
    where torch is imported already, since it would not read the variable again.
    """
    exported = {name: os.environ[name] for name in (OLD_NAME, NEW_NAME) if name in os.environ}
    if allocator is None:
        for name, value in exported.items():
            if fault := allocator_fault(value):
                raise ConfigError(f"{name}={value} is exported in this shell: {fault} Or unset {name}.")
        return
    names = allocator_variables(machine.torch_version)
    if "torch" in sys.modules:
        if any(exported.get(name) == allocator for name in names):
            return
        raise ConfigError(
            f"perf.allocator={allocator} cannot take effect: torch is imported already and reads its "
            "allocator variable once. Give each allocator setting a process of its own."
        )
    for name in exported:
        del os.environ[name]
    os.environ.update(dict.fromkeys(names, allocator))
