"""The reference page of settings classes, in Markdown, from what the fields say about themselves."""

from __future__ import annotations

from collections.abc import Mapping

from fedpatch.shared.config.fields import Setting, Settings, settings_of


def reference(classes: Mapping[str, type[Settings]]) -> str:
    """One section per class under its heading, one table per group of settings."""
    lines: list[str] = []
    for heading, cls in classes.items():
        lines += [f"## {heading}", "", f"Variables are `{cls.env_prefix}` and the key in capitals.", ""]
        group = None
        for one in settings_of(cls):
            if one.rules.group != group:
                lines += [""] if group else []
                group = one.rules.group
                lines += [f"### {group}", "", "| key | default | what it is |", "|---|---|---|"]
            lines.append(_row(one))
        lines.append("")
    return "\n".join(lines)


def _row(one: Setting) -> str:
    default = one.default_words
    if not one.required and not one.rules.default_means and one.default is not None:
        default = f"`{default}`"
    text = one.rules.help
    if one.rules.unit:
        text += f" Unit: {one.rules.unit}."
    if one.range:
        text += f" {one.range[0].upper()}{one.range[1:]}."
    if one.rules.secret:
        text += " Secret: file or environment only, never shown."
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{one.name}`", default, text)) + " |"
