"""Pages of the reference, as Markdown made from the code when the site is built (`docs/conf.py`).

* `keys`: job and machine files. `commands`: the command line. `api`: Python. `glossary`: words. `house`: the picture.
* `directive`: what puts them into a page.
"""
