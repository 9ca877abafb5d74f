"""The tasks that ship with fedpatch: digits, mnist and cifar10; their downloads and partitions.

Tasks of users are packages of their own.
"""
