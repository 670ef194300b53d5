"""One shell for every self-contained HTML page: head, style, title, facts, body, footer.

* `shell`: fills a page's template, in which whatever comes from a trace or a job file is escaped.
* `timeline`: the timeline of chosen ranks; `pipeline`: that of a pipeline's passes, on the same page.
"""
