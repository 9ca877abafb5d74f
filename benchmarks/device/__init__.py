"""What an agent costs a device: memory, processor time, writes."""
