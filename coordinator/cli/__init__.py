"""The commands of `fedpatch`, one module for each subject; nothing else in the coordinator prints.

A module here parses options, calls the package that does the work and prints the result.
"""
