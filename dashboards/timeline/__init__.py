"""Two runs on one time axis: what is in a window, as bars if they are few, else as a picture."""
