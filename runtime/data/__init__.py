"""What the model reads: token files on disk, and the order in which they are read.

* `documents`: text from files, JSON lines, or the Python standard library.
* `tokenizer`: text to tokens and back.
* `build`: documents to a data set, a directory of two token files.
* `tokens`: a data set opened again, checked and mapped into memory.
* `order`, `batches`: which window of the file is which sample, and which samples are whose.

The only state of a training run here is one integer: how many samples it has seen. The order of
samples depends on the seed alone, never on the grid.
"""
