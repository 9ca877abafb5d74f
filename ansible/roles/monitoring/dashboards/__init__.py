"""Grafana dashboards of a fleet, as code: `python -m dashboards` in the folder above writes ../files/dashboards."""
