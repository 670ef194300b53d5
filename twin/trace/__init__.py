"""What happened: the event table of a run, predicted or measured, and what is read off it.

* `table`: the columns. `store`: one directory per run (manifest and Parquet).
* `metrics`: step time, exposed communication, idle time.
* `chrome`: export for Perfetto. The timeline as a page is in `twin.pages`.
"""
