"""A run as an HTML page, CSV files and charts: `fedpatch report`.

It reads the records of finished and open runs and changes nothing.
"""
