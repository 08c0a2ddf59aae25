"""The records of all techniques, by name, in the order in which the docs list them."""

from __future__ import annotations

from framework.techniques import (
    activation_checkpoint,
    allocator,
    amp,
    attention,
    batch_fetch,
    channels_last,
    cudnn_benchmark,
    fused_optimizer,
    gc_freeze,
    log_every,
    pinned,
    prefetch,
    resident,
    tf32,
    workers,
)
from framework.techniques import compile as compiling

_MODULES = (
    *(workers, pinned, prefetch, batch_fetch, resident, amp, tf32, log_every, allocator),
    *(compiling, channels_last, fused_optimizer, cudnn_benchmark),
    *(attention, activation_checkpoint, gc_freeze),
)
RECORDS = {module.RECORD.name: module.RECORD for module in _MODULES}
