"""The web application. Not written yet; see the CHANGELOG."""
