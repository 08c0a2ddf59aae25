"""Run folders: one run, one folder."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from framework import folder
from framework.folder import claim, give_up, taken
from framework.mistakes import ConfigError


class Frozen(datetime):
    @classmethod
    def now(cls, tz: object = None) -> Frozen:
        return cls(2026, 1, 2, 3, 4, 5)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(folder, "datetime", Frozen)
    claim.cache_clear()
    yield
    claim.cache_clear()


def claimed(root: str) -> str:
    claim.cache_clear()
    return claim(root, "run")


def test_a_claim_names_day_second_and_run(tmp_path: Path) -> None:
    assert claim(str(tmp_path), "digits") == str(tmp_path / "2026-01-02" / "030405_digits")
    assert Path(claim(str(tmp_path), "digits")).is_dir()


def test_one_process_gets_one_answer(tmp_path: Path) -> None:
    assert claim(str(tmp_path), "digits") == claim(str(tmp_path), "digits")
    assert len(list(tmp_path.glob("*/*"))) == 1


def test_A04_claims_of_one_second_never_meet(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        claims = pool.map(claimed, [str(tmp_path)] * 40, chunksize=1)
    assert len(set(claims)) == 40
    assert sorted(claims) == sorted(str(path) for path in tmp_path.glob("*/*"))


def test_A04_a_folder_that_is_given_up_meanwhile_does_no_harm(tmp_path: Path) -> None:
    ended = threading.Event()

    def give_up_all_the_time() -> None:
        while not ended.is_set():
            for empty in (tmp_path / "outputs" / "2026-01-02", tmp_path / "outputs"):
                with contextlib.suppress(OSError):
                    empty.rmdir()

    other = threading.Thread(target=give_up_all_the_time)
    other.start()
    try:
        for _ in range(100):
            made = Path(claimed(str(tmp_path / "outputs")))
            assert made.is_dir()
            give_up(made)
    finally:
        ended.set()
        other.join()


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("a b", "a-b"),
        ("lr=0.1,seed=2", "lr-0.1-seed-2"),
        ("../../etc", "etc"),
        ("[x]{y}(z)|%#'\"", "x-y-z"),
        ("é", "run"),
        ("", "run"),
        ("..", "run"),
        ("x" * 200, "x" * 80),
    ],
)
def test_A06_a_name_needs_no_quoting(tmp_path: Path, name: str, safe: str) -> None:
    path = Path(claim(str(tmp_path), name))
    assert path.name == f"030405_{safe}"
    assert path.parent.parent == tmp_path
    assert re.fullmatch(r"[A-Za-z0-9._-]+", path.name)


@pytest.mark.parametrize("blocked", ["outputs", "outputs/2026-01-02"])
def test_a_place_where_nothing_can_be_created_is_told(tmp_path: Path, blocked: str) -> None:
    file = tmp_path / blocked
    file.parent.mkdir(exist_ok=True)
    file.write_text("a file")
    with pytest.raises(OSError, match="outputs"):
        claim(str(tmp_path / "outputs"), "run")


def test_giving_up_removes_what_was_claimed_and_nothing_else(tmp_path: Path) -> None:
    first = Path(claimed(str(tmp_path / "outputs")))
    second = Path(claimed(str(tmp_path / "outputs")))
    give_up(first)
    assert second.is_dir()
    (second / "file").touch()
    give_up(second)
    assert (second / "file").exists()
    (second / "file").unlink()
    give_up(second)
    assert list(tmp_path.iterdir()) == []


def test_giving_up_a_folder_of_the_users_leaves_those_above(tmp_path: Path) -> None:
    mine = tmp_path / "results" / "mine"
    mine.mkdir(parents=True)
    give_up(mine)
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    give_up(tmp_path / "absent" / "absent")


def test_taking_marks_a_folder_with_its_config(tmp_path: Path) -> None:
    with taken(tmp_path / "new", "a: 1\n"):
        assert (tmp_path / "new" / "config.yaml").read_text() == "a: 1\n"
    assert (tmp_path / "new" / "config.yaml").exists()


def test_A04_a_folder_is_taken_once(tmp_path: Path) -> None:
    with taken(tmp_path, "a: 1\n"):
        pass
    with pytest.raises(ConfigError, match="holds a run already"), taken(tmp_path, "a: 2\n"):
        pytest.fail("was taken twice")
    assert (tmp_path / "config.yaml").read_text() == "a: 1\n"


def test_a_config_that_proves_wrong_leaves_no_mark(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wrong"), taken(tmp_path, "a: 1\n"):
        raise ConfigError("wrong")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyError), taken(tmp_path, "a: 1\n"):
        raise KeyError("a crash")
    assert (tmp_path / "config.yaml").exists()
