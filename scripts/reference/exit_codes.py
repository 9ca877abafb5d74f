"""The page exit-codes.md: exit codes and errors, from shared/errors.py."""

from __future__ import annotations

from collections.abc import Iterator

import fedpatch
from fedpatch.shared.errors import EXIT_CODES, FedpatchError
from scripts.reference.markdown import render, table


def page() -> str:
    """Return the page."""
    codes = [(str(code), meaning, action) for code, (meaning, action) in EXIT_CODES.items()]
    errors = [f"- `{error.__name__}` ({error.exit_code}): {_summary(error)}" for error in _offered(FedpatchError)]
    return render(
        "exit-codes.md",
        codes=table(("exit code", "meaning", "what to do"), codes),
        errors="\n".join(errors),
    )


def _offered(error: type[FedpatchError]) -> Iterator[type[FedpatchError]]:
    """Yield an error and those below it that a program imports from `fedpatch`."""
    if error.__name__ in fedpatch.__all__:
        yield error
    for child in error.__subclasses__():
        yield from _offered(child)


def _summary(error: type[FedpatchError]) -> str:
    return (error.__doc__ or "").split("\n\n")[0].strip()
