"""Other processes on the GPU of a run: they take its time, and a study that knew nothing of them would blame an arm."""

from __future__ import annotations

import subprocess

import torch

LONGEST_S = 20.0  # nvidia-smi may hang where the driver does


def neighbours(device: torch.device) -> tuple[int | None, str]:
    """How many processes but this one use the GPU; None, with the reason, where that is not known.

    This process must have used the GPU before, so that it is one of those that are listed. They are counted and not
    told apart by their numbers, which may be other ones in a container.
    """
    if device.type != "cuda":
        return None, "the run is not on a GPU"
    return listed_besides_this(f"GPU-{torch.cuda.get_device_properties(device).uuid}")


def listed_besides_this(gpu: str) -> tuple[int | None, str]:
    """As `neighbours`, of the GPU that nvidia-smi knows by this name."""
    command = ["nvidia-smi", f"--id={gpu}", "--query-compute-apps=pid", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=True)
    except OSError as error:
        return None, f"nvidia-smi could not be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return None, f"nvidia-smi did not answer within {LONGEST_S:g} s"
    except subprocess.CalledProcessError as error:
        return None, f"nvidia-smi failed: {' '.join((error.stdout + error.stderr).split())}"
    processes = len(answer.stdout.split())
    return (processes - 1, "") if processes else (None, "nvidia-smi shows no processes here, not even this one")
