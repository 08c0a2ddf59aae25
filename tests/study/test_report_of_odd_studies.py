"""Reports of studies that did not go well, or are of another kind: each says so, and the user's text is never code."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from framework.study.arms import named_arms, technique_arms
from framework.study.render import report
from tests.study import made_gpu, stories
from tests.study.reading import Page, rendered


def test_no_effect_is_said(tmp_path):
    arms = technique_arms(made_gpu.PRESETS, ["log_every"], [])
    markdown, page = rendered(tmp_path, (arms, made_gpu.told(arms, 5, noise=0.0005)))
    assert "**no effect**" in markdown
    assert '<span class="verdict no-effect">' in page


@pytest.mark.parametrize("story", [stories.of_the_user, stories.all_failed])
def test_text_of_the_user_is_text(tmp_path, capsys, story):
    markdown, page = rendered(tmp_path, story())
    parsed = Page(page)
    assert "script" not in parsed.tags
    assert "<script>alert(1)</script> & |`*[x](y)" in parsed.text
    assert "<script" not in markdown
    rows = [line for line in markdown.splitlines() if "&lt;script&gt;" in line]
    assert rows
    assert all(r"\|\`\*\[x\](y)" in row for row in rows)
    assert "\x1b" not in page + markdown + capsys.readouterr().out


def test_a_noisy_machine_is_the_first_thing_said(tmp_path, capsys):
    markdown, page = rendered(tmp_path, stories.only_controls(noisy=True))
    warning = "This machine is too noisy for the claims below"
    assert markdown.splitlines()[0].startswith(f"**{warning}")
    assert page.index(warning) < page.index("<h1>")
    assert capsys.readouterr().out.startswith(warning)


def test_a_quiet_machine_has_no_warning(tmp_path):
    markdown, page = rendered(tmp_path, stories.only_controls(noisy=False))
    assert markdown.startswith("# How noisy this machine is")
    assert "noisy for the claims" not in page
    assert 'class="warning"' not in page


def test_an_interrupted_study_says_what_it_lacks(tmp_path):
    arms, runs = stories.interrupted()
    markdown, page = rendered(tmp_path, (arms, runs))
    lacking = f"The study is not complete: {5 * len(arms) - len(runs)} runs of its plan are still to be done."
    assert lacking in markdown
    assert lacking in Page(page).text


def test_a_study_in_which_every_run_failed_is_reported(tmp_path):
    markdown, _ = rendered(tmp_path, stories.all_failed(), blocks=2)
    assert markdown.count("**failed** (ValueError") >= 1
    assert "not known: no run told" in markdown


def test_a_study_without_runs_is_reported(tmp_path):
    markdown, page = rendered(tmp_path, (stories.techniques(), []))
    assert "nothing ran" in markdown
    assert "No run was started." in page


def test_what_a_technique_needs_is_named(tmp_path):
    arms = technique_arms(made_gpu.PRESETS, ["prefetch"], [])
    assert "needs_of_prefetch" in [arm.name for arm in arms]
    markdown, _ = rendered(tmp_path, (arms, made_gpu.told(arms, 3)), blocks=3)
    assert "| prefetch (with pinned, against needs_of_prefetch) |" in markdown


def test_an_arm_on_another_device_is_no_change_of_the_machine(tmp_path):
    arms = named_arms({"cpu": ["device=cpu"]})
    cpu = {"type": "cpu", "name": "Intel Xeon Platinum 8480C", "cpu_cores": 16}
    runs = [
        replace(run, summary=run.summary | {"device": cpu}) if run.arm == "cpu" else run
        for run in made_gpu.told(arms, 3)
    ]
    markdown, _ = rendered(tmp_path, (arms, runs), blocks=3)
    assert "machines" not in markdown
    assert "- Device: NVIDIA H200, 140 GiB, Intel Xeon Platinum 8480C, 16 cores; Intel Xeon" in markdown


def test_a_study_that_tells_no_commit_is_not_given_that_of_the_checkout(tmp_path):
    markdown, _ = rendered(tmp_path, stories.only_controls(noisy=False))
    assert "- Commit: not known: the plan names none\n" in markdown


def test_memory_of_the_process_stands_for_that_of_a_device(tmp_path):
    markdown, _ = rendered(tmp_path, stories.of_the_user())
    assert "Peak process memory" in markdown
    assert "Peak allocated" not in markdown


def test_runs_on_two_machines_are_told_of(tmp_path):
    arms, runs = stories.only_controls(noisy=False)
    other = runs[-1].summary | {"device": made_gpu.H200 | {"name": "NVIDIA A100"}}
    markdown, _ = rendered(tmp_path, (arms, [*runs[:-1], replace(runs[-1], summary=other)]))
    assert "The runs were on 2 machines" in markdown
    assert "NVIDIA A100" in markdown


def with_neighbours(*counts):
    arms, runs = stories.only_controls(noisy=False)
    return arms, [
        replace(run, summary=run.summary | {"gpu_neighbours": count}) for run, count in zip(runs, counts, strict=False)
    ]


def test_other_processes_on_the_gpu_are_told_of_above_every_figure(tmp_path, capsys):
    markdown, page = rendered(tmp_path, with_neighbours(0, 2, 0, 1, *[0] * 99))
    said = "Other processes were on the GPU in 2 runs"
    for text in (markdown, Page(page).text, capsys.readouterr().out):
        assert said in " ".join(text.split())
    assert markdown.index(said) < markdown.index("## Recommendation")
    machine = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["machine"]
    assert (machine["gpu_neighbours"], machine["why_unseen"]) == (2, None)


def test_a_gpu_without_others_is_not_complained_of(tmp_path):
    markdown, _ = rendered(tmp_path, with_neighbours(*[0] * 99))
    assert "Other processes" not in markdown
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["machine"]["gpu_neighbours"] == 0


@pytest.mark.parametrize("told", [{"gpu_neighbours": None, "missing": {"gpu_neighbours": "no nvidia-smi"}}, {}])
def test_whether_others_were_on_the_gpu_may_not_be_known(tmp_path, told):
    arms, runs = stories.only_controls(noisy=False)
    markdown, _ = rendered(tmp_path, (arms, [replace(run, summary=run.summary | told) for run in runs]))
    assert "Other processes" not in markdown
    machine = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["machine"]
    assert (machine["gpu_neighbours"], machine["why_unseen"]) == (None, "no nvidia-smi" if told else "no run told")


def test_a_report_that_cannot_be_written_leaves_the_former_one(tmp_path, monkeypatch):
    stories.lay(tmp_path, *stories.only_controls(noisy=False))
    report(tmp_path)
    before = (tmp_path / "report.json").read_bytes()
    (tmp_path / "runs.jsonl").write_text("", encoding="utf-8")

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        report(tmp_path)
    assert (tmp_path / "report.json").read_bytes() == before
