"""The disks that a power cut may leave after a process whose calls were recorded.

Only synced changes are sure to be on the disk. A file's bytes and size are durable once that file is synced. A name
(created, renamed, deleted, of a file or a directory) is durable once its directory is synced. Of all other changes any part
may be on the disk, in any order. POSIX promises this much; ext4 gives more by default. A rename is either complete or absent,
as in every file system.

Pillai, T. S., et al.: All File Systems Are Not Created Equal, OSDI 2014, tests programs in this way.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from tests.power_cut.tracing import Call

MOST_SINGLES = 8
"""Number of the last unsynced changes that are tested one by one: as the only lost change and as the only kept one."""

_SECTOR = 512
_WRITES = {"write", "pwrite64", "writev", "pwritev", "pwritev2"}
_SYNCS = {"fsync", "fdatasync"}
_NUMBER = re.compile(rb", (\d+)$")


@dataclass
class Inode:
    """A file, a directory or a link (`target`)."""

    number: int
    is_directory: bool = False
    target: str = ""
    mode: int = 0o600


@dataclass(frozen=True)
class Write:
    """Bytes of a file."""

    inode: int
    offset: int
    data: bytes
    path: str


@dataclass(frozen=True)
class Resize:
    """A file's size."""

    inode: int
    size: int
    path: str


@dataclass(frozen=True)
class Names:
    """Changes of names in directories, in one step: (directory, name, inode, or None for a name that is gone)."""

    changes: tuple[tuple[int, str, int | None], ...]
    path: str


@dataclass(frozen=True)
class Sync:
    """A sync: all changes of an inode that had ended before it began are durable."""

    inode: int
    path: str
    is_directory: bool


@dataclass(frozen=True)
class Output:
    """Bytes that left the process: from now on another process or a person may rely on them."""

    data: bytes
    place: str


Change = Write | Resize | Names


@dataclass(frozen=True)
class Step:
    """One action of the process, between two lines of the log."""

    what: Change | Sync | Output
    began: int
    ended: int

    @property
    def at(self) -> int:
        """A change may be on the disk from its beginning on; a sync takes effect only at its end."""
        return self.ended if isinstance(self.what, Sync) else self.began


@dataclass(frozen=True)
class Image:
    """The disk after a power cut: `files` by path, directories None, links as text. `marks` were written before the cut."""

    label: str
    files: dict[str, bytes | str | None]
    marks: tuple[Output, ...]
    steps: int

    @property
    def digest(self) -> str:
        """A digest that is equal for indistinguishable images."""
        whole = hashlib.sha256(str(len(self.marks)).encode())
        for path, content in sorted(self.files.items()):
            whole.update(repr((path, type(content).__name__)).encode())
            whole.update(hashlib.sha256(content if isinstance(content, bytes) else str(content).encode()).digest())
        return whole.hexdigest()

    def put(self, directory: Path) -> Path:
        directory.mkdir(parents=True)
        directory.chmod(0o700)
        for path, content in sorted(self.files.items()):
            place = directory / path
            if content is None:
                place.mkdir(mode=0o700)
            elif isinstance(content, str):
                place.symlink_to(content)
            else:
                place.write_bytes(content)
                place.chmod(0o600)
        return directory


