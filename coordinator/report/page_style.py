"""How a report looks: light and dark, wide and narrow, on a screen and on paper."""

from __future__ import annotations

# Okabe and Ito's colours, which people of any colour vision tell apart, darkened or lightened until each stands out from
# the ground by 3:1 at least; lines differ in their dashes as well.
_LIGHT = ("0067a8", "c25100", "007a5a", "a8428a", "8a6a00", "3a7ca5", "555b61")
_DARK = ("5ab4f0", "ff9a4d", "3ccb9f", "e58cc8", "e6c53c", "8fd0f5", "a9b1b8")
_DASHES = ("none", "7 3")
_RUN_COLOURS = 6


def _colours(values: tuple[str, ...]) -> str:
    return "".join(f"--c{number}:#{value};" for number, value in enumerate(values))


def _runs() -> str:
    looks = [(dash, colour) for dash in _DASHES for colour in range(_RUN_COLOURS)]
    return "\n".join(
        f".run{number}{{--own:var(--c{colour})}} .curve.run{number}{{stroke-dasharray:{dash}}}"
        for number, (dash, colour) in enumerate(looks)
    )


def _parts(count: int) -> str:
    return "\n".join(f".part{number}{{fill:var(--c{number % len(_LIGHT)})}}" for number in range(count))


STYLE = f"""
:root{{color-scheme:light dark;--ground:#fff;--card:#f4f6f8;--ink:#1b1f23;--soft:#545b62;--rule:#d3d9de;--link:#0058a0;
{_colours(_LIGHT)}}}
@media screen and (prefers-color-scheme:dark){{:root{{--ground:#14181c;--card:#1e242a;--ink:#e8ebee;--soft:#a9b1b8;
--rule:#39424b;--link:#7cc0ff;{_colours(_DARK)}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}}
main{{max-width:800px;margin:0 auto;padding:12px}}
h1{{font-size:1.5rem;margin:.5rem 0 0}} h2{{font-size:1.25rem;margin:2rem 0 .25rem;border-top:1px solid var(--rule);
padding-top:1rem}} h3{{font-size:1.05rem;margin:1.75rem 0 .5rem}} h4{{font-size:.95rem;margin:0}}
a{{color:var(--link)}} header p,figcaption,.unit,dt{{color:var(--soft)}} .unit{{font-weight:normal}}
dl{{display:grid;grid-template-columns:repeat(auto-fill,minmax(128px,1fr));gap:8px;margin:1rem 0}}
dl div{{background:var(--card);border-radius:6px;padding:6px 10px}} dt{{font-size:.8rem}} dd{{margin:0;font-weight:600}}
figure{{margin:1rem 0;background:var(--card);border-radius:6px;padding:10px;break-inside:avoid}}
figcaption{{font-size:.85rem}}
.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:2px 14px;margin:4px 0;padding:0;font-size:.85rem}}
.swatch{{width:24px;height:12px;vertical-align:-1px}}
.chart{{display:block;width:100%;height:auto;font:12px system-ui,sans-serif}}
.chart text{{fill:var(--soft)}}
.narrow{{display:none}} .end{{text-anchor:end}} .middle{{text-anchor:middle}} .grid{{stroke:var(--rule);stroke-width:1}}
.curve{{fill:none;stroke:var(--own);stroke-width:2;stroke-linejoin:round}} circle{{fill:var(--own);stroke:none}}
.mean{{--own:var(--c0)}} .p10{{--own:var(--c1)}} .worst{{--own:var(--c3)}} .after{{--own:var(--c2)}}
.curve.p10{{stroke-dasharray:8 3}} .curve.worst{{stroke-dasharray:2 3}} .curve.after{{stroke-dasharray:10 3 2 3}}
.level{{--own:var(--ink)}} .curve.level{{stroke-width:1;stroke-dasharray:4 4}} .mark{{--own:var(--c1)}}
.faint{{--own:var(--soft)}} .curve.faint{{stroke-width:1;opacity:.65}} .chart .faint:hover{{stroke:var(--c1);
stroke-width:3;opacity:1}}
{_runs()}
{_parts(10)}
.bar{{width:120px;height:12px;display:block}}
.scroll{{overflow-x:auto;max-width:100%;
background:linear-gradient(to right,var(--ground) 50%,transparent) 0 0/32px 100% no-repeat local,
linear-gradient(to left,var(--ground) 50%,transparent) 100% 0/32px 100% no-repeat local,
linear-gradient(to right,var(--soft),transparent) 0 0/10px 100% no-repeat scroll,
linear-gradient(to left,var(--soft),transparent) 100% 0/10px 100% no-repeat scroll}}
@media screen and (min-width:860px){{.scroll{{position:relative;left:50%;transform:translateX(-50%);width:max-content;
min-width:100%;max-width:min(95vw,1600px)}}}}
 .scroll:focus-visible,summary:focus-visible{{outline:2px solid var(--link)}}
table{{border-collapse:collapse;font-size:.85rem;overflow-wrap:normal}}
caption{{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}}
th,td{{text-align:left;padding:3px 8px;border-bottom:1px solid var(--rule);vertical-align:top}}
th{{font-weight:600}} .number{{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}}
tr>:first-child{{white-space:nowrap}} td{{max-width:24rem;overflow-wrap:break-word}}
summary{{cursor:pointer;padding:4px 0;color:var(--link)}}
@media screen and (max-width:640px){{.wide{{display:none}} .narrow{{display:block}}}}
@media print{{main{{max-width:none}} figure,dl div{{background:none;border:1px solid var(--rule)}}
.scroll{{overflow:visible;background:none;position:static;transform:none}} table{{font-size:8px}} th,td{{padding:1px 3px}}
details::details-content{{content-visibility:visible;height:auto}} summary{{display:none}}}}
"""
