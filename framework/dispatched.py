"""Which kernels of scaled_dot_product_attention are dispatched, seen while a forward runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

FUSED = ("flash", "efficient", "cudnn", "overrideable")


class _Operators(TorchDispatchMode):
    """Keeps the names of the attention operators that reach a device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if "attention" in str(func):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    """Counts calls of scaled_dot_product_attention by kernel; `math` is made of common operators, so none is seen."""

    def __init__(self, operators: _Operators) -> None:
        super().__init__()
        self.operators, self.kernels = operators, Counter[str]()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        before = len(self.operators.names)
        output = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            names = " ".join(self.operators.names[before:])
            self.kernels[next((kernel for kernel in FUSED if kernel in names), "math")] += 1
        return output


@contextmanager
def attention_watched() -> Iterator[Counter[str]]:
    """Counts the calls within by kernel. torch's transformer layers take the way they take in training."""
    operators, fast = _Operators(), torch.backends.mha.get_fastpath_enabled()
    calls = _Calls(operators)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with operators, calls:
            yield calls.kernels
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
