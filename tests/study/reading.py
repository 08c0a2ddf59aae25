"""Renders a made-up study and reads the page strictly."""

from __future__ import annotations

from html.parser import HTMLParser

from framework.study.render import report
from tests.study import stories

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Reads a page strictly: every element closed where it was opened. `text` is what a reader sees."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.text, self.attributes = [], [], "", []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data


def rendered(folder, story, **settings):
    report(stories.lay(folder, *story, **settings))
    return (folder / "report.md").read_text(encoding="utf-8"), (folder / "report.html").read_text(encoding="utf-8")
