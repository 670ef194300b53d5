"""What a run is asked to do, checked before anything starts."""
