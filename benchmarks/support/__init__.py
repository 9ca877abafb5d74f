"""Tools of the benchmarks: processes, reports, JSON documents, tables."""
