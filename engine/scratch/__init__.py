"""Where finished tiles wait to be merged."""
