"""Checks dashboards with the TypeScript compiler against the types of Grafana (@grafana/schema)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("@grafana/schema@11.6.9", "typescript@5.9.3")
_FETCH_LIMIT_S = 120
_COMPILE_LIMIT_S = 60
# Imported by path, since the package declares its modules, but not their types.
_COMPOSABLE = "./node_modules/@grafana/schema/dist/esm/raw/composable"
# Grafana's name of a panel -> its module, and whether it has fields of its own.
_PANELS = {
    "bargauge": ("bargauge/panelcfg/x/BarGaugePanelCfg_types.gen", False),
    "stat": ("stat/panelcfg/x/StatPanelCfg_types.gen", False),
    "state-timeline": ("statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen", True),
    "table": ("table/panelcfg/x/TablePanelCfg_types.gen", True),
    "timeseries": ("timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen", True),
}
# JSON has the values of enums where TypeScript expects their names; everything else must be as declared.
_LOOSE = """
type Loose<T> = T extends string ? `${T}` : T extends boolean | number | null | undefined ? T
  : T extends Array<infer U> ? Array<Loose<U>> : unknown extends T ? unknown : { [K in keyof T]: Loose<T[K]> };
"""


def fetch_compiler(folder: Path) -> Path:
    """Install Grafana's types and a TypeScript compiler in `folder`; return the compiler. If this fails, skip the test."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed, which fetch Grafana's types (apt install npm)")
    (folder / "package.json").write_text('{"private": true}')
    try:
        argv = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0", *PACKAGES]
        subprocess.run(argv, cwd=folder, check=True, capture_output=True, timeout=_FETCH_LIMIT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm could not fetch Grafana's types: {error}")
    return folder / "node_modules" / ".bin" / "tsc"


def complaints(compiler: Path, folder: Path, dashboards: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the compiler's errors for these dashboards; empty if there are none."""
    (folder / "check.ts").write_text("\n".join(_program(dashboards)), "utf-8")
    argv = [
        str(compiler),
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--module",
        "esnext",
        "--moduleResolution",
        "bundler",
    ]
    ended = subprocess.run(
        [*argv, "check.ts"], cwd=folder, capture_output=True, text=True, check=False, timeout=_COMPILE_LIMIT_S
    )
    assert ended.returncode == 0 or ended.stdout, ended.stderr
    return str(ended.stdout)


def _program(dashboards: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "import type { Dashboard } from '@grafana/schema';"
    for module, _ in _PANELS.values():
        yield f"import type * as {_name(module)} from '{_COMPOSABLE}/{module}';"
    yield _LOOSE
    count = 0
    for dashboard in dashboards.values():
        for type_, value in [("Dashboard", dashboard), *_parts(dashboard)]:
            count += 1
            yield f"const part{count}: Loose<{type_}> = {json.dumps(value, indent=1)};"


def _parts(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parts that the type of a dashboard does not define: options and fields of each kind of panel."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            continue
        module, has_fields = _PANELS[panel["type"]]
        yield f"{_name(module)}.Options", panel["options"]
        custom = panel["fieldConfig"]["defaults"].get("custom", {})
        if has_fields:
            yield f"{_name(module)}.FieldConfig", custom
        else:
            assert custom == {}


def _name(module: str) -> str:
    return module.split("/")[0]
