"""What a trained model says, and how well it predicts: text from a prompt, loss on any text.

* `generate`, `loss`: both, on the ranks of a grid; training's evaluation and its sample are these too.
* `trained`: a run's directory, opened to be asked and not to be trained; nothing there is written.
* `prompts`, `texts`: what the model is asked with. `ranks`: how ranks meet and load a checkpoint for that.
* `command`: `fourfold sample` and `fourfold eval`.
"""
