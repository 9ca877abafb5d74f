"""Reading of a device's own data: files of a folder, cells of a line, frames and arrays, with one policy for all of them.

`csv_reader` and `frame_reader` use the same rows (`readings_table`) and the same values (`cell_values`, `array_values`).
"""
