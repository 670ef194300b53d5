"""Write into pages what their commands and cells print: python -m tests.docs docs/tutorial/python.md …"""

import os
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import ROOT, done, fill

for name in sys.argv[1:]:
    page = Path(name).absolute()
    with tempfile.TemporaryDirectory() as empty:
        (Path(empty) / "examples").symlink_to(ROOT / "examples")
        os.chdir(empty)
        sys.path.insert(0, empty)
        page.write_text(done(page, fill), encoding="utf-8")
        os.chdir(ROOT)
