"""A training that takes a second: the scan and the settings that its tests share."""

GEOMETRY = "bins = 15\nviews = 6\nimage_shape = [12, 12]\n"
SETTINGS = [
    "fit.batch=4",
    "data.images=8",
    "data.validation_images=2",
    "block.channels=4",
    "greedy.restarts=0",
]
LONGER = [*SETTINGS, "greedy.redraw=1", "fit.epochs=3"]  # with inputs that are drawn again
