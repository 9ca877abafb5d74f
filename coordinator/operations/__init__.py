"""The work of commands that belongs to no run: doctor, export, watch, inventory.

A module is imported when its command is called, so that the other commands start quickly; options and output are in `cli`.
"""
