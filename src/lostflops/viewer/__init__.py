"""Shows a run as a timeline in the browser: every rank on one page, from the whole job to a single kernel.

`layout` puts a run's rows into lanes in which none overlap, `pyramid` adds up how busy each lane was at every
zoom, `timeline` keeps both beside the run, and `server` hands out what the page in `assets/` draws. The URLs
and the bytes on the wire are described in `docs/viewer-protocol.md`.
"""
