"""The registry's database: one set of tables and statements for SQLite and PostgreSQL; opening, migrations, checks."""