@dataclass
class Record:
    """All changes below `root`, which was empty, and all output to `marks` or over sockets."""

    root: Path
    steps: list[Step] = field(default_factory=list)
    directories: frozenset[int] = frozenset()
    targets: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, calls: Iterable[Call], root: Path, marks: Path | None = None) -> Record:
        """The record of these calls. `root` is a path without links. NotImplementedError for a call that is not modelled."""
        return _Reader(root, marks).read(calls)

    def without(self, forgotten: Callable[[Sync], bool]) -> Record:
        """The record as if the program had left these syncs out: a check must detect it."""
        return replace(
            self, steps=[one for one in self.steps if not (isinstance(one.what, Sync) and forgotten(one.what))]
        )

    def with_late_syncs(self) -> Record:
        """The record as if each file were synced only after the rename to its place."""
        steps: list[Step] = []
        waiting: list[Step] = []
        for step in self.steps:
            if isinstance(step.what, Sync) and not step.what.is_directory:
                waiting.append(step)
                continue
            steps.append(step)
            if isinstance(step.what, Names) and len(step.what.changes) > 1:
                steps += [replace(late, began=step.ended, ended=step.ended) for late in waiting]
                waiting = []
        return replace(self, steps=steps)

    def images(self, first_cut: int = 0) -> Iterator[Image]:
        """Images of power cuts before each sync and at the end; they include those of a cut between two syncs.

        No image is yielded twice, and none of a cut before step `first_cut`.
        """
        seen: set[str] = set()
        for cut, step in enumerate([*self.steps, None]):
            if cut < first_cut or (step is not None and not isinstance(step.what, Sync)):
                continue
            done = self.steps[:cut]
            marks = tuple(one.what for one in done if isinstance(one.what, Output))
            changes = [one for one in done if isinstance(one.what, Change)]
            pending = self._pending(done)
            for label, lost, torn in _choices(pending):
                survivors = [one.what for one in changes if id(one) not in lost]
                files = self._files([_half(one) if one is torn else one for one in survivors])
                image = Image(
                    f"cut before step {cut} of {len(self.steps)} ({step and step.what}), {label}", files, marks, cut
                )
                if image.digest not in seen:
                    seen.add(image.digest)
                    yield image

    def _pending(self, done: Sequence[Step]) -> list[Step]:
        """Changes that no sync has made durable."""
        began: dict[int, int] = {}
        for step in done:
            if isinstance(step.what, Sync):
                began[step.what.inode] = max(step.began, began.get(step.what.inode, -1))
        pending = []
        for step in done:
            match step.what:
                case Write(inode=inode) | Resize(inode=inode):
                    durable = step.ended < began.get(inode, -1)
                case Names(changes=changes):
                    durable = all(step.ended < began.get(directory, -1) for directory, _, _ in changes)
                case _:
                    continue
            if not durable:
                pending.append(step)
        return pending

    def _files(self, survivors: Sequence[Change | Sync | Output]) -> dict[str, bytes | str | None]:
        names: dict[int, dict[str, int]] = {}
        contents: dict[int, bytearray] = {}
        for what in survivors:
            match what:
                case Names():
                    for directory, name, inode in what.changes:
                        held = names.setdefault(directory, {})
                        held.pop(name, None)
                        if inode is not None:
                            held[name] = inode
                case Write():
                    content = contents.setdefault(what.inode, bytearray())
                    content.extend(bytes(max(0, what.offset - len(content))))
                    content[what.offset : what.offset + len(what.data)] = what.data
                case Resize():
                    content = contents.setdefault(what.inode, bytearray())
                    del content[what.size :]
                    content.extend(bytes(what.size - len(content)))
        files: dict[str, bytes | str | None] = {}

        def walk(directory: int, above: PurePath) -> None:
            for name, inode in names.get(directory, {}).items():
                path = str(above / name)
                if inode in self.directories:
                    files[path] = None
                    walk(inode, above / name)
                else:
                    files[path] = self.targets.get(inode, bytes(contents.get(inode, b"")))

        walk(0, PurePath())
        return files


def _choices(pending: Sequence[Step]) -> Iterator[tuple[str, set[int], Change | None]]:
    """Choices of the pending changes that are lost, and of the write that is torn."""
    names = {id(one) for one in pending if isinstance(one.what, Names)}
    every = {id(one) for one in pending}
    yield "nothing unsynced is there", every, None
    yield "all is there", set(), None
    yield "only the names are there", every - names, None
    yield "only the bytes are there", names, None
    for count in range(1, len(pending)):
        if count > len(pending) - 2 * MOST_SINGLES:
            yield f"the first {count} of {len(pending)} are there", {id(one) for one in pending[count:]}, None
    for one in pending[-MOST_SINGLES:]:
        yield f"all but {_brief(one)} is there", {id(one)}, None
        yield f"only {_brief(one)} is there", every - {id(one)}, None
        if isinstance(one.what, Write) and len(one.what.data) > _SECTOR:
            yield f"half of {_brief(one)} is there", set(), one.what


def _brief(step: Step) -> str:
    what = step.what
    return f"{type(what).__name__} {getattr(what, 'path', '')}"


