"""Memory and step time of any layout: formulas over whole tables, calibrated on what was measured."""
