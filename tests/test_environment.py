"""What is settled before torch is imported: the machine, and the allocator's variable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from framework import environment
from framework.environment import NEW_NAME, OLD_NAME, Machine, allocator_fault, allocator_variables, prepare
from framework.mistakes import ConfigError
from framework.techniques import allocator

PROJECT = str(Path(__file__).parents[1])
GOOD = [
    "expandable_segments:True",
    "expandable_segments:False,max_split_size_mb:20",
    " expandable_segments : True , max_split_size_mb : 64 ",
    "expandable_segments:True,",
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:.999",
    "per_process_memory_fraction:0.5",
    "per_process_memory_fraction:1",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[256:0,>:1],expandable_segments:True",
    "backend:native",
    "large_segment_size_mb:11",
    "max_non_split_rounding_mb:32",
    "release_lock_on_cudamalloc:True",
    "graph_capture_record_stream_reuse:True",
    "throw_on_cudamalloc_oom:True",
    "pinned_use_cuda_host_register:True,pinned_num_register_threads:128",
    "pinned_use_background_threads:False",
    "pinned_reserve_segment_size_mb:100",
    "pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:64",
    "pinned_free_catch_all:True",
]
BAD = {  # the setting, and the part that the sentence must show
    "expandable_segments": "'expandable_segments' should read expandable_segments:VALUE, where VALUE is True or False",
    "expandable_segments:Ture": "'expandable_segments:Ture'",
    "expandable_segments:true": "'expandable_segments:true'",
    "expandable_segments:": "'expandable_segments:'",
    "expandable_segments:True max_split_size_mb:64": "'expandable_segments:Truemax_split_size_mb:64'",
    "max_split_size_mb=512": "'max_split_size_mb=512' should read KEY:VALUE, where KEY is one of backend",
    "max_split_size_mb:": "'max_split_size_mb:'",
    "max_split_size_mb:512MB": "'max_split_size_mb:512MB'",
    "max_split_size_mb:19": "a whole number of MB from 20 on",
    "max_split_size_mb:-1": "'max_split_size_mb:-1'",
    "foo:1": "'foo:1' should read KEY:VALUE",
    "expandable_segments:True,foo:1": "'foo:1'",
    "expandable_segments:True,,max_split_size_mb:64": "'' should read KEY:VALUE",
    ",": "'' should read KEY:VALUE",
    "garbage_collection_threshold:1.0": "'garbage_collection_threshold:1.0'",
    "garbage_collection_threshold:0": "'garbage_collection_threshold:0'",
    "per_process_memory_fraction:1.5": "'per_process_memory_fraction:1.5'",
    "roundup_power2_divisions:3": "a power of two",
    "roundup_power2_divisions:[256:1,512:3]": "'roundup_power2_divisions:[256:1,512:3]'",
    "roundup_power2_divisions:[300:1]": "'roundup_power2_divisions:[300:1]'",
    "roundup_power2_divisions:[256:1": "'roundup_power2_divisions:[256:1'",
    "pinned_num_register_threads:3": "a power of two up to 128",
    "pinned_num_register_threads:256": "a power of two up to 128",
    "large_segment_size_mb:10": "above 10",
    "backend:cuda": "native or cudaMallocAsync",
}
LENIENT = {"max_split_size_mb:512MB", "max_split_size_mb:-1"}  # torch reads these, as what nobody meant
EMPTY = ["", "  "]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the shell, nothing remembered from runs before, and torch as if it were not imported."""
    for name in (OLD_NAME, NEW_NAME):
        monkeypatch.setenv(name, "")  # so that what a test sets is taken back
        monkeypatch.delenv(name)
    environment._exported.cache_clear()
    monkeypatch.delitem(sys.modules, "torch")
    yield
    environment._exported.cache_clear()


def variables() -> dict[str, str]:
    return {name: os.environ[name] for name in (OLD_NAME, NEW_NAME) if name in os.environ}


