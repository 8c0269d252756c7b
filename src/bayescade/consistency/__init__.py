"""What the data of a scan say about the scan itself: its centre of rotation, its noise, its faults."""
