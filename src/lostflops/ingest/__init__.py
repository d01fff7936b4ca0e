"""Trace formats to tables: one folder per format, each with a `reader.py` that says what it reads.

A new format is a new folder: its `reader.py` holds a `READER` (`formats.Reader`) for files that traces are
read from, or a `BESIDE` (`formats.Beside`) for documents that lie beside traces. Other people's packages name
theirs in the entry-point group `lostflops.formats`. Nothing else has to be told of it.
"""
