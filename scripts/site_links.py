"""Hook of MkDocs (mkdocs.yml): adds the files outside of docs/ that the pages of docs/ link to.

Links in docs/ point from file to file, as on a code host. On the site, README.md is the first page; other Markdown files are
pages and pictures are files below `project/`; of a table in JSON Lines the first line is shown on a page, of any other file
the whole, and a folder is listed on a page.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)")
_HOME = "README.md"
_PAGES, _ELSEWHERE = "docs/", "project/"
_PICTURES = (".png", ".svg")
_LANGUAGES = {".py": "python", ".yml": "yaml", ".conf": "text"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add all linked files, and the files that they link to."""
    root = _root(config)
    waiting = [_HOME, *(_PAGES + page.src_uri for page in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not _in_docs(path):
            files.append(_brought(root, path, config))
        if path.endswith(".md"):
            found = {path for path in _linked(root, path) if not _in_docs(path)} - seen
            seen |= found
            waiting += sorted(found)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with the links of the site."""
    root, uri = _root(config), page.file.src_uri
    origin = _origin(root, uri)
    if origin is None:
        return markdown

    def there(link: re.Match[str]) -> str:
        path = _target(root, origin, link[1])
        return link[1] if path is None else posixpath.relpath(_place(root, path), posixpath.dirname(uri))

    return _LINK.sub(there, markdown)


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).resolve().parent


def _in_docs(path: str) -> bool:
    """Return whether MkDocs has the file anyway: a page or a picture of docs/."""
    return path.startswith(_PAGES) and path.endswith((".md", *_PICTURES))


def _place(root: Path, path: str) -> str:
    """Return the place of a file or folder on the site, as the source of a page or of a picture."""
    if path == _HOME:
        return "index.md"
    if _in_docs(path):
        return path.removeprefix(_PAGES)
    shown = path.endswith((".md", *_PICTURES)) and (root / path).is_file()
    return _ELSEWHERE + (path if shown else path + ".md")


def _origin(root: Path, uri: str) -> str | None:
    """Return the Markdown file of a page: the inverse of `_place`. None for a page that shows a file or a folder."""
    if uri == "index.md":
        return _HOME
    if not uri.startswith(_ELSEWHERE):
        return _PAGES + uri
    path = uri.removeprefix(_ELSEWHERE)
    return path if (root / path).is_file() else None


def _target(root: Path, origin: str, link: str) -> str | None:
    """Return the target of a link of the file `origin` within the project; None if there is no such file."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
    return path if not path.startswith("..") and (root / path).exists() else None


def _linked(root: Path, origin: str) -> Iterator[str]:
    for link in _LINK.findall((root / origin).read_text("utf-8")):
        path = _target(root, origin, link)
        if path is not None:
            yield path


def _brought(root: Path, path: str, config: MkDocsConfig) -> File:
    source, uri = root / path, _place(root, path)
    if source.is_dir():
        names = sorted(one.name + "/" * one.is_dir() for one in source.iterdir() if one.name[0] not in "._")
        return File.generated(config, uri, content=f"# {path}/\n\n" + "".join(f"- `{name}`\n" for name in names))
    if uri == _ELSEWHERE + path or path == _HOME:
        return File.generated(config, uri, abs_src_path=str(source))
    text = source.read_text("utf-8")
    if source.suffix == ".jsonl":
        first = text.partition("\n")[0]
        return File.generated(
            config,
            uri,
            content=f"# {path}\n\n{text.count(chr(10))} lines of JSON. The first:\n\n````json\n{first}\n````\n",
        )
    return File.generated(config, uri, content=f"# {path}\n\n````{_LANGUAGES.get(source.suffix, 'text')}\n{text}````\n")
