"""TensorBoard: the forest plot and the report's text, in an event file of their own. torch is not needed for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from framework.study.drawing import SCALE, Drawing, png

SUFFIX = ".report"  # of the event file's name
RGB = 3  # of an image: its number of channels


def write(folder: Path, forest: Drawing, text: str) -> Path:
    """Writes the event file, in place of the one that an earlier report left in `folder`."""
    part = folder / "report.part"
    shutil.rmtree(part, ignore_errors=True)
    writer = EventFileWriter(str(part), filename_suffix=SUFFIX)
    for value in _values(forest, text):
        writer.add_event(Event(step=0, summary=Summary(value=[value])))
    writer.close()
    for former in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        former.unlink()
    (written,) = part.iterdir()
    path = written.rename(folder / written.name)
    part.rmdir()
    return path


def _values(forest: Drawing, text: str) -> Iterator[Summary.Value]:
    image = Summary.Image(
        height=round(forest.height * SCALE),
        width=round(forest.width * SCALE),
        colorspace=RGB,
        encoded_image_string=png(forest),
    )
    yield Summary.Value(tag="study/forest", image=image)
    held = TensorProto(
        dtype="DT_STRING",
        string_val=[text.encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    yield Summary.Value(tag="study/report", tensor=held, metadata=create_summary_metadata("study/report", ""))
