"""Memory and step time of any layout: formulas over whole tables, calibrated on measured rows."""
