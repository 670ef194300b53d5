"""Models of Hugging Face: their weights in, by byte ranges, and out; `twin.description.huggingface` reads their shape.

* `families`: which tensors of a family's files each parameter is made of. Data.
* `bands`: the arithmetic of that, from a rectangle of the one to rectangles of the other.
* `source`: the files of such a directory, opened and checked.
* `weights`: a rank's own part of them; `bring`: `fourfold import`; `give`: `fourfold export --hf`.
"""