def _half(what: Change | Sync | Output) -> Change | Sync | Output:
    assert isinstance(what, Write)
    return replace(what, data=what.data[: len(what.data) // 2 // _SECTOR * _SECTOR])


class _Reader:
    """Translates calls to steps. Inode 0 is the root's."""

    def __init__(self, root: Path, marks: Path | None) -> None:
        self._root = PurePath(root)
        self._marks = str(marks)
        self._inodes = [Inode(0, is_directory=True)]
        self._tree: dict[int, dict[str, int]] = {0: {}}
        self._sizes: dict[int, int] = {}
        self._at: dict[
            int, int
        ] = {}  # where a descriptor's next write goes; files here are written by one descriptor at a time
        self._appends: set[int] = set()
        self._steps: list[Step] = []

    def read(self, calls: Iterable[Call]) -> Record:
        for call in sorted(calls, key=lambda one: one.ended if one.name in _SYNCS else one.began):
            self._take(call)
        self._steps.sort(key=lambda one: one.at)
        return Record(
            Path(self._root),
            self._steps,
            frozenset(one.number for one in self._inodes if one.is_directory),
            {one.number: one.target for one in self._inodes if one.target},
        )

    def _take(self, call: Call) -> None:
        if call.name in ("sendto", "sendmsg") or (call.name in _WRITES and call.places[:1] == (self._marks,)):
            self._add(Output(b"".join(call.texts)[: call.result], call.places[0] if call.places else ""), call)
        elif call.name in _WRITES:
            self._write(call)
        elif call.name in _SYNCS:
            if (inode := self._found(call.places[0])) is not None:
                self._add(Sync(inode, self._inside(call.places[0]), self._inodes[inode].is_directory), call)
        elif call.name in ("open", "openat", "creat"):
            self._open(call)
        elif call.name in ("truncate", "ftruncate"):
            path = call.places[0] if call.name == "ftruncate" else self._paths(call)[0]
            self._resize(path, int(_last_number(call)), call)
        else:
            self._name(call)

    def _open(self, call: Call) -> None:
        path = self._paths(call)[0]
        if not self._is_inside(path):
            return
        inode = self._found(path)
        if inode is None and b"O_CREAT" in call.rest:
            inode = self._new(Inode(0))
            self._bind(call, path, inode)
        if inode is None:
            raise NotImplementedError(f"{path} was there before, or is behind a link")
        self._at[inode] = 0
        self._appends.discard(inode)
        if b"O_APPEND" in call.rest:
            self._appends.add(inode)
        if b"O_TRUNC" in call.rest and self._sizes.get(inode, 0):
            self._resize(path, 0, call)

    def _write(self, call: Call) -> None:
        path = call.places[0] if call.places else ""
        inode = self._found(path)
        if inode is None:
            return
        data = b"".join(call.texts)[: call.result]
        if call.name.startswith("p"):
            offset = int(_last_number(call))
        else:
            offset = self._sizes.get(inode, 0) if inode in self._appends else self._at.get(inode, 0)
            self._at[inode] = offset + len(data)
        self._sizes[inode] = max(self._sizes.get(inode, 0), offset + len(data))
        self._add(Write(inode, offset, data, self._inside(path)), call)

    def _resize(self, path: str, size: int, call: Call) -> None:
        inode = self._found(path)
        if inode is not None:
            self._sizes[inode] = size
            self._add(Resize(inode, size, self._inside(path)), call)

    def _name(self, call: Call) -> None:
        paths = self._paths(call) if call.texts else list(call.places)
        if not any(self._is_inside(path) for path in paths):
            return
        kind = call.name.removesuffix("2").removesuffix("at")
        match kind:
            case "mkdir":
                self._bind(call, paths[0], self._new(Inode(0, is_directory=True)))
            case "symlink":
                self._bind(call, paths[-1], self._new(Inode(0, target=os.fsdecode(call.texts[0]))))
            case "link":
                self._bind(call, paths[1], self._must(paths[0]))
            case "unlink" | "rmdir":
                self._bind(call, paths[0], None)
            case "rename":
                inode = self._must(paths[0])
                self._change(call, ((*self._place(paths[0]), None), (*self._place(paths[1]), inode)), paths[1])
            case "chmod" | "fchmod":
                pass  # power cuts do not test permissions
            case _:
                raise NotImplementedError(f"{call.name} of {paths}")

    def _bind(self, call: Call, path: str, inode: int | None) -> None:
        self._change(call, ((*self._place(path), inode),), path)

    def _change(self, call: Call, changes: tuple[tuple[int, str, int | None], ...], path: str) -> None:
        for directory, name, inode in changes:
            self._tree[directory].pop(name, None)
            if inode is not None:
                self._tree[directory][name] = inode
        self._add(Names(changes, self._inside(path)), call)

    def _new(self, inode: Inode) -> int:
        inode.number = len(self._inodes)
        self._inodes.append(inode)
        if inode.is_directory:
            self._tree[inode.number] = {}
        return inode.number

    def _add(self, what: Change | Sync | Output, call: Call) -> None:
        self._steps.append(Step(what, call.began, call.ended))

    def _paths(self, call: Call) -> list[str]:
        """The strings of a call as absolute paths; each is relative to the descriptor before it, if there is one."""
        texts = [os.fsdecode(one) for one in call.texts]
        if "symlink" in call.name:
            texts = texts[1:]
        places = list(call.places) + [os.getcwd()] * len(texts)
        paired = zip(places, texts, strict=False)
        return [os.path.normpath(os.path.join(place, text)) for place, text in paired]

    def _is_inside(self, path: str) -> bool:
        return PurePath(path).is_relative_to(self._root)

    def _inside(self, path: str) -> str:
        return str(PurePath(path).relative_to(self._root))

    def _found(self, path: str) -> int | None:
        if not self._is_inside(path):
            return None
        inode = 0
        for part in PurePath(path).relative_to(self._root).parts:
            held = self._tree.get(inode, {}).get(part)
            if held is None:
                return None
            inode = held
        return inode

    def _must(self, path: str) -> int:
        inode = self._found(path)
        assert inode is not None, path
        return inode

    def _place(self, path: str) -> tuple[int, str]:
        return self._must(os.path.dirname(path)), os.path.basename(path)


def _last_number(call: Call) -> str:
    found = _NUMBER.search(call.rest)
    assert found, call.rest[:200]
    return found[1].decode()
