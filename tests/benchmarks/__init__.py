"""How fast the simulator is. Run by `make bench`, never by the tests."""
