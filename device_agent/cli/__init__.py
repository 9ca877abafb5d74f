"""The commands of `fedpatch-agent`, one module for each subject.

A module here parses options, calls the room that does the work and prints the result.
"""
