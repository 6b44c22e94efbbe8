"""The style sheet of what is shown. All colours are mixed with the page's own."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
.afn{--afn-line:color-mix(in srgb,currentColor 18%,transparent);
--afn-soft:color-mix(in srgb,currentColor 9%,transparent);
--afn-mark:color-mix(in srgb,#f0a000 38%,transparent);
--afn-dim:color-mix(in srgb,currentColor 84%,transparent);
font-size:13px;line-height:1.45;max-width:100%}
.afn-title{font-weight:600;margin:.3em 0 .5em}
.afn-title small,.afn-dim{font-weight:400;color:var(--afn-dim)}
.afn-title small{font-size:12px}
.afn-head{font-weight:600;margin:.9em 0 .3em}
.afn pre.afn-code{font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
margin:0;padding:.5em .7em;overflow:auto;max-height:34em;background:none;color:inherit;
border:1px solid var(--afn-line);border-radius:4px;white-space:pre;tab-size:4}
.afn .afn-line{display:block;min-width:max-content;border-radius:2px}
.afn pre i,.afn code i{font-style:normal}
.afn code{background:none;color:inherit;padding:0;
font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.afn i.c{color:var(--afn-dim)}
.afn i.k{color:color-mix(in srgb,currentColor 50%,#a020c0)}
.afn i.t{color:color-mix(in srgb,currentColor 50%,#0a8a70)}
.afn i.f{color:color-mix(in srgb,currentColor 50%,#1468d8)}
.afn i.n,.afn i.s{color:color-mix(in srgb,currentColor 50%,#c05000)}
.afn table.afn-table{border-collapse:collapse;margin:.2em 0;font-size:12px;
display:block;overflow:auto;max-width:100%}
.afn .afn-table th,.afn .afn-table td{padding:.15em .7em;text-align:left;
white-space:nowrap;border:0;border-bottom:1px solid var(--afn-line);background:none}
.afn .afn-table .afn-n{text-align:right;font-variant-numeric:tabular-nums}
.afn .afn-table tr[data-s],.afn .afn-table tr{background:none}
.afn-columns{display:grid;gap:1em;
grid-template-columns:repeat(auto-fit,minmax(min(100%,26em),1fr))}
.afn-columns>div{min-width:0}
.afn summary{cursor:pointer;padding:.1em .3em;border-radius:2px}
.afn-chart{overflow-x:auto}
.afn svg{max-width:none;height:auto;display:block}
.afn svg text{fill:currentColor;font:12px system-ui,sans-serif}
.afn-bar{display:inline-block;height:.7em;border-radius:2px;vertical-align:baseline;
background:color-mix(in srgb,currentColor 50%,#1468d8)}
""".replace("\n", "")