@pytest.mark.parametrize("setting", GOOD)
def test_F03_a_good_setting_passes(setting: str) -> None:
    assert allocator_fault(setting) is None


@pytest.mark.parametrize("setting", BAD)
def test_F03_a_malformed_setting_is_refused_with_its_part(setting: str) -> None:
    assert BAD[setting] in (allocator_fault(setting) or "")


@pytest.mark.parametrize("setting", EMPTY)
def test_F03_an_empty_setting_is_refused(setting: str) -> None:
    assert "use null" in (allocator_fault(setting) or "")


@pytest.mark.skipif(torch.version.cuda is None, reason="a CPU build of torch lacks the parser of the CUDA keys")
def test_F03_torch_itself_agrees() -> None:
    """torch's own parser takes what we let pass and refuses what we refuse, in a process that it may spoil."""
    program = (
        "import json, sys, torch\n"
        "refused = []\n"
        "for setting in json.load(sys.stdin):\n"
        "    try:\n"
        "        torch._C._accelerator_setAllocatorSettings(setting)\n"
        "    except Exception:\n"
        "        refused.append(setting)\n"
        "print(json.dumps(refused))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps([*BAD, *GOOD]), capture_output=True, text=True, check=True
    )
    refused = set(json.loads(done.stdout))
    assert refused & set(GOOD) == set()
    assert set(BAD) - refused == LENIENT


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ((2, 1), (OLD_NAME,)),
        ((2, 8), (OLD_NAME,)),
        ((2, 9), (OLD_NAME, NEW_NAME)),
        ((2, 11), (OLD_NAME, NEW_NAME)),
        ((2, 12), (NEW_NAME,)),
        ((2, 14), (NEW_NAME,)),
        ((3, 0), (NEW_NAME,)),
    ],
)
def test_F02_the_variable_is_chosen_by_version(version: tuple[int, int], names: tuple[str, ...]) -> None:
    assert allocator_variables(version) == names
    prepare("max_split_size_mb:64", Machine(version, True, 1))
    assert variables() == dict.fromkeys(names, "max_split_size_mb:64")


@pytest.mark.parametrize("name", [OLD_NAME, NEW_NAME])
def test_F02_either_name_of_the_user_stays_where_nothing_is_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "expandable_segments:True")
    prepare(None, Machine((2, 14), True, 1))
    assert variables() == {name: "expandable_segments:True"}


@pytest.mark.parametrize("name", [OLD_NAME, NEW_NAME])
def test_F02_a_setting_of_the_config_replaces_that_of_the_shell(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "stale and malformed")
    prepare("max_split_size_mb:64", Machine((2, 14), True, 1))
    assert variables() == {NEW_NAME: "max_split_size_mb:64"}


@pytest.mark.parametrize("name", [OLD_NAME, NEW_NAME])
def test_F03_a_stale_value_of_the_shell_is_told_with_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "max_split_size_mb=512")
    with pytest.raises(
        ConfigError, match=rf"^{name}=max_split_size_mb=512 is exported in this shell: .* Or unset {name}\.$"
    ):
        prepare(None, Machine((2, 14), True, 1))


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "max_split_size_mb:64"), ("max_split_size_mb:64", None), ("max_split_size_mb:64", "max_split_size_mb:32")],
)
def test_F01_a_changed_setting_is_refused_once_torch_is_imported(
    before: str | None, after: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine((2, 14), True, 1)
    prepare(before, machine)
    held = variables()
    monkeypatch.setitem(sys.modules, "torch", torch)
    prepare(before, machine)  # the same again does no harm
    with pytest.raises(ConfigError, match=r"cannot take effect: torch is imported already.*a process of its own"):
        prepare(after, machine)
    assert variables() == held


def test_F01_what_the_user_exported_counts_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OLD_NAME, "max_split_size_mb:64")
    monkeypatch.setitem(sys.modules, "torch", torch)
    prepare("max_split_size_mb:64", Machine((2, 14), True, 1))
    prepare(None, Machine((2, 14), True, 1))


