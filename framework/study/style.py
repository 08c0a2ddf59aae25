"""How the page looks: restrained, readable by the colour-blind, and never by colour alone."""

from __future__ import annotations

from framework.study.drawing import DARK, LIGHT, STYLE, colours

SYMBOLS = {
    "faster": "\N{BLACK UP-POINTING TRIANGLE}",
    "slower": "\N{BLACK DOWN-POINTING TRIANGLE}",
    "no effect": "=",
    "undecided": "?",
    "not active": "\N{WHITE CIRCLE}",
    "skipped": "\N{EN DASH}",
    "failed": "\N{MULTIPLICATION SIGN}",
    "interrupted": "\N{MULTIPLICATION SIGN}",
    "same": "=",
    "differs": "\N{NOT EQUAL TO}",
}

PAGE = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink)}
body{font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1104px;margin:0 auto;padding:40px 32px 64px}
h1{font-size:30px;line-height:1.2;margin:0 0 20px;letter-spacing:-.01em}
h2{font-size:20px;line-height:1.3;margin:0 0 8px}
p{margin:0 0 12px;max-width:80ch;overflow-wrap:anywhere}
section{margin-top:44px}
code,pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
pre{margin:0;padding:12px 14px;white-space:pre-wrap;background:var(--ground)}
pre{border:1px solid var(--line);border-radius:6px}
.over{margin:0 0 4px;color:var(--muted);font-size:14px}
.facts{display:grid;grid-template-columns:1fr 1fr;gap:12px 32px;margin:0;font-size:14px}
.facts dt{color:var(--muted)}
.facts dd{margin:0;overflow-wrap:anywhere}
.facts .workload,.facts .commit{grid-column:1/-1}
.warning,.caution{max-width:none;margin:0 0 28px;padding:14px 18px;border:2px solid var(--failed);border-radius:8px}
.warning b{color:var(--failed)}
.caution{margin:24px 0 0;padding:10px 18px;border:1px solid var(--muted)}
.advice{margin-top:32px;padding:18px 22px 20px;background:var(--band);border-radius:8px}
.advice p{max-width:none}
.advice p:last-child{margin:0}
figure{margin:16px 0 0}
svg{display:block;width:100%;height:auto}
.narrow{display:none}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(190px,1fr));gap:18px 20px;margin-top:20px}
.panels figure{margin:0;min-width:0}
.panels figcaption{font-size:13px;overflow-wrap:anywhere}
.scroll{overflow-x:auto;margin-top:14px}
.scroll:focus-visible{outline:2px solid var(--alone);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:8px 16px 8px 0;border-bottom:1px solid var(--line);vertical-align:top;text-align:left}
th:last-child,td:last-child{padding-right:0}
thead th{border-bottom:2px solid var(--line);color:var(--muted);font-weight:500;vertical-align:bottom}
th.number,td.number{text-align:right}
td.number{white-space:nowrap}
th.name{font-weight:600;white-space:nowrap}
td.prose,td.code{min-width:8em;overflow-wrap:break-word}
thead th.name{font-weight:500}
small{display:block;white-space:pre-line;color:var(--muted);font-size:12.5px;font-weight:400;line-height:1.4}
th.name small,td.verdict small{max-width:24em;overflow-wrap:break-word}
th.name small{white-space:normal}
td.verdict:has(small){min-width:11em}
td.number small{white-space:pre}
td.ratio{min-width:12em}
span.verdict{white-space:nowrap}
summary{cursor:pointer}
summary h2{display:inline}
details p{margin-top:8px}
span.verdict i{display:inline-block;width:1.25em;font-style:normal}
.faster,.same{color:var(--alone);font-weight:600}
.slower,.differs{color:var(--company);font-weight:600}
.failed,.interrupted{color:var(--failed);font-weight:600}
.skipped,.undecided,.not-active,.no-effect{color:var(--ink)}
footer{margin-top:48px;padding-top:16px;border-top:1px solid var(--line);color:var(--muted);font-size:14px}
@media(max-width:760px){
main{padding:24px 16px 48px}
h1{font-size:25px}
section{margin-top:36px}
.facts{grid-template-columns:1fr}
.advice{margin-left:-16px;margin-right:-16px;border-radius:0}
.wide{display:none}
.narrow{display:block}
.panels{grid-template-columns:1fr 1fr;gap:16px 12px}
.scroll{overflow:visible}
table,tbody,td,th.name{display:block}
thead{display:none}
tr{display:grid;grid-template-columns:1fr 1fr;gap:10px 16px;padding:14px 0;border-bottom:1px solid var(--line)}
th,td,td.number{min-width:0;padding:0;border:0;white-space:normal;text-align:left}
td::before{content:attr(data-label);display:block;color:var(--muted);font-size:12.5px}
td>div{overflow-wrap:anywhere}
th.name{font-size:16px}
th.name,td.prose,td.code,td.full{grid-column:1/-1}
td.ratio small{display:inline;margin-left:8px}
}
@media print{.scroll{overflow:visible}}
"""


def style() -> str:
    """The page's stylesheet."""
    dark = f"@media(prefers-color-scheme:dark){{:root{{{colours(DARK)}}}}}"
    return f":root{{color-scheme:light dark;{colours(LIGHT)}}}{dark}{STYLE}{PAGE}"
