"""What operators need: the command line, job templates, container files."""