def test_look_tells_this_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torch" not in sys.modules
    machine = environment.look()
    assert machine.torch_version == tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert machine.cuda_build == (torch.version.cuda is not None)
    assert "torch" not in sys.modules


@pytest.mark.parametrize(("printed", "code", "gpus"), [("2\n", 0, 2), ("0\n", 0, 0), ("", 1, 0), ("", -11, 0)])
def test_B10_the_driver_is_asked_in_a_process_of_its_own(
    printed: str, code: int, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(command: list[str], **_: Any) -> SimpleNamespace:
        assert command[0] == sys.executable
        assert "cuInit" in command[-1]
        return SimpleNamespace(stdout=printed, returncode=code)

    monkeypatch.setattr(environment.subprocess, "run", asked)
    assert environment.look().gpus == gpus


def test_a_machine_without_a_driver_shows_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_COUNT", environment._COUNT.replace("libcuda.so.1", "no such library"))
    assert environment.look().gpus == 0


# The allocator's own word on what took effect


def reported(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"allocator_settings": settings})
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")


@pytest.mark.parametrize(
    ("asked", "settings", "active"),
    [
        ("expandable_segments:True", {"expandable_segments": True}, True),
        ("expandable_segments:True", {"expandable_segments": False}, False),
        (" expandable_segments : True, ", {"expandable_segments": True}, True),
        ("max_split_size_mb:64", {"max_split_size": 64 * 2**20}, True),
        ("max_split_size_mb:64", {"max_split_size": 2**64 - 1}, False),
        ("garbage_collection_threshold:0.8", {"garbage_collection_threshold": 0.800000011920929}, True),
        ("garbage_collection_threshold:0.8", {"garbage_collection_threshold": 0.0}, False),
        ("backend:native", {}, True),
        ("backend:cudaMallocAsync", {}, False),
        ("expandable_segments:True,max_split_size_mb:64", {"expandable_segments": True, "max_split_size": -1}, False),
        ("pinned_free_catch_all:True", {"expandable_segments": True}, None),
        ("roundup_power2_divisions:[256:1,>:8]", {"roundup_power2_divisions": {"256": 0}}, None),
    ],
)
def test_F01_the_setting_is_verified_by_asking_the_allocator(
    asked: str, settings: dict[str, Any], active: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported(monkeypatch, **settings)
    assert allocator.evidence(asked).active is active


def test_F01_another_backend_is_not_asked_for_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_snapshot() -> None:
        raise RuntimeError("cudaMallocAsync does not yet support snapshot")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", no_snapshot)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    assert allocator.evidence("backend:cudaMallocAsync").active is True
    assert allocator.evidence("backend:native").active is False
    assert allocator.evidence("expandable_segments:True").active is None


# On a GPU


@pytest.mark.gpu
def test_look_counts_what_torch_counts() -> None:
    assert environment.look().gpus == torch.cuda.device_count() > 0


@pytest.mark.gpu
def test_B10_a_forked_worker_can_use_the_gpu_after_a_look() -> None:
    program = (
        "import os, sys\n"
        f"sys.path.insert(0, {PROJECT!r})\n"
        "from framework import environment\n"
        "assert environment.look().gpus\n"
        "import torch\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    torch.ones(1, device='cuda')\n"
        "    os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("setting", ["expandable_segments:True", "max_split_size_mb:64"])
def test_F01_the_setting_takes_effect(setting: str) -> None:
    program = (
        "import json, sys\n"
        f"sys.path.insert(0, {PROJECT!r})\n"
        "from framework import environment\n"
        f"environment.prepare({setting!r}, environment.look())\n"
        "import torch\n"
        "from framework.techniques import allocator\n"
        "torch.ones(1, device='cuda')\n"
        f"asked = ({setting!r}, 'max_split_size_mb:99')\n"
        "print(json.dumps([allocator.evidence(one).active for one in asked]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [True, False]
