"""Tables of points as arrays, what is known of software and clusters, and calibrations."""
