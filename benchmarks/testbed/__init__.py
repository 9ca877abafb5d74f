"""The paper's testbed: throttled agents on hosts in network namespaces."""
