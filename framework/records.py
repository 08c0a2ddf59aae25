"""The records of all techniques, by name, in the order in which the docs list them."""

from __future__ import annotations

from framework.techniques import (
    allocator,
    amp,
    channels_last,
    cudnn_benchmark,
    fused_optimizer,
    log_every,
    pinned,
    prefetch,
    tf32,
    workers,
)
from framework.techniques import compile as compiling

_MODULES = (
    *(workers, pinned, prefetch, amp, tf32, log_every, allocator),
    *(compiling, channels_last, fused_optimizer, cudnn_benchmark),
)
RECORDS = {module.RECORD.name: module.RECORD for module in _MODULES}
