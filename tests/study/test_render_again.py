"""`python -m framework.study DIR`: the same report again, from the raw runs, without torch; and TensorBoard's part."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from framework.study.render import report
from tests.study import stories

ROOT = Path(__file__).parents[2]
FILES = ("report.json", "report.md", "report.html", "forest.svg")
WITHOUT_TORCH = """
import runpy, sys
try:
    runpy.run_module("framework.study", run_name="__main__", alter_sys=True)
finally:
    assert "torch" not in sys.modules, "torch was imported"
"""


def python(*arguments):
    command = [sys.executable, "-W", "error", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_report_is_made_again_from_the_raw_runs_and_without_torch(tmp_path):
    stories.lay(tmp_path, *stories.h200())
    report(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    lying = json.loads(before["report.json"]) | {"analysis": {}, "runs": []}
    (tmp_path / "report.json").write_text(json.dumps(lying), encoding="utf-8")
    (tmp_path / "report.md").unlink()
    done = python("-c", WITHOUT_TORCH, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "amp" in done.stdout
    assert str(tmp_path / "report.html") in done.stdout
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before


@pytest.mark.parametrize("missing", [False, True])
def test_a_folder_without_a_study_is_one_sentence(tmp_path, missing):
    folder = tmp_path / "none" if missing else tmp_path
    done = python("-m", "framework.study", folder)
    assert done.returncode == 2
    assert done.stderr == f"gearshift: {folder} holds no study: plan.json is missing.\n"
    assert not any(tmp_path.iterdir())


def test_no_folder_is_told_how_to_give_one():
    done = python("-m", "framework.study")
    assert done.returncode == 2
    assert "DIR" in done.stderr


def test_tensorboard_has_the_plot_and_the_text_once(tmp_path):
    stories.lay(tmp_path, *stories.only_controls(noisy=False))
    own = tmp_path / "events.out.tfevents.1.of_the_user"
    own.write_bytes(b"")
    report(tmp_path)
    report(tmp_path)
    (file,) = tmp_path.glob("events.out.tfevents.*.report")
    seen = EventAccumulator(str(file))
    seen.Reload()
    (image,) = seen.Images("study/forest")
    assert Image.open(io.BytesIO(image.encoded_image_string)).size == (image.width, image.height)
    (text,) = seen.Tensors("study/report")
    assert b"# How noisy this machine is" in text.tensor_proto.string_val[0]
    assert seen.SummaryMetadata("study/report").plugin_data.plugin_name == "text"
    assert own.exists()
