"""Settings that exclude each other, in a table beside each feature that excludes them."""
