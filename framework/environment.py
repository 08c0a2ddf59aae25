"""What must be true before torch is imported: the machine is known and the allocator's variable is set.

torch reads its allocator variable once, while it is imported, so nothing here may import it. What the machine has
is asked of the driver and of torch's own version file instead.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from framework.mistakes import ConfigError

OLD_NAME, NEW_NAME = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


def _whole(least: int, most: float = float("inf")) -> Callable[[str], bool]:
    return lambda value: value.isdecimal() and least <= int(value) <= most


def _word(*words: str) -> Callable[[str], bool]:
    return lambda value: value in words


def _power(value: str) -> bool:
    return value.isdecimal() and int(value).bit_count() == 1


def _divisions(value: str) -> bool:
    pairs = [part.partition(":")[::2] for part in value[1:-1].split(",")]
    listed = value[:1] + value[-1:] == "[]"
    return _power(value) or (
        listed and all((key == ">" or _power(key)) and (count == "0" or _power(count)) for key, count in pairs)
    )


def _fraction(value: str) -> bool:
    return bool(re.fullmatch(r"\d*\.\d+|[01]\.?", value)) and float(value) <= 1


_BOOL = (_word("True", "False"), "True or False")
_MB = (_whole(0), "a whole number of MB")
_GRAMMAR = {
    "backend": (_word("native", "cudaMallocAsync"), "native or cudaMallocAsync"),
    "expandable_segments": _BOOL,
    "max_split_size_mb": (_whole(20), "a whole number of MB from 20 on"),
    "max_non_split_rounding_mb": (_whole(20), "a whole number of MB from 20 on"),
    "large_segment_size_mb": (_whole(11), "a whole number of MB above 10"),
    "garbage_collection_threshold": (lambda v: _fraction(v) and 0 < float(v) < 1, "a fraction such as 0.8"),
    "per_process_memory_fraction": (_fraction, "a fraction such as 0.8"),
    "roundup_power2_divisions": (_divisions, "a power of two, or a list of them such as [256:1,512:2,>:8]"),
    "release_lock_on_cudamalloc": _BOOL,
    "graph_capture_record_stream_reuse": _BOOL,
    "throw_on_cudamalloc_oom": _BOOL,
    "pinned_use_cuda_host_register": _BOOL,
    "pinned_num_register_threads": (lambda v: _power(v) and int(v) <= 128, "a power of two up to 128"),
    "pinned_use_background_threads": _BOOL,
    "pinned_reserve_segment_size_mb": _MB,
    "pinned_max_round_threshold_mb": _MB,
    "pinned_max_cached_size_mb": _MB,
    "pinned_free_catch_all": _BOOL,
}  # source: c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp


@dataclass(frozen=True)
class Machine:
    """What is known without importing torch. `gpus` are those that CUDA_VISIBLE_DEVICES leaves visible."""

    torch_version: tuple[int, int]
    cuda_build: bool
    gpus: int


def look() -> Machine:
    """Reads torch's version file and asks the CUDA driver how many devices it shows. Errors: those of `alone`."""
    alone()
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torch is not installed: run `pip install -e .` in the project's folder.")
    version = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    major, minor = re.findall(r"\d+", version["__version__"])[:2]
    return Machine((int(major), int(minor)), bool(version["cuda"]), _visible_gpus())


def alone() -> None:
    """Errors: ConfigError where this process is one of several copies, which would all do the same work again."""
    if (copies := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise ConfigError(
            f"WORLD_SIZE={copies}: a run is one process and a sweep starts its own, so copies of this one would each "
            "take a folder and do all of it again. Start it once, without torchrun, or unset WORLD_SIZE."
        )


_COUNT = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
print(0 if failed else count.value)
"""


def _visible_gpus() -> int:
    """Asks in a process of its own: a driver that was started here could not be used in forked workers."""
    command = [sys.executable, "-I", "-S", "-c", _COUNT]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(answer.stdout) if answer.returncode == 0 else 0  # it fails where there is no driver


def allocator_fault(setting: str) -> str | None:
    """A sentence about the first malformed part of an allocator setting, or None where all is well."""
    compact = "".join(setting.split())  # torch leaves out white space too
    if not compact:
        return "it is empty: use null for PyTorch's own settings."
    for part in re.split(r",(?![^\[]*\])", compact.removesuffix(",")):
        key, colon, value = part.partition(":")
        if key not in _GRAMMAR:
            return f"'{part}' should read KEY:VALUE, where KEY is one of {', '.join(sorted(_GRAMMAR))}."
        fits, wanted = _GRAMMAR[key]
        if not colon or not fits(value):
            return f"'{part}' should read {key}:VALUE, where VALUE is {wanted}."
    return None


def allocator_variables(torch_version: tuple[int, int]) -> tuple[str, ...]:
    """The names under which this torch reads the allocator setting for CUDA.

    Up to 2.8 only the older name exists. In 2.9.1 the newer name is documented, but `expandable_segments` is honoured
    under the older one alone; 2.11.0 was seen to honour either. So up to 2.11 both are set, to the same value.
    Source: https://github.com/pytorch/pytorch/issues/183387
    """
    if torch_version < (2, 9):
        return (OLD_NAME,)
    return (OLD_NAME, NEW_NAME) if torch_version < (2, 12) else (NEW_NAME,)


def _present() -> dict[str, str]:
    return {name: os.environ[name] for name in (OLD_NAME, NEW_NAME) if name in os.environ}


_exported = functools.cache(_present)  # by the user, as seen by the first run of a process


def prepare(allocator: str | None, machine: Machine) -> None:
    """Sets the allocator's variable where the config asks for a setting; else a value that the user exported stays.

    Errors: ConfigError where an exported value is malformed, since torch would die of it with an unclear message, and
    where torch is imported already with another setting, since it would not read the variable again.
    """
    exported = _exported()
    wanted = exported if allocator is None else dict.fromkeys(allocator_variables(machine.torch_version), allocator)
    if "torch" in sys.modules and set(wanted.values()) != set(_present().values()):
        raise ConfigError(
            f"perf.allocator={allocator or 'null'} cannot take effect: torch is imported already, and reads its "
            "allocator variable once. Give each allocator setting a process of its own."
        )
    for name, value in wanted.items() if allocator is None else ():
        if fault := allocator_fault(value):
            raise ConfigError(f"{name}={value} is exported in this shell: {fault} Or unset {name}.")
    for name in _present():
        del os.environ[name]
    os.environ.update(wanted)
