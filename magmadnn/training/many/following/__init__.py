"""Models that follow one that is built like them: what is compiled for one trains all of them, at once."""
