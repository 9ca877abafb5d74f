"""The tasks that ship with fedpatch: digits, mnist and cifar10; their downloads and partitions."""
