"""The data specs of all clients, written as one template with the fields {index}, {count} and {seed}."""

from __future__ import annotations

from string import Formatter

from fedpatch.shared.errors import UsageError

FIELDS = ("index", "count", "seed")


def data_specs(template: str, clients: int, seed: int, most: int | None = None) -> list[str]:
    """Fill in the template for each client.

    Args:
        template: The template; it has the field {index}.
        clients: Number of clients, the value of {count}.
        seed: The seed, the value of {seed}.
        most: Return the specs of so many first clients; None: of all.

    Returns:
        The specs, by the numbers of the clients.

    Raises:
        UsageError: The template has no {index} or an unknown field, or cannot be filled in.

    Example:
        >>> data_specs("shard:{index}/{count},seed={seed}", 2, 7)
        ['shard:0/2,seed=7', 'shard:1/2,seed=7']
    """
    known = ", ".join(f"{{{name}}}" for name in FIELDS)
    try:
        named = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
        if unknown := sorted(named - set(FIELDS)):
            raise UsageError(f"data template {template!r}: there is no field {{{unknown[0]}}} (known: {known})")
        if "index" not in named:
            raise UsageError(
                f"data template {template!r} lacks {{index}}, so that every client would have the same data; "
                "put {index} where a client's number belongs, as in shard:{index}/{count}"
            )
        return [template.format(index=index, count=clients, seed=seed) for index in range(clients)[:most]]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"data template {template!r} cannot be filled in ({error}); its fields are {known}, and a brace of "
            "its own is doubled"
        ) from error
