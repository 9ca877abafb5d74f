"""Cost of an agent on its device: memory, processor time, writes."""
