"""The user's own pictures."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from framework.data.imagefolder import ImageFolder

COLOURS = {"cat": (250, 0, 0), "dog": (0, 250, 0), "été": (0, 0, 250)}


def fill(root: Path) -> None:
    """Three classes with 5 training and 2 held-out pictures each, told apart by their colour channel."""
    for part, count in (("train", 5), ("val", 2)):
        for name, colour in COLOURS.items():
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (30 + number, 20), colour).save(folder / f"{'x' * number}{number}.png")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("train", "count"), [(True, 15), (False, 6)])
def test_every_picture_has_its_folders_label(root: Path, train: bool, count: int) -> None:
    data = ImageFolder(str(root), train, image_size=16)
    assert len(data) == count
    for index in range(count):
        image, label = data[index]
        assert image.shape == (3, 16, 16)
        assert image.dtype == torch.float32
        assert type(label) is int
        assert int(image.mean(dim=(1, 2)).argmax()) == label
    files = [data.file(index) for index in range(count)]
    assert files == sorted((root / ("train" if train else "val")).glob("*/*.png"))


def test_training_draws_from_torch_and_held_out_draws_nothing(root: Path) -> None:
    state = torch.get_rng_state()
    held_out = ImageFolder(str(root), train=False, image_size=16)
    assert torch.equal(held_out[0][0], held_out[0][0])
    assert torch.equal(state, torch.get_rng_state())
    assert ImageFolder(str(root), train=True, image_size=16)[0][0].shape == (3, 16, 16)
    assert not torch.equal(state, torch.get_rng_state())


def test_labels_follow_train_when_val_lacks_a_class(root: Path) -> None:
    for file in (root / "val" / "cat").iterdir():
        file.unlink()
    (root / "val" / "cat").rmdir()
    assert [label for _, label in ImageFolder(str(root), train=False, image_size=8)] == [1, 1, 2, 2]


def test_hidden_folders_and_other_files_are_no_classes(root: Path) -> None:
    (root / "train" / ".ipynb_checkpoints").mkdir()
    (root / "train" / "notes.txt").write_text("")
    (root / "train" / "cat" / "notes.txt").write_text("")
    assert len(ImageFolder(str(root), train=True, classes=3)) == 15


def test_indices_end(root: Path) -> None:
    data = ImageFolder(str(root), train=False)
    for index in (6, -1):
        with pytest.raises(IndexError, match="6 pictures"):
            data[index]


LAYOUT = r"set data\.path to a folder that holds train/<class>/\*\.jpg and val/<class>/\*\.jpg$"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^data\.path=.*: the folder .*train is missing; {LAYOUT}"):
        ImageFolder(str(tmp_path / "nowhere"), train=True)
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(ValueError, match=rf"the folder .*val is missing; {LAYOUT}"):
        ImageFolder(str(tmp_path), train=True)
    (tmp_path / "val").mkdir()
    with pytest.raises(ValueError, match=rf"val has no class folders; {LAYOUT}"):
        ImageFolder(str(tmp_path), train=True)
    (tmp_path / "val" / "cat").mkdir()
    with pytest.raises(ValueError, match=rf"class folders in .*train hold no pictures; {LAYOUT}"):
        ImageFolder(str(tmp_path), train=True)


def test_a_class_unknown_to_training_is_named(root: Path) -> None:
    (root / "val" / "bird").mkdir()
    with pytest.raises(ValueError, match="the class bird is in val but not in train"):
        ImageFolder(str(root), train=False)


def test_a_wrong_number_of_classes_is_refused(root: Path) -> None:
    with pytest.raises(
        ValueError, match=r"data\.classes=4, but .* holds 3 class folders in train: set data\.classes=3"
    ):
        ImageFolder(str(root), train=True, classes=4)
