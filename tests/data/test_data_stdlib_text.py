"""The standard library's sources as text."""

import sysconfig
from pathlib import Path

import pytest
import torch

from framework.data.stdlib_text import StdlibText


@pytest.fixture(scope="module")
def train() -> StdlibText:
    return StdlibText(train=True, context=64)


@pytest.fixture(scope="module")
def held_out() -> StdlibText:
    return StdlibText(train=False, context=64)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small standard library in the real one's place."""
    monkeypatch.setattr(sysconfig, "get_path", {"stdlib": str(tmp_path)}.__getitem__)
    return tmp_path


def write(root: Path, names: list[str]) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<{name}>")


def test_items_are_two_windows_shifted_by_one_byte(train: StdlibText) -> None:
    tokens, targets = train[0]
    assert tokens.shape == targets.shape == (64,)
    assert tokens.dtype == targets.dtype == torch.int64
    assert torch.equal(tokens[1:], targets[:-1])
    assert train.text.dtype == torch.uint8
    assert bytes(tokens.tolist()) in train.text.numpy().tobytes()


def test_the_text_is_large_and_about_a_tenth_is_held_out(train: StdlibText, held_out: StdlibText) -> None:
    total = len(train.text) + len(held_out.text)
    assert total > 3_000_000
    assert 0.03 < len(held_out.text) / total < 0.25
    assert b"def dump(obj, fp" in train.text.numpy().tobytes() + held_out.text.numpy().tobytes()


def test_an_epoch_is_the_text_or_the_stated_count(train: StdlibText) -> None:
    assert len(train) == len(train.text) // 64
    short = StdlibText(True, 64, count=5)
    assert len(short) == 5
    with pytest.raises(IndexError, match="5 windows"):
        short[5]
    with pytest.raises(IndexError):
        short[-1]


def test_every_file_is_in_one_part_and_tests_and_tables_in_none(library: Path) -> None:
    names = [f"package{number % 7}/module{number}.py" for number in range(100)]
    skipped = ["test/a.py", "json/tests/b.py", "site-packages/c.py", "lib2to3/d.py", "encodings/e.py"]
    write(library, [*names, *skipped, "readme.txt", "_sysconfigdata_linux.py"])
    texts = [StdlibText(part, 4).text.numpy().tobytes().decode() for part in (True, False)]
    assert "".join(texts).count("<") == 100
    for name in names:
        assert sum(f"<{name}>" in text for text in texts) == 1
    assert 80 <= texts[0].count("<") <= 97


def test_a_file_keeps_its_part_when_others_come(library: Path) -> None:
    names = [f"module{number}.py" for number in range(60)]
    write(library, names)
    before = StdlibText(False, 4).text.numpy().tobytes().decode()
    write(library, [f"new{number}.py" for number in range(60)])
    after = StdlibText(False, 4).text.numpy().tobytes().decode()
    assert [name for name in names if f"<{name}>" in before] == [name for name in names if f"<{name}>" in after]


def test_training_windows_follow_torchs_generator(train: StdlibText) -> None:
    torch.manual_seed(3)
    first, second = train[0][0], train[0][0]
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(train[0][0], first)


def test_held_out_windows_depend_on_seed_and_index_alone(held_out: StdlibText) -> None:
    state = torch.get_rng_state()
    windows = torch.stack([held_out[index][0] for index in range(50)])
    assert len(windows.unique(dim=0)) > 40
    again, other = StdlibText(False, 64), StdlibText(False, 64, seed=1)
    assert torch.equal(windows, torch.stack([again[index][0] for index in range(50)]))
    assert not torch.equal(windows, torch.stack([other[index][0] for index in range(50)]))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("train_part", [True, False])
def test_the_last_byte_can_be_reached_and_nothing_beyond(library: Path, train_part: bool) -> None:
    write(library, [f"module{number}.py" for number in range(60)])
    size = len(StdlibText(train_part, 4).text)
    data = StdlibText(train_part, size - 2, count=64)
    starts = {(window[0].numel(), window[1].numel(), bytes(window[0][:20].tolist())) for window in data}
    assert {entry[:2] for entry in starts} == {(size - 2, size - 2)}
    assert len(starts) == 2


def test_mistakes_are_named(library: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.context=0 must be at least 1"):
        StdlibText(True, 0)
    with pytest.raises(ValueError, match=r"data\.count=0 must be at least 1, or null"):
        StdlibText(True, 8, count=0)
    with pytest.raises(
        ValueError, match=r"data\.context=8 needs at least 9 bytes .* give 0: set a smaller data\.context"
    ):
        StdlibText(True, 8)
    write(library, [f"module{number}.py" for number in range(60)])
    with pytest.raises(ValueError, match=r"data\.context=9000 needs at least 9001 bytes"):
        StdlibText(True, 9000)
