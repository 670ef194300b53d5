"""What a model learns by heart, and how the Goldfish loss prevents it: a study of many small trainings.

* `study`: the study file; `cells`: the trainings that it asks for; `texts`: what they train on or never see.
* `order`: when a text comes; `train`: one training, and how its texts go on; `run`: all of them, on any grid.
* `metrics`: one text, judged; `bounds`: what closed forms say of it; `summary`: all of them, over seeds.
* `directory`: what is kept, so that a study goes on; `report`, `figures`: tables, pictures, the page.
* `command`: `fourfold memorize`.
"""
