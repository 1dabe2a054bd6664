"""Meeting a build's failure again: its image and tests on another machine, or a worker's order once more."""
