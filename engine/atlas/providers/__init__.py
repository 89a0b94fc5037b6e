"""The libraries that do the analysis, behind one interface: scanpy on CPUs, RAPIDS on GPUs."""
