"""Photos: the cache, the two parts, the items."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from framework.data import photos
from framework.data.images import read_rgb
from framework.data.photos import Photos, Stored

SMALL = Stored(width=80, height=60)
COUNT = 20


def photo_set(path: Path, train: bool = True, stored: Stored = SMALL) -> Photos:
    return Photos(train, str(path), COUNT, 32, stored)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_items_are_normalised_squares_with_both_labels(tmp_path: Path) -> None:
    for train in (True, False):
        data = photo_set(tmp_path, train)
        for image, label in data:
            assert image.shape == (3, 32, 32)
            assert image.dtype == torch.float32
            assert type(label) is int
            assert 0.1 < image.std() < 3
        assert {data[index][1] for index in range(len(data))} == {0, 1}


def test_the_label_is_the_photograph(tmp_path: Path) -> None:
    """A crop of the photographs' full size is the whole photograph, up to JPEG's loss."""
    data = Photos(True, str(tmp_path), 10, 32, Stored(640, 427))
    for index, photograph in enumerate(("china.jpg", "flower.jpg")):
        assert data[index][1] == index
        file = data.folder / photos._file_name(index)
        difference = np.array(read_rgb(file)).astype(float) - load_sample_image(photograph)
        assert np.abs(difference).mean() < 8


def test_crops_lie_at_different_places(tmp_path: Path) -> None:
    assert len(set(contents(photo_set(tmp_path).folder).values())) == COUNT


def test_files_have_the_stored_size_and_indices_end(tmp_path: Path) -> None:
    train, held_out = photo_set(tmp_path), photo_set(tmp_path, train=False)
    assert train.folder == held_out.folder
    assert (len(train), len(held_out)) == (16, 4)
    files = sorted(train.folder.iterdir())
    assert len(files) == COUNT
    with Image.open(files[0]) as picture:
        assert (picture.size, picture.format) == ((80, 60), "JPEG")
    for data in (train, held_out):
        for index in (len(data), -1):
            with pytest.raises(IndexError):
                data[index]


def test_every_file_is_read_by_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def read_and_note(path: Path) -> Image.Image:
        opened.append(path.name)
        return read_rgb(path)

    monkeypatch.setattr(photos, "read_rgb", read_and_note)
    labels = [label for train in (True, False) for _, label in photo_set(tmp_path, train)]
    assert sorted(opened) == sorted(contents(photo_set(tmp_path).folder))
    assert labels == [int(name[:7]) % 2 for name in opened]


def test_training_draws_from_torch_and_held_out_draws_nothing(tmp_path: Path) -> None:
    train, held_out = photo_set(tmp_path), photo_set(tmp_path, train=False)
    torch.manual_seed(5)
    first, second = train[0][0], train[0][0]
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(train[0][0], first)
    state = torch.get_rng_state()
    assert torch.equal(held_out[0][0], held_out[0][0])
    assert torch.equal(state, torch.get_rng_state())


def test_the_second_construction_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(photo_set(tmp_path).folder)
    monkeypatch.setattr(photos, "load_sample_image", None)
    assert contents(photo_set(tmp_path).folder) == before
    with pytest.raises(TypeError):
        photo_set(tmp_path, stored=Stored(width=81, height=60))


def test_the_seed_and_every_parameter_have_a_folder_of_their_own(tmp_path: Path) -> None:
    first = photo_set(tmp_path / "a")
    assert contents(first.folder) == contents(photo_set(tmp_path / "b").folder)
    variants = [Stored(80, 60, seed=1), Stored(80, 60, quality=50), Stored(81, 60), Stored(80, 61)]
    others = [photo_set(tmp_path / "a", stored=stored) for stored in variants]
    others.append(Photos(True, str(tmp_path / "a"), COUNT + 1, 32, SMALL))
    assert len({first.folder, *(other.folder for other in others)}) == 6
    assert contents(others[0].folder) != contents(first.folder)
    assert sum(map(len, contents(others[1].folder).values())) < sum(map(len, contents(first.folder).values()))


@pytest.mark.parametrize("blow", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_build_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blow: type[BaseException]
) -> None:
    written = []

    def name_until_the_blow(number: int) -> str:
        if number == 7:
            written.extend(tmp_path.rglob("*.jpg"))
            raise blow
        return f"{number:07d}.jpg"

    with monkeypatch.context() as patch:
        patch.setattr(photos, "_file_name", name_until_the_blow)
        with pytest.raises(blow):
            photo_set(tmp_path)
    assert len(written) == 7
    assert list(tmp_path.iterdir()) == []
    assert len(contents(photo_set(tmp_path).folder)) == COUNT


def test_builders_at_once_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All four pass the check for the folder before any of them has published it."""
    everyone_has_written = threading.Barrier(4, timeout=20)
    publish = photos._publish

    def publish_together(draft: Path, folder: Path) -> None:
        everyone_has_written.wait()
        publish(draft, folder)

    monkeypatch.setattr(photos, "_publish", publish_together)
    folders: list[Path] = []
    builders = [threading.Thread(target=lambda: folders.append(photo_set(tmp_path).folder)) for _ in range(4)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert len(folders) == 4
    assert list(tmp_path.iterdir()) == [folders[0]]
    assert len(contents(folders[0])) == COUNT


def test_the_default_place_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    data = Photos(True, None, COUNT, 32, SMALL)
    assert data.folder.parent == tmp_path / "xdg" / "gearshift"
    assert data.folder.name == "photos-80x60-quality90-count20-seed0"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Photos(True, None, COUNT, 32, SMALL).folder.parent == tmp_path / "home" / ".cache" / "gearshift"
    assert photo_set(Path("~/mine")).folder.parent == tmp_path / "home" / "mine"


def test_the_defaults_are_the_measured_shape() -> None:
    assert (Stored().width, Stored().height, Stored().quality) == (500, 375, 90)


@pytest.mark.parametrize(
    ("count", "stored", "words"),
    [
        (9, SMALL, r"data\.count=9 must be at least 10"),
        (COUNT, Stored(width=641), r"641x375 must fit into the 640x427 .* data\.train\.stored\.width"),
        (COUNT, Stored(height=0), r"500x0 must fit"),
        (COUNT, Stored(quality=0), r"data\.train\.stored\.quality=0 must be between 1 and 95"),
    ],
)
def test_numbers_out_of_range_are_refused(tmp_path: Path, count: int, stored: Stored, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Photos(True, str(tmp_path), count, 32, stored)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"data\.path: the photos cannot be written below .*file.*: set data\.path"):
        photo_set(tmp_path / "file")


def test_a_file_that_was_removed_is_named(tmp_path: Path) -> None:
    data = photo_set(tmp_path)
    (data.folder / "0000003.jpg").unlink()
    with pytest.raises(ValueError, match=r"0000003\.jpg cannot be read"):
        data[3]
    assert read_rgb(data.folder / "0000002.jpg").size == (80, 60)
