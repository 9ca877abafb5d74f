"""The training process has no network: a seccomp filter of the kernel, set before the task is imported.

The filter counts for all threads, and for every program that the process starts. It refuses with EACCES:

- `socket` of any family, and `socketpair` except connected pairs: a datagram socket of a pair can send to any Unix socket;
- io_uring, which opens sockets without these calls;
- the memory and the descriptors of other processes: ptrace, process_vm_readv, process_vm_writev, pidfd_getfd;
- keys of the kernel: `request_key` lets a program of the system ask a name server;
- calls of another architecture, also x32 on x86_64, since their numbers mean other calls.

Descriptors that came from the parent are closed. Files of the same user stay reachable (docs/explanation/threat-model.md).

An audit hook of Python refuses first, with a message that names the remedy; code in C gets the kernel's EACCES alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

REFUSED = (
    "the training process has no network; bring data as files, or download them before training with `check-task` "
    "(docs/how-to/bring-your-task.md, Data from the network)"
)
"""The message of a refused connection."""

_NAME_LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_TSYNC = 1
_RET_ALLOW = 0x7FFF0000
_RET_EACCES = 0x00050000 | errno.EACCES

# Instructions of classic BPF (linux/bpf_common.h), and offsets in struct seccomp_data (linux/seccomp.h).
_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
_FAMILY, _TYPE = 16, 24  # the low halves of the first two arguments, little-endian
_TYPE_MASK = 0xF  # the type without SOCK_CLOEXEC and SOCK_NONBLOCK
_X32_BIT = 0x40000000


@dataclass(frozen=True)
class Architecture:
    """The numbers of one architecture: AUDIT_ARCH (linux/audit.h) and system calls (asm/unistd.h)."""

    audit: int
    seccomp: int
    socketpair: int
    refused: Mapping[str, int]


_SAME_EVERYWHERE = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "pidfd_getfd": 438}
_NAMES = ("socket", "ptrace", "process_vm_readv", "process_vm_writev", "add_key", "request_key", "keyctl")


def _architecture(audit: int, seccomp: int, socketpair: int, *numbers: int) -> Architecture:
    return Architecture(audit, seccomp, socketpair, dict(zip(_NAMES, numbers, strict=True)) | _SAME_EVERYWHERE)


ARCHITECTURES = {
    "x86_64": _architecture(0xC000003E, 317, 53, 41, 101, 310, 311, 248, 249, 250),
    "aarch64": _architecture(0xC00000B7, 277, 199, 198, 117, 270, 271, 217, 218, 219),
    "arm": _architecture(0x40000028, 383, 288, 281, 26, 376, 377, 309, 310, 311),
}

_BY_MACHINE = {
    ("x86_64", 8): "x86_64",
    ("aarch64", 8): "aarch64",
    # 32-bit Raspberry Pi OS runs with a kernel of 64 bits too.
    **{(machine, 4): "arm" for machine in ("aarch64", "armv6l", "armv7l", "armv8l")},
}


def architecture_name(machine: str, pointer_bytes: int) -> str:
    """Return the architecture of this Python's system calls, a key of ARCHITECTURES; "" if there is no table for it.

    Example:
        >>> architecture_name("aarch64", 4)
        'arm'
    """
    return _BY_MACHINE.get((machine, pointer_bytes), "")


def program(architecture: Architecture) -> bytes:
    """Return the filter as an array of `struct sock_filter`: 8 bytes for each instruction."""
    allow, refuse = _instruction(_RETURN, _RET_ALLOW), _instruction(_RETURN, _RET_EACCES)
    numbers = sorted(architecture.refused.values())
    pairs = [
        _instruction(_LOAD, _FAMILY),
        _instruction(_IF_EQUAL, socket.AF_UNIX, if_false=5),
        _instruction(_LOAD, _TYPE),
        _instruction(_AND, _TYPE_MASK),
        _instruction(_IF_EQUAL, socket.SOCK_STREAM, if_true=1),
        _instruction(_IF_EQUAL, socket.SOCK_SEQPACKET, if_false=1),
        allow,
        refuse,
    ]
    return b"".join(
        [
            _instruction(_LOAD, _ARCHITECTURE),
            _instruction(_IF_EQUAL, architecture.audit, if_true=1),
            refuse,
            _instruction(_LOAD, _NUMBER),
            _instruction(_IF_AT_LEAST, _X32_BIT, if_false=1),
            refuse,
            # Each comparison jumps over the rest of them, and over `socketpair` and `allow`, to `refuse`.
            *(
                _instruction(_IF_EQUAL, number, if_true=len(numbers) - place + 1)
                for place, number in enumerate(numbers)
            ),
            _instruction(_IF_EQUAL, architecture.socketpair, if_true=2),
            allow,
            refuse,
            *pairs,
        ]
    )


def _instruction(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def close_network() -> str:
    """Refuse the network to this process, for good. Returns why the kernel does not refuse it; "" if it does."""
    sys.addaudithook(_refuse_in_words)
    name = architecture_name(platform.machine(), struct.calcsize("P"))
    if not name:
        return f"fedpatch has no table of system calls for {platform.machine()}"
    if problem := _set_filter(ARCHITECTURES[name]):
        return f"the kernel refuses a seccomp filter ({problem})"
    return ""


def _refuse_in_words(event: str, _args: object) -> None:
    """Raise PermissionError where Python code opens a socket or asks for a name."""
    # `fileno` of socket.socket() is set where an end of a pair becomes an object.
    opens = event == "socket.__new__" and sys._getframe(1).f_locals.get("fileno") is None
    if opens or event in _NAME_LOOKUPS:
        raise PermissionError(errno.EACCES, REFUSED)


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _set_filter(architecture: Architecture) -> str:
    """Set the filter for all threads of this process; return the problem, "" if there is none."""
    instructions = program(architecture)
    filter_ = _Program(len(instructions) // 8, instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(word) for word in (1, 0, 0, 0))):
        return os.strerror(ctypes.get_errno())
    done = libc.syscall(
        ctypes.c_long(architecture.seccomp),
        ctypes.c_ulong(_SECCOMP_SET_MODE_FILTER),
        ctypes.c_ulong(_SECCOMP_FILTER_FLAG_TSYNC),
        ctypes.byref(filter_),
    )
    if done > 0:
        return f"thread {done} has another filter"
    if done:
        return os.strerror(ctypes.get_errno())
    return _trial(libc)


def _trial(libc: ctypes.CDLL) -> str:
    """Open a socket: an emulated kernel may accept a filter and not follow it."""
    opened: int = libc.socket(int(socket.AF_UNIX), int(socket.SOCK_STREAM), 0)
    if opened < 0:
        return ""
    os.close(opened)
    return "it accepts one, and does not follow it"


def close_descriptors(kept: Iterable[int]) -> None:
    """Close the descriptors that this process has from its parent, except standard input, output, error and `kept`."""
    keep = {0, 1, 2, *kept}
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor not in keep:
            with contextlib.suppress(OSError):  # that of this folder is closed already
                os.close(descriptor)
