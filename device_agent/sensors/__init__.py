"""What fills device_agent.facts.Facts: sources on the machine, each read within a limit of time (docs/conditions.md)."""
