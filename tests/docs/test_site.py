"""The documentation as a site: it builds without a warning, has no broken links, and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built like `make docs`, in strict mode: a broken link, a broken section or a page that is in no menu is an error."""
    pytest.importorskip("material", reason="mkdocs-material is not installed (pip install 'fedpatch[docs]')")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def _pages(site: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(site.rglob("*.html")):
        yield path, path.read_text("utf-8")


def _text(page: str) -> str:
    """The article of a page, without blocks of code."""
    article = page.partition("<article")[2].partition("</article>")[0]
    return re.sub(r"<pre.*?</pre>", "", article, flags=re.DOTALL)


@pytest.mark.medium
def test_every_page_is_there(site):
    """The site has the pages of docs/, the README as its first page, and other files that these link to."""
    pages = {path.parent.relative_to(site).as_posix() for path, _ in _pages(site) if path.name == "index.html"}
    assert {
        ".",
        *(path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")),
    } <= pages
    assert {"project/ARCHITECTURE", "project/CHANGELOG", "project/benchmarks", "project/ansible"} <= pages
    assert (site / "project/results/fig5.svg").stat().st_size > 0


def test_every_link_leads_to_a_file_of_the_site(site):
    """This includes links to files outside of docs/ and links of the menus."""
    count = 0
    for path, page in _pages(site):
        if path.name == "404.html":  # it is shown at any address, so its links are absolute
            continue
        for link in re.findall(r"\b(?:href|src)=\"?([^\" >]+)", page):
            address = unquote(link.partition("#")[0].partition("?")[0])
            if address and not re.match(r"[a-z]+:", address):
                there = path.parent / address
                assert (there / "index.html" if there.is_dir() else there).is_file(), f"{path}: {link}"
                count += 1
    assert count > 1000


def test_a_reader_asks_nobody_else_for_anything(site):
    """No script, font, style or picture is loaded from another host, so no other host learns what a person reads."""
    for path, page in _pages(site):
        for tag in re.findall(r"<(?!a\b)\w+[^>]*https?://[^>]*>", page):
            assert not re.search(r"\b(?:src|href|srcset|data|content)=\"?https?://", tag), f"{path}: {tag}"
        assert 'class="mermaid"' not in page, f"{path}: whose script would come from elsewhere"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)[\s\"']*https?:", style.read_text("utf-8")), style


def test_pages_read_the_same_on_a_code_host_and_on_the_site(site):
    """Although the two kinds of Markdown differ, no list, table or block of code has become part of a paragraph."""
    for path, page in _pages(site):
        for paragraph in re.findall(r"<p>(.*?)</p>", _text(page), flags=re.DOTALL):
            assert not re.search(r"^\s*(?:[-*] |\d+\. |\|)|```", paragraph, flags=re.MULTILINE), f"{path}: {paragraph}"


def test_every_part_of_a_page_is_in_its_menu(site):
    count = 0
    for path, page in _pages(site):
        parts = re.findall(r"<h[23] id=\"?([^\" >]+)", _text(page))
        listed = re.findall(r"<a href=\"?#([^\" >]+)\"? class=\"?md-nav__link", page)
        assert set(parts) <= set(listed), f"{path}: {set(parts) - set(listed)}"
        count += len(parts)
    assert count > 300
