"""Which kernels of scaled_dot_product_attention are dispatched, seen while a forward runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FUSED = ("flash", "efficient", "cudnn", "overrideable")
MATH = "aten._safe_softmax."  # this kernel is made of common operators, of which it alone calls this one, once


class _Operators(TorchDispatchMode):
    """Counts the operators that attention comes down to, by kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = Counter[str]()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func)
        if name.startswith(MATH):
            self.kernels["math"] += 1
        elif name.startswith("aten.") and "attention" in name:
            self.kernels.update(kernel for kernel in FUSED if kernel in name)
        return func(*args, **(kwargs or {}))


@contextmanager
def attention_watched() -> Iterator[Counter[str]]:
    """Counts the calls within by kernel. torch's transformer layers take the way they take in training."""
    operators, fast = _Operators(), torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with operators:
            yield operators.kernels
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
