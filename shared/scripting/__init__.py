"""Parts of the Python API that both sides share: work in a background thread, its events, and data frames of results."""
