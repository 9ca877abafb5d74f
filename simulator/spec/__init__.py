"""What a simulation is and what comes out of it, as plain data; the published numbers."""
