"""The registry's database: one set of tables and statements for SQLite and PostgreSQL; opening, migrations, checks."""

from fedpatch.shared.errors import UsageError

try:
    import sqlalchemy  # noqa: F401
except ModuleNotFoundError as error:
    raise UsageError(
        f"the registry needs the package {error.name}, which is not installed; pip install 'fedpatch[coordinator]'"
    ) from error
