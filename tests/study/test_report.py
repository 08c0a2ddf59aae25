"""The report of a study: every file whole and valid, every verdict with its reason, figures as analysed."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from framework.study.analysis import analyse
from framework.study.material import gather
from framework.study.model import Verdict
from framework.study.plan import read_plan, read_runs
from framework.study.render import report
from tests.study import made_gpu, stories
from tests.study.reading import Page, rendered

FILES = ("report.json", "report.md", "report.html", "forest.svg")
REASONS = (
    "perf.cudnn_benchmark=true needs CUDA: there is none.",
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "more blocks would decide",
    "no sign of it in 5 of 5 runs",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    laid = stories.lay(tmp_path_factory.mktemp("study"), *stories.h200())
    report(laid)
    return laid


def test_every_file_is_written_and_valid(folder):
    assert json.loads((folder / "report.json").read_text(encoding="utf-8"))["schema"] == 1
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert Page(page).tags.count("table") == 6
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)
    ElementTree.fromstring((folder / "forest.svg").read_text(encoding="utf-8"))
    assert not list(folder.glob("*.part"))


def test_the_json_suffices_to_conclude_the_same(folder, tmp_path):
    found = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    again = stories.again(tmp_path / "again", found)
    arms, settings, _ = read_plan(again)
    assert analyse(arms, list(read_runs(again)), settings) == gather(folder).analysis
    report(again)
    for name in FILES:
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_the_json_has_every_run_and_what_it_ran_on(folder):
    found = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert found["machine"]["devices"] == [made_gpu.H200]
    assert found["machine"]["versions"] == [made_gpu.VERSIONS]
    assert found["plan"]["overrides"] == ["experiment=rn50", "meter.warmup_steps=30"]
    lines = (folder / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    key = json.dumps
    assert sorted(map(key, found["runs"])) == sorted(key(json.loads(line)) for line in lines)


def test_every_verdict_and_reason_appears(folder, tmp_path, capsys):
    wanted = [verdict.value for verdict in Verdict if verdict is not Verdict.no_effect]
    markdown, page = rendered(tmp_path, stories.h200())
    terminal = " ".join(capsys.readouterr().out.split())
    for text in (markdown, Page(page).text, terminal):
        for said in (*wanted, *REASONS):
            assert said in text, said


@pytest.mark.parametrize(
    ("technique", "alone", "company"),
    [("amp", "faster", "faster"), ("channels_last", "slower", "faster"), ("tf32", "failed", "undecided")],
)
def test_each_verdict_stands_in_its_place(folder, technique, alone, company):
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    line = next(line for line in markdown.splitlines() if line.startswith(f"| {technique} "))
    assert line.split(" | ")[2].startswith(f"**{alone}**")
    assert line.split(" | ")[4].startswith(f"**{company}**")


def test_techniques_are_in_the_order_of_their_worth(folder):
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    speed = markdown[markdown.index("## Speed") : markdown.index("## Cost")]
    names = re.findall(r"^\| (\w+)", speed, re.MULTILINE)[1:]
    worth = {one.technique: one.alone.speedup for one in gather(folder).analysis.techniques}
    alone = [worth[name].estimate for name in names if worth[name] is not None]
    assert len(names) == len(worth)
    assert alone == sorted(alone, reverse=True)


def test_the_order_of_the_record_does_not_matter(folder, tmp_path):
    arms, runs = stories.h200()
    report(stories.lay(tmp_path, arms, runs[::-1]))
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_figures_are_those_of_the_analysis(folder):
    row = next(one for one in gather(folder).analysis.techniques if one.technique == "compile")
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    speed, cost, *_ = (line for line in markdown.splitlines() if line.startswith("| compile |"))
    assert f"{row.alone.speedup.estimate:.3f}x ({row.alone.speedup.low:.3f} to {row.alone.speedup.high:.3f})" in speed
    assert f"{row.company.speedup.estimate:.3f}x" in speed
    assert f"{row.alone.break_even.steps.estimate:,.0f} steps" in cost
    peak = row.alone.figures.memory["peak_allocated_gib"]
    assert f"{peak.gib:.2f} GiB (alone {peak.change_gib:+.2f} GiB" in cost


def test_sections_stand_in_their_order(folder):
    page = (folder / "report.html").read_text(encoding="utf-8")
    wanted = ["What each technique is worth", "Recommendation", "The control first", "Speedups", "Speed", "Cost"]
    wanted += ["All together", "Same numbers, and evidence", "Each run over time", "Method", "Plan"]
    assert re.findall(r"<h[12]>(.*?)</h[12]>", page) == [*wanted, "Runs without figures"]


def test_the_page_needs_nothing_else(folder):
    page = (folder / "report.html").read_text(encoding="utf-8")
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe"} & set(parsed.tags)
    assert not {"src", "href", "onclick"} & {name for name, _ in parsed.attributes}
    assert "url(" not in page
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}


def test_an_arm_that_cannot_run_is_not_called_unfinished(folder):
    assert "not complete" not in (folder / "report.md").read_text(encoding="utf-8")


def test_the_whole_command_is_given(folder):
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    chosen = gather(folder).analysis.recommendation.overrides
    assert f"    python train.py experiment=rn50 meter.warmup_steps=30 {' '.join(chosen)}\n" in markdown
