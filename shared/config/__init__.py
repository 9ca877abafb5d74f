"""Settings from TOML files, environment variables and options; secrets; enrolment bundles.

The settings themselves are declared by the coordinator, the device agent and `shared.mqtt`.
"""
